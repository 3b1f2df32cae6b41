"""Limits of a job that its Job cannot enforce: its budget, and the timeout of a batch's input or of pods of a
LeaderWorkerSet.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from . import object_names, wire
from .attempt import Job
from .notes import ForgedNote, encode_note, read_note
from .outcome import Outcome, failed
from .store import MissingObject, Store, StoreUnavailable

_NOTE_SECONDS = 30.0
_NOTE_SHARE = 0.05
"""Share of the budget after which spending is noted: a small budget is noted more often."""


class Spending:
    """Spending of this host: earlier attempts from their notes, this one since `started`."""

    def __init__(
        self, job: Job, store: Store, started: float, clock: Callable[[], float] = time.time
    ) -> None:
        """Read the notes of earlier attempts. Raises StoreUnavailable if they cannot be read."""
        assert job.budget is not None  # noqa: S101  only then there is something to spend
        self._job, self._store, self._budget = job, store, job.budget
        self._started, self._clock = started, clock
        self._earlier = sum(_noted(job, store, attempt) for attempt in range(job.attempt))
        self._pause = min(_NOTE_SECONDS, max(1.0, _NOTE_SHARE * self._budget.seconds))
        self._next = started + self._pause
        self._alive_at = started

    @property
    def over_at(self) -> float:
        """Return when the budget is used up, in Unix seconds."""
        return self._started + self._budget.seconds - self._earlier

    def tick(self) -> None:
        """Note the spending if it is time to, while user code is alive."""
        self._alive_at = self._clock()
        if self._alive_at >= self._next:
            with self._store.hurried():
                self.note()

    def note(self) -> None:
        """Note for how long this attempt has held its accelerator, for later attempts."""
        now = self._clock()
        self._next = now + self._pause
        name = object_names.spending(self._job.job_id, self._job.attempt, self._job.host)
        try:
            note = encode_note(self._job.outcome_key, name, {"seconds": now - self._started})
            self._store.replace(name, note)
        except StoreUnavailable as exc:
            sys.stderr.write(f"kinetic: what the attempt has cost is not noted: {exc}\n")

    def outcome(self) -> Outcome:
        """Return the outcome of a job that has used up its budget.

        The cost is that of user code: the last lines of its log may wait for the store long after its end.
        """
        budget, seconds = self._budget, self._earlier + self._alive_at - self._started
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
        return float(read_note(job, store, object_names.spending(job.job_id, attempt, job.host))["seconds"])
    except MissingObject:
        return 0.0  # it died before it could say so
    except ForgedNote as exc:
        sys.stderr.write(f"kinetic: {exc}; what attempt {attempt + 1} has cost is not known\n")
        return 0.0


class Deadline:
    """Watcher that stops the child when its job's timeout, counted from the first attempt, or its budget is
    over.
    """

    def __init__(self, job: Job, store: Store, started: float) -> None:
        """Start to count. `started`: when this attempt began, in Unix seconds."""
        self._timeout, self._grace, self._on_worker = job.timeout, job.grace, job.on_worker
        self._time_at = float("inf") if job.timeout is None else _began(job, store) + job.timeout
        self._spending = None if job.budget is None else Spending(job, store, started)
        self._has_passed = False

    @property
    def over_at(self) -> float:
        """Return when the job's timeout or budget is over, in Unix seconds."""
        return min(self._time_at, self._budget_at)

    @property
    def is_over(self) -> bool:
        """Return whether the job's timeout or budget is over."""
        return time.time() >= self.over_at

    def look(self, child: int, terminated: bool) -> float | None:
        """Return the child's grace in seconds, once, when the time is over."""
        del child
        if self._spending is not None:
            self._spending.tick()
        if self._has_passed or terminated or not self.is_over:
            return None
        self._has_passed = True
        return self._grace

    def close(self) -> Outcome | None:
        """Return the job's outcome if this watcher has stopped it, after user code ended without a value."""
        if self._has_passed:
            return self.outcome()
        if self._spending is not None:
            self._spending.note()
        return None

    def outcome(self) -> Outcome:
        """Return the outcome of a job that had no value in time."""
        if self._spending is not None and self._budget_at <= self._time_at:
            return self._spending.outcome()
        since = "it was submitted" if self._on_worker else "it first started"
        text = f"it had not ended {self._timeout:g} s after {since}"
        return failed(wire.FailureClass.DEADLINE, text, "execute", retry=False)

    @property
    def _budget_at(self) -> float:
        return float("inf") if self._spending is None else self._spending.over_at


def deadline_of(job: Job, store: Store, started: float) -> Deadline | None:
    """Return the deadline that this attempt must enforce itself; None if there is none."""
    if job.timeout is None and job.budget is None:
        return None
    return Deadline(job, store, started)


def _began(job: Job, store: Store) -> float:
    """Return when the first attempt began, by this machine's clock: another machine's may be minutes off.

    For a job that was suspended, the first attempt since, as Kubernetes counts the time of a Job.
    """
    now = time.time()
    if job.on_worker:  # the time of a call counts from its submission, as that of a Job does
        return now - store.age(object_names.handle(job.job_id))
    if job.attempt == job.since:
        return now
    try:
        return now - store.age(object_names.claim(job.job_id, job.since, job.host))
    except MissingObject:
        return now  # the first attempt died before it could claim the job
