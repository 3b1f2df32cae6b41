"""What is known of a batch's inputs: one place that submitters and watchers write and callers wait on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from kinetic_core.cluster.names import DROPPED
from kinetic_core.errors import WaitTimeout
from kinetic_core.lifecycle.handle import JobHandle
from kinetic_core.lifecycle.hub import Subscription
from kinetic_core.lifecycle.observing import watch
from kinetic_core.model.job import JobObservation
from kinetic_core.model.states import JobStatus

T = TypeVar("T")


class Board:
    """The state of `size` inputs. Every field is read and written under `changed`.

    `ended` maps the index of a finished job to its last observation, in the order in which they ended.
    An input without a job is in `submission_failures`, `dropped` (never launched) or `unavailable`
    (launched, but what was stored of it is gone).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.jobs: list[JobHandle | None] = [None] * size
        self.ended: dict[int, JobObservation] = {}
        self.submission_failures: dict[int, Exception] = {}
        self.dropped: set[int] = set()
        self.unavailable: dict[int, str] = {}
        self.error: BaseException | None = None
        self.stopping = False
        self.cancelled = False
        self.complete = False
        self.changed = threading.Condition()
        self._subscriptions: dict[int, Subscription] = {}

    def add(self, index: int, handle: JobHandle) -> None:
        """Note a submitted job and watch it."""
        with self.changed:
            self.jobs[index] = handle
            self.changed.notify_all()
        subscription = watch(handle, lambda observation: self._observed(index, observation))
        with self.changed:
            self._subscriptions[index] = subscription
            over = index in self.ended or index in self.dropped
        if over:
            subscription.close()

    def refuse(self, index: int, error: Exception) -> None:
        """Note why an input could not be submitted."""
        with self.changed:
            self.submission_failures[index] = error
            self.changed.notify_all()

    def fill(self, jobs: Sequence[JobHandle | None]) -> None:
        """All jobs that were submitted, at once; somebody else watches them."""
        with self.changed:
            self.jobs = list(jobs)
            self.changed.notify_all()

    def end(self, ended: Mapping[int, JobObservation], dropped: Iterable[int]) -> None:
        """Inputs that have ended, and those that never will have begun."""
        with self.changed:
            self.ended |= {index: ended[index] for index in sorted(ended) if index not in self.ended}
            for index in dropped:
                self.jobs[index] = None
            self.changed.notify_all()

    def lose(self, unavailable: Mapping[int, str]) -> None:
        """Inputs, and their job ids, of which nothing is stored any more."""
        with self.changed:
            self.unavailable |= unavailable
            for index in unavailable:
                self.jobs[index] = None
            self.changed.notify_all()

    def active(self) -> int:
        """How many submitted jobs have not ended. Call it under `changed`."""
        return sum(job is not None for job in self.jobs) - len(self.ended)

    def finish(self, error: BaseException | None = None) -> None:
        """Submission is over; every input without a job by now will never have one."""
        with self.changed:
            self.error = error
            known = set(self.submission_failures) | set(self.unavailable)
            self.dropped = {i for i, job in enumerate(self.jobs) if job is None and i not in known}
            self.complete = True
            self.changed.notify_all()

    def stop(self, *, cancel: bool) -> None:
        """Launch nothing more. With `cancel`, whoever is launching a job just now cancels it."""
        with self.changed:
            self.stopping = True
            self.cancelled = self.cancelled or cancel
            self.changed.notify_all()

    def is_over(self) -> bool:
        """Whether every input has reached its end. Call it under `changed`."""
        return self.complete and self.active() == 0

    def wait_for(self, condition: Callable[[], T | None], deadline: float | None, what: str) -> T:
        """Block until `condition()`, evaluated under `changed`, is neither None nor False; its value."""
        with self.changed:
            while True:
                value = condition()
                if value is not None and value is not False:
                    return value
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    raise WaitTimeout(f"{what} was not done in time; the jobs go on")
                self.changed.wait(remaining)

    def _observed(self, index: int, observation: JobObservation) -> None:
        if not observation.is_terminal:
            return
        with self.changed:
            if observation.reason == DROPPED:
                self.jobs[index] = None
                self.dropped.add(index)
            else:
                self.ended[index] = observation
            subscription = self._subscriptions.pop(index, None)
            self.changed.notify_all()
        if subscription is not None:
            subscription.close()

    def failed(self) -> list[int]:
        """Indices of jobs that ended without a value. Call it under `changed`."""
        return sorted(i for i, seen in self.ended.items() if seen.status is not JobStatus.SUCCEEDED)
