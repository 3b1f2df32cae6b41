"""What a task instance tells of its job: an XCom that the page, a dashboard or a person reads.

Whoever can write XComs could write anything there, so a reader checks that the job is the task's own: its
id is a function of the task instance (see `identity`), which nobody can make another's job id fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Self

from airflow_provider.identity import TaskIdentity
from kinetic_core.errors import ProtocolMismatch
from kinetic_core.lifecycle.explaining import Phase
from kinetic_core.model.job import JobObservation, JobReference
from kinetic_core.model.states import JobStatus

KEY = "kinetic_job"
"""The XCom's key."""
EARLIER_KEY = "kinetic_earlier_jobs"
"""The key of the jobs that the task instance had before this one."""
_JOB_ID = re.compile(r"job-[0-9a-f]{16}")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_CONN_ID = re.compile(r"[\w#!()\-.:/]{0,250}")
"""What Airflow itself allows, but for the backslash; "" for the settings of the machine."""
_LONGEST = 1000
_MOST_PHASES = 100
_MOST_EARLIER = 20


@dataclass(frozen=True)
class JobEnd:
    """How a job ended. `failure_class` is "" for one that succeeded; `attempt` counts from 0."""

    status: JobStatus
    reason: str
    message: str
    failure_class: str
    attempt: int
    phases: tuple[Phase, ...]

    @classmethod
    def of(cls, observation: JobObservation, phases: tuple[Phase, ...]) -> Self:
        """From the final observation."""
        failure = observation.failure
        return cls(
            status=observation.status,
            reason=observation.reason,
            message=observation.message,
            failure_class="" if failure is None else str(failure.failure_class),
            attempt=observation.attempt,
            phases=phases,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, bounded."""
        return asdict(self) | {
            "status": self.status.value,
            "message": self.message[:_LONGEST],
            "phases": [asdict(each) for each in self.phases[-_MOST_PHASES:]],
        }


@dataclass(frozen=True)
class JobRecord:
    """A task instance's job, and how it ended once it has.

    `run_began`, `generation` and `try_number` are those of the identity the job's id was made from.
    `conn_id` names the connection that said where the job runs; "" if the worker's environment did.
    """

    reference: JobReference
    run_began: str
    generation: int
    try_number: int
    end: JobEnd | None = None
    conn_id: str = ""

    @classmethod
    def of(
        cls, identity: TaskIdentity, reference: JobReference, end: JobEnd | None = None, conn_id: str = ""
    ) -> Self:
        """The record of a try's job."""
        return cls(reference, identity.run_began, identity.generation, identity.try_number, end, conn_id)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON for XCom; no value and no secret is in it."""
        return {
            "reference": self.reference.to_dict(),
            "run_began": self.run_began,
            "generation": self.generation,
            "try_number": self.try_number,
            "end": None if self.end is None else self.end.to_dict(),
            "conn_id": self.conn_id,
        }

    @classmethod
    def from_value(cls, value: Any) -> Self | None:
        """Rebuild from what an XCom holds; None for anything that is no record of this version."""
        try:
            reference = JobReference.from_dict(value["reference"])
            end = value["end"]
            record = cls(
                reference=reference,
                run_began=str(value["run_began"]),
                generation=int(value["generation"]),
                try_number=int(value["try_number"]),
                end=None if end is None else _end(end),
                conn_id=str(value.get("conn_id") or ""),
            )
        except (TypeError, ValueError, KeyError, ProtocolMismatch):
            return None
        return record if _is_sound(reference) and _CONN_ID.fullmatch(record.conn_id) else None

    def started_by(self, dag_id: str, run_id: str, task_id: str, map_index: int) -> int | None:
        """The try that started the job; None for one that this task instance cannot have started."""
        identity = TaskIdentity(
            dag_id, run_id, self.run_began, task_id, map_index, self.generation, self.try_number
        )
        return identity.starter(self.reference.job_id, self.reference.spec_digest)


@dataclass(frozen=True)
class EarlierJob:
    """A job of an earlier try of a task instance: what people are told of it; nothing is asked with it."""

    try_number: int
    job_id: str
    status: str
    reason: str
    message: str

    @classmethod
    def of(cls, try_number: int, job_id: str, observation: JobObservation) -> Self:
        """From how it was found."""
        end = JobEnd.of(observation, ())
        return cls(try_number, job_id, end.status.value, end.failure_class or end.reason, end.message)


def earlier_to_value(jobs: Sequence[EarlierJob]) -> list[dict[str, Any]]:
    """Plain JSON for XCom, bounded."""
    return [asdict(each) | {"message": each.message[:_LONGEST]} for each in jobs[:_MOST_EARLIER]]


def earlier_from_value(value: Any) -> tuple[EarlierJob, ...]:
    """Rebuild from what an XCom holds, without what is no such job."""
    listed = value[:_MOST_EARLIER] if isinstance(value, list) else []
    return tuple(found for each in listed if (found := _earlier(each)) is not None)


def _earlier(told: Any) -> EarlierJob | None:
    try:
        found = EarlierJob(**told)
    except TypeError:
        return None
    texts = (found.job_id, found.status, found.reason, found.message)
    sound = isinstance(found.try_number, int) and all(
        isinstance(text, str) and len(text) <= _LONGEST for text in texts
    )
    return found if sound else None


def _end(told: Mapping[str, Any]) -> JobEnd:
    return JobEnd(
        status=JobStatus(told["status"]),
        reason=str(told["reason"]),
        message=str(told["message"]),
        failure_class=str(told["failure_class"]),
        attempt=int(told["attempt"]),
        phases=tuple(
            Phase(str(each["name"]), int(each["attempt"]), float(each["began"]), float(each["seconds"]))
            for each in told["phases"]
        ),
    )


def _is_sound(reference: JobReference) -> bool:
    """Whether it can be used in the names of objects and in requests."""
    texts = [getattr(reference, each.name) for each in fields(reference) if each.type == "str"]
    if not all(isinstance(text, str) for text in texts):
        return False
    try:
        datetime.fromisoformat(reference.created_at)
    except ValueError:
        return False
    named = _JOB_ID.fullmatch(reference.job_id), _NAMESPACE.fullmatch(reference.namespace)
    return None not in named
