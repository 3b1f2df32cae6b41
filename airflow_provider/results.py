"""Result of a task from its finished job: the value for XCom, or the error for Airflow."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import Asset, AssetAlias

from airflow_provider.failures import evidence, named
from airflow_provider.signatures import Signatures
from airflow_provider.xcom import is_plain
from kinetic_core.errors import (
    JobBudgetExceeded,
    JobCancelled,
    JobFailed,
    JobMisconfigured,
    UnserializableResult,
    UnverifiedResult,
)
from kinetic_core.job import JobReference
from kinetic_core.jobs.collect import Outcome, result_reference
from kinetic_core.jobs.outputs import find_outputs

_NO_RETRY = (JobMisconfigured, JobCancelled, JobBudgetExceeded, UnserializableResult)


def value_for_xcom(
    reference: JobReference, outcome: Outcome, *, multiple_outputs: bool, mapped_over: bool, name: str = ""
) -> Any:
    """Return the value of a finished job's task: a plain value as it is, any other as a reference.

    Nothing is unpickled. `mapped_over` says that a downstream task expands over the value: then, and with
    `multiple_outputs`, a reference is refused. `name`: that of the instance of a mapped task. Raises the
    job's failure: the user's exception if it is a built-in one, AirflowFailException if trying again
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
    try:
        found_at = result_reference(reference, outcome)
    except UnverifiedResult as error:
        raise AirflowFailException(named(name, error)) from error
    return Signatures().signed(found_at)


def raise_failure(outcome: Outcome, name: str = "") -> None:
    """Write the evidence to the log, then raise the job's failure; both name the task instance."""
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
    if outcome.codec != "typed" or not all(
        name == "body" or name.startswith("text-") for name in outcome.parts
    ):
        return False, None  # bytes or arrays: their content is not read
    try:
        value = outcome.value_or_raise()
    except ImportError:  # numpy is not installed here: the value stays where it is
        return False, None
    return is_plain(value), value


def publish(reference: JobReference, digest: str, outlets: Iterable[Any], outlet_events: Any) -> None:
    """Complete the events that Airflow makes of a task's outlets when it succeeds.

    An Asset's event says which job made it and where its outputs are. An AssetAlias becomes an event of the
    Asset whose URI is the output directory. The extra: `job`, `uri`, `files`, `bytes`, and `digest`, that
    of the job's outcome. Raises StoreError if the outputs cannot be listed.
    """
    found = [each for each in outlets if isinstance(each, Asset | AssetAlias)]
    if not found:
        return
    outputs = find_outputs(reference)
    place = outputs.location
    uri = place if "://" in place else Path(place).as_uri()
    extra = {
        "job": reference.job_id,
        "uri": uri,
        "files": len(outputs),
        "bytes": sum(file.size for file in outputs),
        "digest": digest,
    }
    for outlet in found:
        if isinstance(outlet, AssetAlias):
            outlet_events[outlet].add(Asset(uri), extra=extra)
        else:
            outlet_events[outlet].extra.update(extra)
