"""Which job belongs to which task instance: ids that any process computes alike, before anything runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

_REMEMBERED_TRIES = 20


@dataclass(frozen=True)
class TaskIdentity:
    """One try of one task instance.

    `run_began` tells a DAG run from an earlier one that had the same id and was deleted. `generation` is
    Airflow's `max_tries`: an automatic retry leaves it, a person who clears the task raises it.
    """

    dag_id: str
    run_id: str
    run_began: str
    task_id: str
    map_index: int
    generation: int
    try_number: int

    @classmethod
    def of(cls, context: Any) -> Self:
        """From the context of a running task."""
        ti = context["ti"]
        began: datetime | None = getattr(context["dag_run"], "start_date", None)
        return cls(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            run_began="" if began is None else began.isoformat(),
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            generation=ti.max_tries,
            try_number=ti.try_number,
        )

    def job_id(self, spec_digest: str = "") -> str:
        """The id of the job this try starts.

        `spec_digest` makes another id for the rare try whose own id is taken by a different call: the
        DAG changed between two legs of one try.
        """
        key = [self.dag_id, self.run_id, self.run_began, self.task_id, self.map_index]
        text = json.dumps([*key, self.generation, self.try_number, spec_digest])
        return "job-" + hashlib.sha256(text.encode()).hexdigest()[:16]

    def siblings(self) -> Iterator[TaskIdentity]:
        """This and the earlier tries of this generation, newest first: whose jobs may be adopted."""
        for number in range(self.try_number, max(self.try_number - _REMEMBERED_TRIES, 0), -1):
            yield replace(self, try_number=number)

    def owns(self, job_id: str, spec_digest: str) -> bool:
        """Whether the job is one that this generation of the task instance can have started."""
        return self.starter(job_id, spec_digest) is not None

    def starter(self, job_id: str, spec_digest: str) -> int | None:
        """The try of this generation that started the job, None if none can have."""
        found = (each for each in self.siblings() if job_id in (each.job_id(), each.job_id(spec_digest)))
        return next((each.try_number for each in found), None)

    def ancestors(self) -> Iterator[TaskIdentity]:
        """The tries of earlier generations, newest first: whose jobs must not go on.

        A try's number never exceeds its generation by more than one.
        """
        for earlier in self.siblings():
            if earlier.try_number < self.try_number:
                for generation in range(self.generation - 1, max(earlier.try_number - 2, -1), -1):
                    yield replace(earlier, generation=generation)
