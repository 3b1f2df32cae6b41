"""The time a job may take whose Job cannot end it: an input of a batch, or pods of a LeaderWorkerSet."""

from __future__ import annotations

import json
import time

from . import wire
from .job import Job
from .outcome import Outcome, failed
from .store import Store


class Deadline:
    """As `watch.Company`: stops the child when its job has had its time, counted from its first attempt."""

    def __init__(self, job: Job, store: Store) -> None:
        assert job.timeout is not None  # noqa: S101  only then there is one
        self._timeout, self._grace = job.timeout, job.grace
        self._at = _began(job, store) + job.timeout
        self.has_passed = False

    @property
    def is_over(self) -> bool:
        """Whether the job has had its time."""
        return time.time() >= self._at

    def look(self, child: int, terminated: bool) -> float | None:
        """The child's grace, once."""
        del child
        if self.has_passed or terminated or not self.is_over:
            return None
        self.has_passed = True
        return self._grace

    def outcome(self) -> Outcome:
        """How a job ends that had no value in time."""
        text = f"it had not ended {self._timeout:g} s after it first started"
        return failed(wire.FailureClass.DEADLINE, text, "execute", retry=False)


def _began(job: Job, store: Store) -> float:
    if job.attempt > 0:
        try:
            return float(json.loads(store.read(wire.claim_object(job.job_id, 0, job.host)))["at"])
        except LookupError:
            return time.time()  # the first attempt died before it could say so
    return time.time()
