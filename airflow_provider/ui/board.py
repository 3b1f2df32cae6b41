"""Board of a batch: the status of each of its inputs as one letter, why inputs failed, one input in detail.

A batch that has ended costs no request: the task's record says which inputs have no value, and why. Of one
that goes on, the cluster is asked three times, and the store for inputs that have failed or have no Job any
more, at most once per thousand inputs; of failed inputs the first hundred are read, each once. Of a map on
warm workers the store is asked once per thousand segments.
Nothing is changed or reconciled, no value is read.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from airflow_provider.batch_record import BatchRecord, Cause, group_causes
from airflow_provider.records import advice, readable
from airflow_provider.ui.detail import NO_LINE, UNREAD, outputs, silence, tail
from airflow_provider.ui.places import environment
from airflow_provider.ui.rows import Instance, LiveBatch, row, without_text
from kinetic_core.backends.base import Backend
from kinetic_core.batches.outcomes import StoredBatch
from kinetic_core.batches.snapshot import snapshot
from kinetic_core.errors import JobNotFound, KineticError, ObjectNotFound
from kinetic_core.job import JobObservation, JobStatus

LARGEST = 10_000
"""Squares of one answer; the next ones have an offset."""
_MOST_INPUTS = 200_000
"""Inputs up to which a batch that goes on is looked at: more of them take minutes to list."""
NOT_BEGUN = "."
LETTERS = {
    JobStatus.PENDING: "w",
    JobStatus.RUNNING: "r",
    JobStatus.SUCCEEDED: "s",
    JobStatus.FAILED: "f",
    JobStatus.CANCELLED: "c",
    JobStatus.NOT_FOUND: "?",
}
"""Letter of each status of an input; NOT_BEGUN is that of an input without a job."""
_SAMPLE = 100
"""Failed inputs whose outcomes are read, to say why."""
_READERS = 8
_MOST_BATCHES = 32


class Failures:
    """Why inputs of batches that go on have failed; each is read once for each try of its task."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int], dict[int, tuple[str, str]]] = OrderedDict()

    def causes(
        self, backend: Backend, record: BatchRecord, statuses: Mapping[int, JobStatus]
    ) -> tuple[Cause, ...]:
        """Group the first hundred failed inputs by their cause."""
        known = self._of(record)
        failed = sorted(index for index, status in statuses.items() if status is JobStatus.FAILED)[:_SAMPLE]
        unknown = [index for index in failed if index not in known]
        batch = StoredBatch(backend, record.reference)
        with ThreadPoolExecutor(_READERS, "kinetic-page") as pool:
            for index, why in zip(unknown, pool.map(lambda each: _why(batch, each), unknown), strict=True):
                if why is not None:
                    known[index] = why
        return group_causes((index, *known[index]) for index in failed if index in known)

    def _of(self, record: BatchRecord) -> dict[int, tuple[str, str]]:
        key = record.reference.job_id, record.try_number
        known = self._known.setdefault(key, {})
        self._known.move_to_end(key)
        while len(self._known) > _MOST_BATCHES:
            self._known.popitem(last=False)
        return known


def _why(batch: StoredBatch, index: int) -> tuple[str, str] | None:
    """Return text and class of an input's failure; None if nobody knows them yet."""
    try:
        seen = batch.observe(index)
    except (KineticError, OSError):
        return None
    if seen.status is not JobStatus.FAILED:
        return None
    return _text(seen), "" if seen.failure is None else str(seen.failure.failure_class)


def _text(seen: JobObservation) -> str:
    return readable(seen.message).partition("\n")[0]


def board(
    instance: Instance,
    record: BatchRecord,
    home: Backend | str,
    offset: int,
    failures: Failures,
    live: LiveBatch | None = None,
) -> dict[str, Any]:
    """Return the row of a task instance with its batch, and the squares from `offset` on.

    `home` is the batch's backend, or the reason why it is unknown; `live` says how the batch is now.
    """
    shown: dict[str, Any] = {
        "offset": offset,
        "squares": "",
        "counts": {},
        "causes": [],
        "namespace": record.reference.namespace,
        "image": record.reference.image_uri,
        "environment": environment(home),
        "troubles": [],
    }
    shown |= row(instance, live)
    if record.failed is not None:
        return shown | _ended(record, offset)
    try:
        return shown | _alive(record, home, offset, failures)
    except (KineticError, OSError) as error:
        return shown | {"troubles": [str(error)]}


