"""Arguments of a job: those the task was given, with verified references, and the context it asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

from airflow_provider.project import project_of_task
from airflow_provider.signatures import Signatures
from airflow_provider.xcom import Verify, with_references
from kinetic_core.errors import InvalidRequest
from kinetic_core.jobs.submit import Call
from kinetic_core.project.callables import callable_name

PLAIN_CONTEXT = (
    "ds",
    "ds_nodash",
    "ts",
    "ts_nodash",
    "ts_nodash_with_tz",
    "run_id",
    "logical_date",
    "data_interval_start",
    "data_interval_end",
    "params",
)
"""Context that a function may ask for by the name of a parameter: what makes sense away from Airflow."""


def call_of(
    function: Callable[..., Any],
    op_args: Collection[Any],
    op_kwargs: Mapping[str, Any],
    context: Mapping[str, Any],
    reserved: Collection[str] = (),
    verify: Verify | None = None,
) -> Call:
    """Build the call of a job, with the files that ship from the task's DAG bundle.

    `reserved`: all names of Airflow's context. A parameter with such a name is filled in if it is one of
    PLAIN_CONTEXT. Raises InvalidRequest for any other without a default, because `ti` cannot leave Airflow,
    and for a reference that `verify`, by default with this Airflow's signatures, refuses.
    """
    verify = verify or Signatures().verified
    args = tuple(with_references(list(op_args), "op_args", verify))
    kwargs = dict(with_references(dict(op_kwargs), "op_kwargs", verify))
    parameters = inspect.signature(function).parameters
    given = set(list(parameters)[: len(args)]) | set(kwargs)
    for name, parameter in parameters.items():
        if name in given or name not in reserved:
            continue
        if name in PLAIN_CONTEXT and name in context:
            kwargs[name] = _plain(context[name])
        elif parameter.default is inspect.Parameter.empty:
            raise InvalidRequest(
                f"the parameter {name!r} of {callable_name(function)} is Airflow's context, which "
                f"{_why(name)}. Pass what the function needs as an argument, for instance '{{{{ run_id }}}}'"
            )
    return Call(function, args, kwargs, project_of_task(function, context))


def _plain(value: Any) -> Any:
    """Convert Airflow's own types (pendulum, ParamsDict), which the job may lack, to standard ones."""
    if isinstance(value, datetime):
        return datetime.fromisoformat(value.isoformat())
    return dict(value) if isinstance(value, Mapping) else value


def _why(name: str) -> str:
    return "this run does not have" if name in PLAIN_CONTEXT else "cannot travel into a job"
