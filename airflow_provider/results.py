"""From a job that has ended to the end of its task: the value for XCom, or the error for Airflow."""

from __future__ import annotations

import logging
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider.evidence import evidence
from airflow_provider.mapped import named
from airflow_provider.values import is_plain
from kinetic_core.errors import (
    JobBudgetExceeded,
    JobCancelled,
    JobFailed,
    JobMisconfigured,
    UnserializableResult,
)
from kinetic_core.lifecycle.collecting import result_reference
from kinetic_core.lifecycle.outcome import Outcome
from kinetic_core.model.job import JobReference

_NO_RETRY = (JobMisconfigured, JobCancelled, JobBudgetExceeded, UnserializableResult)


def value_for_xcom(
    reference: JobReference, outcome: Outcome, *, multiple_outputs: bool, mapped_over: bool, name: str = ""
) -> Any:
    """What the task of a finished job returns: a plain value as it is, anything else as a reference.

    Nothing is unpickled. `mapped_over` says that a downstream task expands over it: then, and with
    `multiple_outputs`, a reference will not do. `name`: that of the instance of a mapped task. Raises the
    job's failure: the user's exception if it is one of Python's own, AirflowFailException if trying again
    cannot help, AirflowException otherwise.
    """
    if not outcome.succeeded:
        raise_failure(outcome, name)
    found, value = _plain_value(outcome)
    if found:
        return value
    kind = outcome.result_type or "value"
    if multiple_outputs or mapped_over:
        asks = "multiple_outputs" if multiple_outputs else "expand() over its result"
        text = (
            f"{reference.job_id} returned a {kind} that XCom cannot carry as it is, but {asks} needs the "
            "values here. Return plain values (numbers, strings, lists, dicts), or pass it on as a whole"
        )
        raise AirflowFailException(named(name, text))
    logging.getLogger(__name__).info("XCom cannot carry a %s: pushing a reference to it", kind)
    return result_reference(reference, outcome).to_dict()


def raise_failure(outcome: Outcome, name: str = "") -> None:
    """Raise what Airflow shall see, the evidence written to the log first; both with the instance's name."""
    error = outcome.exception()
    for line in evidence(outcome, name):
        logging.getLogger(__name__).error("%s", line)
    if isinstance(error, _NO_RETRY):
        raise AirflowFailException(named(name, error)) from error
    if isinstance(error, JobFailed):
        raise AirflowException(named(name, error)) from error
    if name:
        error.add_note(name)
    raise error


def _plain_value(outcome: Outcome) -> tuple[bool, Any]:
    if outcome.codec != "typed":
        return False, None
    try:
        value = outcome.value_or_raise()
    except ImportError:  # numpy is not installed here: the value stays where it is
        return False, None
    return is_plain(value), value
