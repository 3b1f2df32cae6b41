"""Evidence of a failed job in the task's log, before the exception: whose fault it was, and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from typing import Any

from kinetic_core._runner.wire import Failure, FailureClass
from kinetic_core.jobs.collect import Outcome

Redact = Callable[[str, str], Any]
"""Airflow's `redact`: from a value and its name to the value as it may be shown."""
_LONGEST_VALUE = 40
_LONGEST = 120


def instance_name(
    ti: Any, function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any], redact: Redact
) -> str:
    """Return `train[2] (rate=0.3)` for an instance of a mapped task, "" for a task that is not mapped.

    The brackets contain the task's rendered `map_index_template`, or else its arguments that are numbers,
    truth values or short texts. `redact` hides secrets by name or value.
    """
    if ti.map_index is None or ti.map_index < 0:
        return ""
    label = getattr(ti, "rendered_map_index", None) or _shortened(_shown(function, args, kwargs, redact))
    return f"{ti.task_id}[{ti.map_index}]" + (f" ({label})" if label else "")


def named(name: str, text: object) -> str:
    """Prefix a text with the name of a task instance; "" adds nothing."""
    return f"{name}: {text}" if name else str(text)


def _shown(
    function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any], redact: Redact
) -> Iterator[str]:
    given = chain(zip(inspect.signature(function).parameters, args, strict=False), kwargs.items())
    for parameter, value in given:
        if type(value) in (bool, int, float) or (type(value) is str and len(value) <= _LONGEST_VALUE):
            yield f"{parameter}={redact(repr(value), parameter)}"


def _shortened(parts: Iterator[str]) -> str:
    text = ", ".join(parts)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


_REMEDIES = {
    FailureClass.USER_ERROR: "the function itself failed: its traceback, or the end of its log, says where",
    FailureClass.OUT_OF_MEMORY: "ask for more with memory=, or use less",
    FailureClass.OUT_OF_DISK: "ask for more with disk=, or write large files to KINETIC_OUTPUT_DIR",
    FailureClass.PREEMPTED: "not the function's fault: retries= starts it again, infrastructure_retries= "
    "allows more losses within a job, and spot=False avoids preemption",
    FailureClass.IMAGE: "look at the image's name, and at whether the cluster's nodes may pull it",
    FailureClass.CONFIGURATION: "correct what the message names; trying again would not help",
    FailureClass.IMPOSSIBLE_REQUEST: "ask for hardware the cluster has, or give it a node pool that has this",
    FailureClass.QUOTA: "ask for less, for more quota, or in another zone",
    FailureClass.DEADLINE: "raise timeout=, which counts waiting too, or do less in one job",
    FailureClass.BUDGET: "raise budget=, if it is worth it; with checkpoints a new job goes on from here",
    FailureClass.CANCELLED: "somebody cancelled the job, or ended or cleared its task in Airflow",
    FailureClass.CONTROL_PLANE: "a service did not answer: retries= starts it again",
}


def evidence(outcome: Outcome, name: str = "") -> Iterator[str]:
    """Yield log lines: class, message, exit code, the traceback or else the last lines, and what to do.

    `name`: the name of the instance of a mapped task.
    """
    failure = outcome.failure or Failure(FailureClass.CONTROL_PLANE, "the job failed without a reason")
    where = f"attempt {outcome.attempt}, phase {failure.phase}"
    if failure.signal is not None:
        where += f", signal {failure.signal}"
    if failure.exit_code is not None:
        where += f", exit code {failure.exit_code}"
    yield named(name, f"{outcome.job_id} failed: {failure.failure_class}: {failure.message} ({where})")
    if failure.traceback:
        yield f"traceback in the job:\n{failure.traceback.rstrip()}"
    elif failure.last_lines:
        yield "the last lines of its log:\n" + "\n".join(failure.last_lines)
    remedies = {str(each): text for each, text in _REMEDIES.items()}
    if remedy := remedies.get(failure.failure_class):
        yield f"what to do: {remedy}"
