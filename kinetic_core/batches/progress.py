"""Board of a batch: the state of its inputs, which submitters and watches write and callers wait on."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TypeVar

from kinetic_core.backends.kubernetes.names import DROPPED
from kinetic_core.errors import ClusterError, MalformedObject, StoreError, WaitTimeout
from kinetic_core.job import JobObservation, JobStatus
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.observe import watch
from kinetic_core.jobs.watch import Subscription
from kinetic_core.notebook import NOT_BEGUN, SUBMITTED
from kinetic_core.retry import Refusals
from kinetic_core.terminal import FEW, SHOW_SECONDS, BatchProgress, Counts

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


def foremost(seen: Iterable[JobObservation]) -> JobObservation | None:
    """Return a job that runs or, while none runs, the one that has waited longest; None if none lives."""
    return min(
        (each for each in seen if not each.is_terminal),
        key=lambda each: (each.status is not JobStatus.RUNNING, each.created_at or math.inf),
        default=None,
    )


class Board:
    """State of `size` inputs. Every field is read and written under `changed`.

    `ended` maps the index of a finished job to its last observation, in the order in which they ended.
    An input without a job is in `submission_failures`, `dropped` (never launched) or `unavailable`
    (launched, but its stored objects are gone).

    `never_begun` has the jobs of those dropped inputs that were submitted: they are stored.

    `living` has the last observation of each job that runs one input and has not ended, by the input's index;
    `shared` that of each job that runs many, a chunk or a lane, by its own number.

    Jobs are reconciled if the board `follows` them: from the start, or once somebody waits.

    `trouble` is why nobody learns how the jobs end; whoever waits is told.
    """

    def __init__(self, size: int, *, follows: bool = True) -> None:
        self.size = size
        self.follows = follows
        self.jobs: list[JobHandle | None] = [None] * size
        self.ended: dict[int, JobObservation] = {}
        self.living: dict[int, JobObservation] = {}
        self.shared: dict[int, JobObservation] = {}
        self.submission_failures: dict[int, Exception] = {}
        self.dropped: set[int] = set()
        self.never_begun: dict[int, JobHandle] = {}
        self.unavailable: dict[int, str] = {}
        self.error: BaseException | None = None
        self.trouble: Exception | None = None
        self._told = 0
        self.stopping = False
        self.cancelled = False
        self.complete = False
        self.changed = threading.Condition()
        self._subscriptions: dict[int, Subscription] = {}
        self._on_follow: list[Callable[[], None]] = []
        self._on_close: list[Callable[[], None]] = []

    def states(self) -> list[str]:
        """Return a word for each input: its status if it has ended, `submitted`, or `not submitted`."""
        ended = {
            **{index: seen.status for index, seen in self.ended.items()},
            **dict.fromkeys(self.submission_failures, JobStatus.FAILED),
            **dict.fromkeys(self.dropped, JobStatus.CANCELLED),
            **dict.fromkeys(self.unavailable, JobStatus.NOT_FOUND),
        }
        return [
            ended[index].value.lower() if index in ended else SUBMITTED if job is not None else NOT_BEGUN
            for index, job in enumerate(self.jobs)
        ]

    def add(self, index: int, handle: JobHandle) -> None:
        """Add a submitted job and watch it."""
        with self.changed:
            self.jobs[index] = handle
            self.changed.notify_all()
        subscription = watch(
            handle.place,
            handle,
            lambda observation: self._observed(index, observation),
            self.tell,
            follows=self.follows,
        )
        with self.changed:
            self._subscriptions[index] = subscription
            over = index in self.ended or index in self.dropped
            follows = self.follows
        if over:
            subscription.close()
        elif follows:
            subscription.follow()

    def on_follow(self, action: Callable[[], None]) -> None:
        """Call `action` when the board begins to follow its jobs; at once if it follows them already."""
        with self.changed:
            self._on_follow.append(action)
            follows = self.follows
        if follows:
            action()

    def follow(self) -> None:
        """Have the jobs reconciled from now on."""
        with self.changed:
            if self.follows:
                return
            self.follows = True
            actions = [*(each.follow for each in self._subscriptions.values()), *self._on_follow]
        for action in actions:
            action()

    def on_close(self, action: Callable[[], None]) -> None:
        """Call `action` when nobody wants the board any more."""
        with self.changed:
            self._on_close.append(action)

    def close(self) -> None:
        """Observe nothing more. The jobs go on."""
        with self.changed:
            self.stopping = True
            actions = [*(each.close for each in self._subscriptions.values()), *self._on_close]
            self._subscriptions.clear()
            self.changed.notify_all()
        for action in actions:
            action()

    def refuse(self, index: int, error: Exception) -> None:
        """Record why an input could not be submitted."""
        with self.changed:
            self.submission_failures[index] = error
            self.changed.notify_all()

    def fill(self, jobs: Sequence[JobHandle | None]) -> None:
        """Set all submitted jobs at once, which another watch observes."""
        with self.changed:
            self.jobs = list(jobs)
            self.changed.notify_all()

    def end(self, ended: Mapping[int, JobObservation], dropped: Iterable[int]) -> None:
        """Record inputs that have ended, and inputs that were dropped."""
        with self.changed:
            self.ended |= {index: ended[index] for index in sorted(ended) if index not in self.ended}
            for index in dropped:
                self.jobs[index] = None
            self.changed.notify_all()

    def drop(self, indexes: Iterable[int]) -> None:
        """Record submitted inputs that will never be launched, and observe them no longer."""
        with self.changed:
            known = (i for i in indexes if i < self.size and i not in self.ended)
            dropped = {i for i in known if self.jobs[i] is not None}
            self.dropped |= dropped
            for index in dropped:
                self._forget(index)
                self.living.pop(index, None)
            subscriptions = [self._subscriptions.pop(i) for i in dropped if i in self._subscriptions]
            self.changed.notify_all()
        for subscription in subscriptions:
            subscription.close()

    def has_none(self, index: int) -> bool:
        """Return whether it is known that an input has no job, and why."""
        with self.changed:
            return index in self.submission_failures or index in self.dropped

    def lose(self, unavailable: Mapping[int, str]) -> None:
        """Record inputs, with their job ids, whose stored objects are gone."""
        with self.changed:
            self.unavailable |= unavailable
            for index in unavailable:
                self.jobs[index] = None
            self.changed.notify_all()

    def active(self) -> int:
        """Count the submitted jobs that have not ended. Call it under `changed`."""
        return sum(job is not None for job in self.jobs) - len(self.ended)

    def finish(self, error: BaseException | None = None) -> None:
        """End the submission: inputs without a job will never have one."""
        with self.changed:
            self.error = error
            known = set(self.submission_failures) | set(self.unavailable)
            self.dropped = {i for i, job in enumerate(self.jobs) if job is None and i not in known}
            self.complete = True
            self.changed.notify_all()

    def tell(self, trouble: Exception) -> None:
        """Tell whoever waits why nobody learns how the jobs end."""
        with self.changed:
            self.trouble = trouble
            self._told += 1
            self.changed.notify_all()

    def stop(self, *, cancel: bool) -> None:
        """Start no further job. With `cancel`, a job that is just being launched is cancelled."""
        with self.changed:
            self.stopping = True
            self.cancelled = self.cancelled or cancel
            self.changed.notify_all()

    def note(self, index: int, seen: JobObservation) -> None:
        """Record how the job of one input is now."""
        self._note(self.living, index, seen)

    def note_shared(self, number: int, seen: JobObservation) -> None:
        """Record how a job that runs many inputs, a chunk or a lane, is now."""
        self._note(self.shared, number, seen)

    def _note(self, known: dict[int, JobObservation], key: int, seen: JobObservation) -> None:
        with self.changed:
            if seen.is_terminal:
                known.pop(key, None)
            else:
                known[key] = seen

    def state(self) -> JobObservation | None:
        """Return how a job that runs is or, while none runs, the one that has waited longest.

        None while no job is known to live. Call it under `changed`.
        """
        return foremost((*self.living.values(), *self.shared.values()))

    def is_over(self) -> bool:
        """Return whether every input has ended. Call it under `changed`."""
        return self.complete and self.active() == 0

    def counts(self) -> Counts:
        """Count what has become of the inputs. Call it under `changed`."""
        now = time.time()
        took = {
            index: (seen.finished_at or now) - seen.started_at
            for index, seen in (*self.ended.items(), *self.living.items())
            if seen.started_at is not None
            if seen.finished_at is not None or not seen.is_terminal
        }
        each = self.states()
        states, state = Counter(each), self.state()
        left = [index for index, word in enumerate(each) if word in (SUBMITTED, NOT_BEGUN)]
        cancelled = states[JobStatus.CANCELLED.value.lower()]
        done = self.size - states[SUBMITTED] - states[NOT_BEGUN]
        return Counts(
            self.size,
            done,
            done - cancelled - states[JobStatus.SUCCEEDED.value.lower()],
            sum(seen.attempt > 0 for seen in self.ended.values()),
            max(took.items(), key=itemgetter(1), default=None),
            cancelled,
            sum(seen.status is JobStatus.RUNNING for seen in (*self.living.values(), *self.shared.values())),
            state if state is not None and state.status is JobStatus.PENDING else None,
            tuple(left) if len(left) <= FEW and len(left) < self.size else (),
        )

    def wait_for(
        self,
        condition: Callable[[], T | None],
        deadline: float | None,
        what: str,
        shown: BatchProgress | None = None,
    ) -> T:
        """Follow the jobs and block until `condition()`, called under `changed`, is neither None nor False.

        Returns the condition's value. `shown` shows the batch's progress meanwhile. Raises WaitTimeout at the
        deadline, and the `trouble` that keeps everybody from seeing how the jobs end.
        """
        self.follow()
        with self.changed:
            told = self._told  # what has been told before may be over by now, else it is told again
            while True:
                value = condition()
                if value is not None and value is not False:
                    return value
                if self.trouble is not None and (self._told > told or not may_end(self.trouble)):
                    raise self.trouble
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    raise WaitTimeout(f"timed out waiting for {what}; its jobs go on")
                if shown is not None:
                    shown.show(self.counts)
                    remaining = min(SHOW_SECONDS, math.inf if remaining is None else remaining)
                self.changed.wait(remaining)

    def _observed(self, index: int, observation: JobObservation) -> None:
        with self.changed:
            if index in self.dropped:
                return
            self.note(index, observation)
            if not observation.is_terminal:
                return
            if observation.reason == DROPPED:
                self._forget(index)
                self.dropped.add(index)
            else:
                self.ended[index] = observation
            subscription = self._subscriptions.pop(index, None)
            self.changed.notify_all()
        if subscription is not None:
            subscription.close()

    def _forget(self, index: int) -> None:
        if (job := self.jobs[index]) is not None:
            self.never_begun[index], self.jobs[index] = job, None

    def failed(self) -> list[int]:
        """List the indices of jobs that ended without a value. Call it under `changed`."""
        return sorted(i for i, seen in self.ended.items() if seen.status is not JobStatus.SUCCEEDED)


def may_end(trouble: Exception) -> bool:
    """Return whether the cause of a trouble may end while the batch goes on: somebody may end it."""
    return isinstance(trouble, StoreError | ClusterError) and not isinstance(trouble, MalformedObject)


class Look:
    """Repeated look at the inputs of a batch, and the trouble that it meets.

    `what` names the batch in the log.
    """

    def __init__(self, board: Board, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._board, self._what = board, what
        self._refusals = Refusals(clock)

    def went_well(self) -> None:
        """Forget that somebody has refused to answer."""
        self._refusals.end()

    def goes_on_after(self, trouble: Exception) -> bool:
        """Return whether to look again, and tell whoever waits of trouble that does not pass by itself.

        What somebody refuses is told when that goes on, and looked at again: somebody may grant it.
        """
        if not may_end(trouble):
            self._board.tell(trouble)
            return False
        _LOG.warning("cannot look at the inputs of %s, trying again: %s", self._what, trouble)
        if self._refusals.go_on(trouble):
            self._board.tell(trouble)
        return True
