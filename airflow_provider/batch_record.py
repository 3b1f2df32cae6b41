"""Report of a task's batch to Airflow: its record, an XCom that the page reads, and why inputs failed."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from airflow_provider.access import Access
from airflow_provider.batch_of_task import may_own
from airflow_provider.job_of_task import TaskIdentity
from airflow_provider.records import is_seconds, is_sound, push, readable
from kinetic_core._runner.indexes import format_indexes
from kinetic_core._runner.wire import FailureClass, is_encodable
from kinetic_core.backends.base import Backend
from kinetic_core.batches.outcomes import SUCCEEDED, StoredBatch
from kinetic_core.batches.snapshot import BatchTimes, batch_times
from kinetic_core.errors import JobCancelled, JobError, ProtocolMismatch
from kinetic_core.job import JobReference
from kinetic_core.jobs.inputs import MOST_INPUTS

KEY = "kinetic_batch"
"""The XCom's key."""
_BATCH_ID = re.compile(r"grp-[0-9a-f]{16}")
_INDEXES = re.compile(r"(\d{1,8}(-\d{1,8})?(,\d{1,8}(-\d{1,8})?)*)?")
SAMPLE = 100
"""Failed inputs whose outcomes are read, to say why."""
TIMEOUT = "execution_timeout has passed"
MARKED = "somebody has ended the task"
"""What cancels a batch."""
_SHOWN = 10
"""Failed inputs that are named in the log; causes that a record has, and inputs that each names."""
_LONGEST = 300


@dataclass(frozen=True)
class Cause:
    """Cause for which `count` inputs have no value. `reason`: class of the failure; `inputs`: the first."""

    text: str
    reason: str
    count: int
    inputs: tuple[int, ...]

    @classmethod
    def from_value(cls, value: Any) -> Self | None:
        """Decode plain JSON; None if it is no cause."""
        try:
            found = cls(**{**value, "inputs": tuple(value["inputs"])[:_SHOWN]})
        except (TypeError, KeyError):
            return None
        texts, numbers = (found.text, found.reason), (found.count, *found.inputs)
        is_sound = all(type(each) is str and len(each) <= _LONGEST and is_encodable(each) for each in texts)
        return found if is_sound and all(type(each) is int for each in numbers) else None


