"""Options of a task: those of `kinetic_core.run`, checked in the DAG as far as their values are known."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kinetic_core.errors import InvalidRequest
from kinetic_core.option_checks import many_on_workers
from kinetic_core.options import BATCH_TASK_OPTIONS, OPTIONS, Option, RunOptions, truth_of_text

Init = TypeVar("Init", bound=Callable[..., None])

RENAMED = {"retries": "job_retries", "queue": "job_queue"}
"""Options that have another name in a task, because `retries` and `queue` are Airflow's own."""
REFUSED = {
    "debug": (
        "debug=: nobody sits at an Airflow worker to attach a debugger, so a task does not take it. Call "
        "the function with @kinetic_core.run(..., debug=True) from a terminal; its code is the same"
    ),
}
"""Options that a task cannot have, and what to do instead."""
TASK_OPTIONS: Mapping[str, Option] = {
    RENAMED.get(name, name): row for name, row in OPTIONS.rows.items() if name not in REFUSED
}
"""Options of `kinetic_core.run` that a task takes, by their names in a task."""
BATCH_OPTIONS: Mapping[str, Option] = BATCH_TASK_OPTIONS.rows
"""Options of a task that runs a batch, besides those of each of its jobs."""
_NAMES_IN_RUN = {there: name for name, there in RENAMED.items()}
_NOTHING = "None"
"""Text that Jinja renders for None."""


class GivenFields(tuple[str, ...]):
    """Template fields: all of these of a class of operators, and of an operator those that have a value.

    Airflow renders each template field of each task, makes a validator for it (0.26 ms of a processor with
    pydantic 2.14), and lists it on the page of rendered templates, also if it has no value.
    """

    __slots__ = ()

    def __get__(self, operator: object | None, _class: object = None) -> tuple[str, ...]:
        if operator is None:
            return self
        return tuple(name for name in self if getattr(operator, name, None) is not None)


def run_options(options: Mapping[str, Any]) -> RunOptions:
    """Check options, ignoring those that are None. Raises InvalidRequest or TypeError."""
    given: dict[str, Any] = {
        _NAMES_IN_RUN.get(name, name): value for name, value in options.items() if value is not None
    }
    return RunOptions.checked(**given)


def rendered_options(options: Mapping[str, Any]) -> RunOptions:
    """Return validated options after rendering, which leaves texts in place of numbers.

    Raises InvalidRequest only.
    """
    try:
        return run_options({name: _read(TASK_OPTIONS, name, value) for name, value in options.items()})
    except TypeError as error:
        raise InvalidRequest(str(error)) from error


def batch_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options of a batch, ignoring those that are None. Raises InvalidRequest or TypeError."""
    given = {name: value for name, value in options.items() if value is not None}
    return BATCH_TASK_OPTIONS.check("kinetic_batch", **given)


def rendered_batch_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return validated options of a batch after rendering. Raises InvalidRequest only."""
    try:
        return batch_options({name: _read(BATCH_OPTIONS, name, value) for name, value in options.items()})
    except TypeError as error:
        raise InvalidRequest(str(error)) from error


def check_batch_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidRequest or TypeError for options of a batch that can never be valid."""
    batch_options({name: value for name, value in options.items() if not is_open(value)})


def check_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidRequest or TypeError for options that can never be valid.

    Templates, and values that other tasks will deliver, are left until they are known.
    """
    run_options({name: value for name, value in options.items() if not is_open(value)})


def check_workers(options: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for options of a batch, and of its jobs, that do not go with its warm workers.

    Those that are known only when the task runs are left until then.
    """
    warm = options.get("warm")
    if warm is None or is_open(warm):
        return
    known = {name: value for name, value in {**options, **asked}.items() if not is_open(value)}
    on = known.get("accelerator")
    hardware = run_options({"accelerator": on}).accelerator if isinstance(on, str) else None
    many_on_workers(known, asked.get("max_concurrent"), "a batch", hardware)


def refuse_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for an option that `kinetic_core.run` takes and a task cannot."""
    for name in REFUSED.keys() & options.keys():
        raise InvalidRequest(REFUSED[name])


def takes_options(init: Init) -> Init:
    """Put the options of a task into the signature of an operator's `__init__`, which has `**options`.

    Airflow reads there which arguments `default_args`, `partial` and `expand` may give.
    """
    return _takes(init, TASK_OPTIONS)


def takes_batch_options(init: Init) -> Init:
    """Put the options of a task that runs a batch into the signature of an operator's `__init__`."""
    return _takes(init, {**BATCH_OPTIONS, **TASK_OPTIONS})


def _takes(init: Init, options: Mapping[str, Option]) -> Init:
    signature = inspect.signature(init)
    *named, rest = signature.parameters.values()
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in options]
    init.__signature__ = signature.replace(parameters=[*named, *more, rest])  # type: ignore[attr-defined]
    return init


def is_template(text: str) -> bool:
    """Return whether Airflow will render the text."""
    return "{{" in text or "{%" in text


def is_open(value: Any) -> bool:
    """Return whether a value, or a part of it, is known only when the task runs."""
    if isinstance(value, str):
        return is_template(value)
    if isinstance(value, list | tuple):
        return any(map(is_open, value))
    if isinstance(value, dict):
        return any(map(is_open, value.values()))
    if isinstance(value, os.PathLike):  # whose resolve() is something else
        return False
    return hasattr(value, "iter_references") or hasattr(value, "resolve")  # an XComArg or a DagParam


def _read(options: Mapping[str, Option], name: str, value: Any) -> Any:
    """Convert the text of a rendered template to a number or truth value where the option is one."""
    read = options[name].read
    if read is None or not isinstance(value, str):
        return value
    text = value.strip()
    if text == _NOTHING:
        return None
    try:
        return read(text)
    except (ValueError, KeyError):
        kind = "True or False" if read is truth_of_text else "a number"
        raise InvalidRequest(
            f"{name}={value!r}, from a template or from another task, must be {kind}"
        ) from None