def without_texts(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return a board for somebody who may not read the task's log: without texts of the user's exceptions."""
    causes = [each | {"text": without_text(each["reason"]) or each["text"]} for each in shown["causes"]]
    return {**shown, "causes": causes}


def _ended(record: BatchRecord, offset: int) -> dict[str, Any]:
    inputs = range(offset, min(record.size, offset + LARGEST))
    missing, failed = record.missing_in(inputs), record.failed or 0
    letters = (LETTERS[JobStatus.FAILED if index in missing else JobStatus.SUCCEEDED] for index in inputs)
    counts: dict[JobStatus | None, int] = {JobStatus.SUCCEEDED: max(record.size - failed, 0)}
    counts[JobStatus.FAILED] = failed
    return {"squares": "".join(letters), "counts": _counted(counts), "causes": _told(record.causes)}


def _alive(record: BatchRecord, home: Backend | str, offset: int, failures: Failures) -> dict[str, Any]:
    if isinstance(home, str):
        return {"troubles": [home]}
    if record.size > _MOST_INPUTS:
        text = f"{record.size} inputs are too many to look at while they run; see the task's log"
        return {"troubles": [text]}
    found = snapshot(home, record.reference, record.size)
    statuses = {index: status for index, status in found.items() if index < record.size}
    inputs = range(offset, min(record.size, offset + LARGEST))
    letters = (LETTERS[statuses[index]] if index in statuses else NOT_BEGUN for index in inputs)
    return {
        "squares": "".join(letters),
        "counts": _counted({**Counter(statuses.values()), None: record.size - len(statuses)}),
        "causes": _told(failures.causes(home, record, statuses)),
    }


def _counted(counts: Mapping[JobStatus | None, int]) -> dict[str, int]:
    """Return the number of inputs by letter, without those that no input has."""
    letters = {status: NOT_BEGUN if status is None else LETTERS[status] for status in counts}
    return {letters[status]: number for status, number in counts.items() if number}


def _told(causes: tuple[Cause, ...]) -> list[dict[str, Any]]:
    return [asdict(each) | {"inputs": list(each.inputs)} for each in causes]


def input_detail(record: BatchRecord, index: int, home: Backend | str) -> dict[str, Any]:
    """Return one input in detail: status, reason, attempts, failure, the end of its log, its outputs."""
    shown: dict[str, Any] = {
        "index": index,
        "job_id": f"{record.reference.job_id}-{index}",
        "status": "UNKNOWN",
        "reason": "",
        "message": "",
        "attempts": 0,
        "environment": environment(home),
        "traceback": "",
        "advice": "",
        "log": [],
        "silence": UNREAD,
        "outputs": [],
        "troubles": [],
    }
    if isinstance(home, str):
        return shown | {"troubles": [home]}
    try:
        batch = StoredBatch(home, record.reference)
        reference = batch.reference(index)
        shown |= _seen(batch.observe(index))
        shown["log"] = tail(home, reference, max(shown["attempts"] - 1, 0))
        if not shown["log"]:
            shown["silence"] = silence(home, reference, shown["status"], shown["reason"])
        shown["outputs"] = outputs(home, reference)
    except (JobNotFound, ObjectNotFound):
        shown |= {"status": "NO_JOB", "message": "it has not begun, or nothing of it is stored any more"}
        shown["silence"] = NO_LINE
    except (KineticError, OSError) as error:
        shown["troubles"] = [str(error)]
    return shown


def _seen(seen: JobObservation) -> dict[str, Any]:
    failure = seen.failure
    shown = {
        "status": seen.status.value,
        "reason": "" if seen.status in (JobStatus.RUNNING, JobStatus.SUCCEEDED) else seen.reason,
        "message": readable(seen.message),
        "attempts": seen.attempt + 1,
    }
    if failure is not None:
        trace = readable(failure.traceback or "")
        shown |= {"reason": str(failure.failure_class), "traceback": trace, "advice": advice(failure)}
    return shown
