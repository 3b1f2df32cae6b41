"""The arguments of a job: what the task was given, references in it recognised, and context it asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

from airflow_provider.values import with_references
from kinetic_core.errors import InvalidRequest
from kinetic_core.lifecycle.submission import Call
from kinetic_core.packaging.callables import callable_name

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
) -> Call:
    """The call a job makes.

    `reserved`: all names of Airflow's context. A parameter of such a name is filled in if it is one of
    PLAIN_CONTEXT. Raises InvalidRequest for any other without a default: `ti` cannot leave Airflow.
    """
    args, kwargs = tuple(with_references(list(op_args))), dict(with_references(dict(op_kwargs)))
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
    return Call(function, args, kwargs)


def _plain(value: Any) -> Any:
    """Standard types only: Airflow's own (pendulum, ParamsDict) need not be installed where the job runs."""
    if isinstance(value, datetime):
        return datetime.fromisoformat(value.isoformat())
    return dict(value) if isinstance(value, Mapping) else value


def _why(name: str) -> str:
    return "this run does not have" if name in PLAIN_CONTEXT else "cannot travel into a job"
