"""Identity of task instances: job ids that any process computes alike, before anything runs.

An id is no secret: whoever knows a DAG's names can compute it. It says which job to look for; whether the
stored job is trusted depends on the cluster's Job, or the signature of its outcome.
"""

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
    """Identity of one try of one task instance.

    `run_began` distinguishes a DAG run from an earlier, deleted one with the same id; Airflow sets it anew
    when a finished run is cleared. `try_number` never repeats within a DAG run, cleared or not. `first_try`
    is the first try since a person cleared the task, and `clear_number` how often tasks of the run were
    cleared, this one or another. `team` is the DAG's team, where Airflow has teams.
    """

    dag_id: str
    run_id: str
    run_began: str
    task_id: str
    map_index: int
    try_number: int
    first_try: int = 1
    clear_number: int = 0
    team: str = ""

    @classmethod
    def of(cls, context: Any, run_began: str | None = None) -> Self:
        """Make the identity from the context of a running task; a later leg passes the first's `run_began`.

        Airflow's `max_tries` is the last try before the task was cleared, plus the retries since then.
        """
        ti, run = context["ti"], context["dag_run"]
        began: datetime | None = getattr(run, "start_date", None)
        if run_began is None:
            run_began = "" if began is None else began.isoformat()
        retries = getattr(getattr(ti, "task", None), "retries", ti.max_tries)
        return cls(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            run_began=run_began,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            try_number=ti.try_number,
            first_try=min(max(ti.max_tries - retries + 1, 1), ti.try_number),
            clear_number=getattr(run, "clear_number", None) or 0,
            team=getattr(run, "team_name", None) or "",
        )

    def job_id(self, spec_digest: str = "") -> str:
        """Return the id of the job this try starts.

        `spec_digest` gives another id for the rare try whose own id belongs to a different call, because the
        DAG changed between two legs of the try.
        """
        key = [self.dag_id, self.run_id, self.run_began, self.task_id, self.map_index]
        text = json.dumps([*key, self.try_number, spec_digest])
        return "job-" + hashlib.sha256(text.encode()).hexdigest()[:16]

    def tries(self) -> Iterator[TaskIdentity]:
        """Yield this try and those before it, newest first."""
        for number in range(self.try_number, max(self.try_number - _REMEMBERED_TRIES, 0), -1):
            yield replace(self, try_number=number)

    def owns(self, job_id: str, spec_digest: str) -> bool:
        """Return whether this try may wait for the job: its own, or one it may have adopted."""
        number = self.starter(job_id, spec_digest)
        return number is not None and self.may_adopt(number)

    def starter(self, job_id: str, spec_digest: str) -> int | None:
        """Return the try of this task instance that started the job, None if no try up to this one did."""
        found = (each for each in self.tries() if job_id in (each.job_id(), each.job_id(spec_digest)))
        return next((each.try_number for each in found), None)

    def may_adopt(self, try_number: int, clear_number: int | None = None) -> bool:
        """Return whether this try may adopt a job of that try: nobody has cleared the task in between.

        That holds if the job's `clear_number`, where known, is still the run's. If another task may have been
        cleared, only `first_try` tells. Retries that were edited without clearing move `first_try` too far:
        then the job is not adopted, and the work begins anew.
        """
        return try_number >= self.first_try or clear_number == self.clear_number
