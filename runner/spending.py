"""What a job has cost of its budget: how long its attempts have held the accelerator, at a price it is told.

An attempt holds it from the start of its container: what came before, such as pulling the image, is not seen
here. Each host notes its time for the attempts that follow. Of one that dies without a word, what came after
its last note is not counted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from . import wire
from .job import Job
from .outcome import Outcome, failed
from .store import MissingObject, Store, StoreUnavailable

_NOTE_SECONDS = 30.0
_NOTE_SHARE = 0.05
"""Of the budget: a small one is noted more often."""


class Spending:
    """This host's share of the job's life: earlier attempts from their notes, this one since `started`."""

    def __init__(
        self, job: Job, store: Store, started: float, clock: Callable[[], float] = time.time
    ) -> None:
        """Raises StoreUnavailable if what earlier attempts have cost cannot be read."""
        assert job.budget is not None  # noqa: S101  only then there is something to spend
        self._job, self._store, self._budget = job, store, job.budget
        self._started, self._clock = started, clock
        self._earlier = sum(_noted(job, store, attempt) for attempt in range(job.attempt))
        self._pause = min(_NOTE_SECONDS, max(1.0, _NOTE_SHARE * self._budget.seconds))
        self._next = started + self._pause

    @property
    def over_at(self) -> float:
        """When the budget is used up, in Unix seconds."""
        return self._started + self._budget.seconds - self._earlier

    def tick(self) -> None:
        """Note it, if it is time to."""
        if self._clock() >= self._next:
            with self._store.hurried():
                self.note()

    def note(self) -> None:
        """Note what this attempt has held by now, for those that follow."""
        now = self._clock()
        self._next = now + self._pause
        name = wire.spending_object(self._job.job_id, self._job.attempt, self._job.host)
        try:
            self._store.replace(name, json.dumps({"seconds": now - self._started}).encode())
        except StoreUnavailable as exc:
            sys.stderr.write(f"kinetic: what the attempt has cost is not noted: {exc}\n")

    def outcome(self) -> Outcome:
        """How a job ends that has used its budget up."""
        budget, seconds = self._budget, self._earlier + self._clock() - self._started
        spent = f"{seconds * budget.hourly / 3600:.4g} {budget.currency}"
        attempts = f", in {self._job.attempt + 1} attempts" if self._job.attempt else ""
        text = (
            f"it has cost {spent} of budget={budget.amount:g}: {seconds:.0f} s of {self._job.accelerator} "
            f"at {budget.hourly:g} {budget.currency} an hour{attempts}. Submit it with a larger budget; with "
            "checkpoints it goes on where it was"
        )
        return failed(wire.FailureClass.BUDGET, text, "execute", retry=False)


def _noted(job: Job, store: Store, attempt: int) -> float:
    try:
        return float(json.loads(store.read(wire.spending_object(job.job_id, attempt, job.host)))["seconds"])
    except MissingObject:
        return 0.0  # it died before it could say so