@dataclass(frozen=True)
class BatchRecord:
    """Record of a task instance's batch, and how many of its inputs failed once it has ended.

    `failed` is None while the batch goes on; `missing` are the indexes of the inputs without a value, as
    Kubernetes writes sets of numbers; `causes` are those of the first of them. `ended_by` says what has
    cancelled the batch, "" if nothing has. `run_seconds`, `seconds` and `waited` are its `BatchTimes`.
    """

    reference: JobReference
    size: int
    run_began: str
    try_number: int
    first_try: int
    conn_id: str = ""
    failed: int | None = None
    missing: str = ""
    causes: tuple[Cause, ...] = ()
    gcp_conn_id: str = ""
    ended_by: str = ""
    run_seconds: float | None = None
    seconds: float | None = None
    waited: float | None = None

    @property
    def access(self) -> Access:
        """Return the connections with which the page reads the batch, as `JobRecord.access`."""
        return Access(self.conn_id, self.gcp_conn_id)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON for XCom, without values or secrets."""
        causes = [asdict(each) | {"inputs": list(each.inputs)} for each in self.causes]
        return {**vars(self), "reference": self.reference.to_dict(), "causes": causes}

    @classmethod
    def from_value(cls, value: Any) -> Self | None:
        """Decode the value of an XCom; None if it is no record of this version."""
        try:
            told = {"causes": [], **value}
            causes = [Cause.from_value(each) for each in told["causes"][:_SHOWN]]
            reference = JobReference.from_dict(told["reference"])
            found = cls(**{**told, "reference": reference, "causes": tuple(filter(None, causes))})
        except (TypeError, KeyError, ProtocolMismatch):
            return None
        numbers = (found.size, found.try_number, found.first_try, found.failed or 0)
        texts = (found.run_began, found.conn_id, found.gcp_conn_id, found.missing, found.ended_by)
        typed = all(type(each) is int for each in numbers)
        typed = typed and all(type(each) is str and is_encodable(each) for each in texts)
        times = (found.run_seconds, found.seconds, found.waited)
        typed = typed and all(each is None or is_seconds(each) for each in times)
        if not typed or not 0 <= found.size <= MOST_INPUTS or not _INDEXES.fullmatch(found.missing):
            return None
        is_whole = reference.group_id == reference.job_id  # else its inputs would be those of another batch
        return found if is_whole and is_sound(reference, found.access, _BATCH_ID) else None

    def is_of(self, dag_id: str, run_id: str, task_id: str, map_index: int) -> bool:
        """Return whether this task instance can have started the batch."""
        identity = TaskIdentity(
            dag_id, run_id, self.run_began, task_id, map_index, self.try_number, self.first_try
        )
        return may_own(identity, self.reference.job_id, self.reference.spec_digest)

    def missing_in(self, inputs: range) -> set[int]:
        """Return which of these inputs have no value; takes no memory for others that the record names."""
        found: set[int] = set()
        for run in filter(None, self.missing.split(",")):
            first, _, last = run.partition("-")
            found.update(range(max(int(first), inputs.start), min(int(last or first) + 1, inputs.stop)))
        return found


def tell(
    context: Mapping[str, Any],
    identity: TaskIdentity,
    reference: JobReference,
    size: int,
    access: Access,
    *,
    failed: Collection[int] | None = None,
    errors: Mapping[int, BaseException] | None = None,
    times: BatchTimes | None = None,
) -> None:
    """Report the task's batch to Airflow.

    `failed`: the inputs without a value, once the batch has ended; `errors`: why, for the first of them;
    `times`: its times.
    """
    record = BatchRecord(
        reference,
        size,
        identity.run_began,
        identity.try_number,
        identity.first_try,
        conn_id=access.conn_id,
        gcp_conn_id=access.gcp_conn_id,
    )
    if failed is not None:
        record = _ended(record, failed, errors or {}, times)
    push(context["ti"], KEY, record.to_dict())


def record_of_cancelled(
    value: object, backend: Backend, reference: JobReference, try_number: int, ended_by: str
) -> BatchRecord | None:
    """Return the record of a batch that `ended_by` has cancelled, with how its inputs have ended.

    `value` is that of the record's XCom. None if it is of another batch or try, or has an end. Raises
    KineticError.
    """
    record = BatchRecord.from_value(value)
    if record is None or record.failed is not None:
        return None
    if (record.reference.job_id, record.try_number) != (reference.job_id, try_number):
        return None
    batch = StoredBatch(backend, reference)
    states = batch.states()
    failed = [index for index in range(record.size) if states.get(index) != SUCCEEDED]
    errors = batch.failures(failed[:SAMPLE])
    now = time.time()
    times = batch_times(backend.store, reference, record.size, now, is_over=False)  # some have not begun
    return replace(_ended(record, failed, errors, times), ended_by=ended_by)


def _ended(
    record: BatchRecord,
    failed: Collection[int],
    errors: Mapping[int, BaseException],
    times: BatchTimes | None,
) -> BatchRecord:
    why = causes(sorted(failed), errors)
    ended = replace(record, failed=len(failed), missing=format_indexes(failed), causes=why)
    return ended if times is None else replace(ended, **times._asdict())


def causes(failed: Iterable[int], errors: Mapping[int, BaseException]) -> tuple[Cause, ...]:
    """Group the inputs whose error is known by their cause; return the commonest ten causes."""
    return group_causes(
        (index, _cause(errors[index]), _class(errors[index])) for index in failed if index in errors
    )


def group_causes(failures: Iterable[tuple[int, str, str]]) -> tuple[Cause, ...]:
    """Group inputs, given with text and class of their failure; return the commonest ten causes."""
    found: dict[tuple[str, str], list[int]] = {}
    for index, text, reason in failures:
        found.setdefault((text[:_LONGEST], reason), []).append(index)
    commonest = sorted(found.items(), key=lambda each: -len(each[1]))[:_SHOWN]
    return tuple(
        Cause(text, reason, len(inputs), tuple(inputs[:_SHOWN])) for (text, reason), inputs in commonest
    )


def failure_lines(failed: Sequence[int], errors: Mapping[int, BaseException]) -> list[str]:
    """Return log lines that say which inputs have no value and why: the first ten, grouped by cause.

    `errors`: why the first of them failed, by index.
    """
    named, lines = 0, []
    for cause in causes(failed, errors):
        shown = cause.inputs[: max(_SHOWN - named, 0)]
        named += len(shown)
        where = f"inputs {', '.join(map(str, shown))}" + (" ..." if cause.count > len(shown) else "")
        lines.append(f"{cause.count} x {cause.text}" + (f" ({where})" if shown else ""))
    if len(failed) > len(errors):
        lines.append(
            f"and {len(failed) - len(errors)} more inputs without a value, of which the first were read"
        )
    for index in list(errors)[:1]:
        notes = readable("\n".join(getattr(errors[index], "__notes__", ())))
        if notes:
            lines.append(f"input {index}: {notes}")
    return lines


def first_failure(failed: Sequence[int], errors: Mapping[int, BaseException]) -> str:
    """Return the first input without a value, and why."""
    index = failed[0]
    return f"input {index}: {_cause(errors[index])}"


def _cause(error: BaseException) -> str:
    """Return what inputs that failed alike have in common: not the text of a JobError, which has an id."""
    failure = error.failure if isinstance(error, JobError) else None
    text = readable(str(error) if failure is None else failure.message).partition("\n")[0]
    return f"{type(error).__name__}: {text[:_LONGEST]}"


def _class(error: BaseException) -> str:
    """Return the class of a failure; an error that is not of a job may quote what user code has raised."""
    if isinstance(error, JobCancelled):
        return FailureClass.CANCELLED
    failure = error.failure if isinstance(error, JobError) else None
    return FailureClass.USER_ERROR if failure is None else str(failure.failure_class)
