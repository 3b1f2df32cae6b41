"""What a job may take that its Job cannot end it for: its budget, or the time of an input of a batch, or of
pods of a LeaderWorkerSet.
"""

from __future__ import annotations

import time

from . import wire
from .job import Job
from .outcome import Outcome, failed
from .spending import Spending
from .store import MissingObject, Store


class Deadline:
    """As `watch.Company`: stops the child when its job has had its time, counted from its first attempt, or
    has cost its budget, whichever comes first.
    """

    def __init__(self, job: Job, store: Store, started: float) -> None:
        """`started`: when this attempt did."""
        self._timeout, self._grace = job.timeout, job.grace
        self._time_at = float("inf") if job.timeout is None else _began(job, store) + job.timeout
        self._spending = None if job.budget is None else Spending(job, store, started)
        self._has_passed = False

    @property
    def is_over(self) -> bool:
        """Whether the job has had its time, or its money's worth."""
        return time.time() >= min(self._time_at, self._budget_at)

    def look(self, child: int, terminated: bool) -> float | None:
        """The child's grace, once."""
        del child
        if self._spending is not None:
            self._spending.tick()
        if self._has_passed or terminated or not self.is_over:
            return None
        self._has_passed = True
        return self._grace

    def close(self) -> Outcome | None:
        """User code has ended here without a value; how the job ends, if it was stopped by this."""
        if self._has_passed:
            return self.outcome()
        if self._spending is not None:
            self._spending.note()
        return None

    def outcome(self) -> Outcome:
        """How a job ends that had no value in time."""
        if self._spending is not None and self._budget_at <= self._time_at:
            return self._spending.outcome()
        text = f"it had not ended {self._timeout:g} s after it first started"
        return failed(wire.FailureClass.DEADLINE, text, "execute", retry=False)

    @property
    def _budget_at(self) -> float:
        return float("inf") if self._spending is None else self._spending.over_at


def deadline_of(job: Job, store: Store, started: float) -> Deadline | None:
    """What ends this attempt from within; None if nothing does."""
    if job.timeout is None and job.budget is None:
        return None
    return Deadline(job, store, started)


def _began(job: Job, store: Store) -> float:
    """When the first attempt did, by this machine's clock; that of another may be minutes off."""
    now = time.time()
    if job.attempt == 0:
        return now
    try:
        return now - store.age(wire.claim_object(job.job_id, 0, job.host))
    except MissingObject:
        return now  # the first attempt died before it could claim the job
