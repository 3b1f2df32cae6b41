"""`BatchHandle`: many jobs of one function, observed and collected together."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kinetic_core.batches.progress import Board
from kinetic_core.batches.scheduler import Scheduler, in_parallel
from kinetic_core.errors import (
    BatchTimeout,
    InvalidRequest,
    JobCancelled,
    JobNotFound,
    KineticError,
    WaitTimeout,
)
from kinetic_core.job import JobObservation, JobStatus
from kinetic_core.jobs.fallback import remedy
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.notebook import NOT_BEGUN, SUBMITTED, Picture
from kinetic_core.terminal import BatchProgress, Progress, stopping

if TYPE_CHECKING:
    from kinetic_core.jobs.handle import JobHandle


class BatchError(KineticError):
    """Failure of a batch in which some inputs have no value.

    `failures` holds the handles of failed jobs, `partial_results` a list with None where there is no value.
    `submission_failures` maps an input's index to the exception of its submission, `exceptions` to that of
    its job: JobCancelled for an input that was never started because the batch was stopped, JobNotFound for
    one whose stored job is gone.
    """

    def __init__(
        self,
        group_id: str,
        failures: Sequence[JobHandle],
        partial_results: Sequence[Any],
        submission_failures: Mapping[int, Exception] | None = None,
        exceptions: Mapping[int, BaseException] | None = None,
    ) -> None:
        self.group_id = group_id
        self.failures = list(failures)
        self.partial_results = list(partial_results)
        self.submission_failures = dict(submission_failures or {})
        self.exceptions = dict(exceptions or {})
        errors = {**self.submission_failures, **self.exceptions}
        failed = {job.group_index for job in self.failures} | self.submission_failures.keys()
        shown = sorted(errors.items(), key=lambda each: (each[0] not in failed, each[0]))[:5]
        lines = [f"{len(errors)} of {len(self.partial_results)} inputs of {group_id} have no value"]
        lines += [f"  [{index}] {type(error).__name__}: {error}" for index, error in shown]
        if len(errors) > len(shown):
            lines.append(f"  and {len(errors) - len(shown)} more; see .exceptions")
        super().__init__("\n".join(lines))
        for index, error in shown[:1]:
            for note in getattr(error, "__notes__", ()):
                self.add_note(f"[{index}] {note}")


_LOG = logging.getLogger(__name__)
_HEARD_SECONDS = 30.0
_ATTACHED_SECONDS = 3.0
T = TypeVar("T")


@dataclass(frozen=True)
class BatchCounts:
    """Number of a batch's inputs in all, of those that have ended, and of these those without a value.

    `first_failed`: indexes of the first inputs that failed, at most ten. `is_over`: every input has ended.
    `state` is how a job that runs is or, while none runs, the one that has waited longest; None while no job
    is known to live.
    """

    size: int
    ended: int
    failed: int
    first_failed: tuple[int, ...]
    is_over: bool
    state: JobObservation | None


@dataclass(frozen=True)
class _Heard:
    """Board of a batch as this process has heard of its inputs, which is drawn anew while somebody waits."""

    draw: Callable[[Mapping[int, JobStatus]], str]

    def _repr_html_(self) -> str:
        return self.draw({})


class BatchHandle:
    """Handle of one function over many inputs. Made by `run_async_map` and by `attach_batch`."""

    def __init__(
        self, group_id: str, name: str | None, tags: Mapping[str, str], board: Board, scheduler: Scheduler
    ) -> None:
        self.group_id = group_id
        self.name = name
        self.tags = dict(tags)
        self._board = board
        self._scheduler = scheduler
        self._cached_failures: list[JobHandle] | None = None
        self._collected: dict[str, JobHandle] = {}
        self._progress = BatchProgress(picture=Picture(_Heard(self._picture)).draw, remedy=self._remedy)

    @property
    def jobs(self) -> list[JobHandle | None]:
        """Return a list with an entry per input: its job's handle, or None without a job."""
        with self._board.changed:
            return list(self._board.jobs)

    @property
    def submission_failures(self) -> dict[int, Exception]:
        """Return the exceptions of inputs that could not be submitted, by index."""
        with self._board.changed:
            return dict(self._board.submission_failures)

    @property
    def unavailable_children(self) -> dict[int, str]:
        """Return the job ids of inputs whose stored job is gone, by index."""
        with self._board.changed:
            return dict(self._board.unavailable)

    def statuses(self) -> list[tuple[int, JobStatus]]:
        """Return index and status of every submitted job.

        An input that was never started, because its batch was stopped or cancelled first, is CANCELLED.
        """
        told = dict(self._scheduler.statuses(self._board))
        with self._board.changed:
            told |= dict.fromkeys(self._board.dropped, JobStatus.CANCELLED)
        return sorted(told.items())

    def status_counts(self) -> dict[str, int]:
        """Count the inputs in each status, as `statuses` returns them."""
        return dict(Counter(status.value for _, status in self.statuses()))

    def wait(self, *, timeout: float | None = None) -> None:
        """Block until every job has ended. Raises WaitTimeout; the jobs go on."""
        board = self._board
        self._wait_for(board.is_over, _deadline(timeout))
        if board.error is not None:
            raise board.error
        if board.submission_failures:
            _LOG.warning(
                "%s: %d inputs could not be submitted", self.group_id, len(board.submission_failures)
            )

    def as_completed(
        self, *, poll_interval: float = 5.0, timeout: float | None = None
    ) -> Iterator[JobHandle]:
        """Yield handles in the order in which their jobs end, while others are still being submitted.

        A job is yielded once it has succeeded or used up its own retries. `poll_interval` is accepted
        for compatibility: nothing is polled. Raises WaitTimeout.
        """
        del poll_interval
        for index, _ in self._ended(timeout):
            handle = self._board.jobs[index]
            assert handle is not None  # noqa: S101  what ended was submitted
            yield handle

    def results(
        self,
        *,
        timeout: float | None = None,
        ordered: bool = True,
        cleanup: bool = True,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Return the values of all inputs: in input order, or with `ordered=False` in the order they ended.

        With `cleanup` the successful jobs' Kubernetes objects and payloads are removed, in the background.
        Raises BatchError if any input has no value, because it failed or was never started, unless
        `return_exceptions` puts the exception in its place.
        Raises BatchTimeout, a WaitTimeout, with the values so far if not all jobs have ended after `timeout`
        seconds; then nothing is removed, and `results` can be called again.
        """
        outcomes: dict[int, Any] = {}
        try:
            if ordered:
                self.wait(timeout=timeout)
            order = [index for index, _ in self._ended(None if ordered else timeout)]
        except WaitTimeout:
            raise self._out_of_time() from None
        exceptions = self._collect(order, cleanup, outcomes)
        with self._board.changed:
            unsubmitted = dict(self._board.submission_failures)
            self._cached_failures = [
                job for i in sorted(exceptions) if (job := self._board.jobs[i]) is not None
            ]
        exceptions |= self._jobless()
        positions = list(range(self._board.size))
        errors: dict[int, BaseException] = {**exceptions, **unsubmitted}
        if errors and not return_exceptions:
            partial = [outcomes.get(index) for index in positions]
            raise BatchError(self.group_id, self.failures(), partial, unsubmitted, exceptions)
        if not ordered:
            positions = [*order, *sorted(errors.keys() - set(order))]
        return [errors.get(index, outcomes.get(index)) for index in positions]

    def items(self, *, timeout: float | None = None, cleanup: bool = True) -> Iterator[tuple[int, Any]]:
        """Yield `(index, value)` as jobs end, and at last inputs that never had a job.

        The value of an input that has none is its exception, as in `BatchError.exceptions`.
        """
        for index, _ in self._ended(timeout):
            outcomes: dict[int, Any] = {}
            exceptions = self._collect([index], cleanup, outcomes)
            yield index, exceptions.get(index, outcomes.get(index))
        yield from sorted({**self._jobless(), **self.submission_failures}.items())

    def follow(self) -> None:
        """Have what happens to the jobs acted on from now on, as waiting does; returns at once."""
        self._board.follow()

    def progress(self) -> BatchCounts:
        """Count the inputs that have ended, as far as this process knows; asks nobody."""
        board = self._board
        with board.changed:
            failed = board.failed()
            without_job = len(board.submission_failures) + len(board.dropped) + len(board.unavailable)
            return BatchCounts(
                size=board.size,
                ended=len(board.ended) + without_job,
                failed=len(failed) + without_job,
                first_failed=tuple(sorted([*failed, *board.submission_failures])[:10]),
                is_over=board.is_over(),
                state=board.state(),
            )

    def close(self) -> None:
        """Observe the batch no longer in this process. The batch goes on."""
        self._board.close()

    def failures(self) -> list[JobHandle]:
        """Return the handles of jobs that failed by the last `results()` call, else by now."""
        if self._cached_failures is not None:
            return list(self._cached_failures)
        with self._board.changed:
            return [job for i in self._board.failed() if (job := self._board.jobs[i]) is not None]

    def stop(self) -> None:
        """Start no further input; those that run go on. Where all pods exist already, they end at once."""
        self._scheduler.stop()

    def cancel(self) -> None:
        """Start no further job and stop every job that has not ended; return when none of their pods runs."""
        self._board.stop(cancel=True)
        with Progress() as progress:
            progress.cancelling(0, self._board.size)
            self._scheduler.cancel(self._board, progress.cancelling)

    def cleanup(self, *, k8s: bool = True, gcs: bool = True) -> None:
        """Remove the Kubernetes objects (`k8s`) and the stored objects but outputs (`gcs`) of all inputs.

        Raises InvalidRequest while a job of the batch runs: cancel first.
        """
        self._must_be_over()
        with self._board.changed:
            never_begun = list(self._board.never_begun.values())
        begun = [job for job in self.jobs if job is not None]
        self._scheduler.remove([*begun, *never_begun], k8s=k8s, gcs=gcs)

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        with self._board.changed:
            size, counts = self._board.size, Counter(self._board.states())
        unsubmitted, cancelled = counts[NOT_BEGUN], counts[JobStatus.CANCELLED.value.lower()]
        waits = f", {unsubmitted} not submitted" if unsubmitted else ""
        told = f" ({cancelled} cancelled)" if cancelled else ""
        ended = size - unsubmitted - counts[SUBMITTED]
        return f"<batch {self.group_id}{name}: {size} inputs{waits}, {ended} ended{told}>"

    def _repr_html_(self) -> str:
        """Draw the batch as a board of its inputs, as `statuses` tells them, or as this process has heard."""
        try:
            told = self.statuses()
        except KineticError as exc:
            _LOG.info("the board of %s is as this process has heard: %s", self.group_id, exc)
            told = []
        return self._picture(dict(told))

    def _picture(self, told: Mapping[int, JobStatus]) -> str:
        """Draw the board of the inputs; of those that are not `told`, as this process has heard of them."""
        from kinetic_core.notebook import batch_html

        with self._board.changed:
            states = self._board.states()
        for index, status in told.items():
            states[index] = status.value.lower()
        return batch_html(self.group_id, self.name, states)

    def _remedy(self, seen: JobObservation) -> str:
        """Return what gives a job of this batch that waits for a node one; "" if nobody knows."""
        board = self._board
        with board.changed:
            own = [board.jobs[number] for number, each in board.living.items() if each is seen]
            job = next((each for each in (*own, *board.jobs) if each is not None), None)
        return "" if job is None else remedy(self._scheduler.backend, job, seen)

    def _wait_for(self, condition: Callable[[], T | None], deadline: float | None) -> T:
        """Wait on the board; Ctrl-C starts no further job, and prints what goes on and how to stop it."""
        try:
            value = self._board.wait_for(condition, deadline, f"batch {self.group_id}", self._progress)
        except KeyboardInterrupt:
            self._board.stop(cancel=False)
            with self._board.changed:
                living = self._board.active()
            scheduler = self._scheduler
            self._progress.leave(
                f"{self.group_id} {scheduler.when_left(living)}",
                stopping("batch", self.group_id, scheduler.backend.name),
            )
            raise
        finally:
            self._progress.hide()
        with self._board.changed:
            if self._board.is_over():
                self._progress.end(self._board.counts())
        return value

    def _must_be_over(self) -> None:
        """Raise unless the batch has ended: one that runs without a client still needs its objects."""
        # The board hears of an end a moment later: after cancelling, or right after attaching.
        patience = _HEARD_SECONDS if self._board.cancelled else _ATTACHED_SECONDS
        with suppress(WaitTimeout):
            self._board.wait_for(self._board.is_over, _deadline(patience), f"batch {self.group_id}")
        with self._board.changed:
            if not self._board.is_over():
                raise InvalidRequest(
                    f"{self.group_id} has not ended, and cleanup() removes only what has: cancel() it first"
                )

    def _ended(self, timeout: float | None) -> Iterator[tuple[int, JobStatus]]:
        board, deadline, given = self._board, _deadline(timeout), 0

        def more() -> list[tuple[int, JobStatus]] | bool | None:
            fresh = [(index, seen.status) for index, seen in list(board.ended.items())[given:]]
            return fresh or (True if board.is_over() else None)

        while True:
            news = self._wait_for(more, deadline)
            if news is True or not isinstance(news, list):
                return
            given += len(news)
            yield from news

    def _jobless(self) -> dict[int, BaseException]:
        """Build the errors of inputs without a job, once the batch is over, but for those of submissions."""
        with self._board.changed:
            dropped, gone = sorted(self._board.dropped), dict(self._board.unavailable)
        never = f"of {self.group_id} was never started: the batch was stopped, or its submitter ended, first"
        return {index: JobCancelled(f"input {index} {never}") for index in dropped} | {
            index: JobNotFound(f"{job_id}, the job of input {index}, is not stored any more")
            for index, job_id in gone.items()
        }

    def _out_of_time(self) -> BatchTimeout:
        """Build the time-out error, with the values of the jobs that have ended."""
        with self._board.changed:
            ended, unsubmitted = list(self._board.ended), dict(self._board.submission_failures)
        outcomes: dict[int, Any] = {}
        exceptions = self._collect(ended, False, outcomes)
        values = [outcomes.get(index) for index in range(self._board.size)]
        return BatchTimeout(
            f"batch {self.group_id} was not done in time: {len(ended)} of {len(values)} inputs have ended, "
            "the others go on",
            values,
            {**exceptions, **unsubmitted},
        )

    def _collect(self, order: list[int], cleanup: bool, outcomes: dict[int, Any]) -> dict[int, BaseException]:
        exceptions: dict[int, BaseException] = {}
        succeeded: list[JobHandle] = []

        def collect(index: int) -> None:
            handle = self._board.jobs[index]
            assert handle is not None  # noqa: S101  what ended was submitted
            try:
                outcomes[index] = self._scheduler.value(handle)
                succeeded.append(handle)
            except Exception as exc:  # noqa: BLE001  whatever the user's function raised: it goes into the BatchError
                exceptions[index] = exc

        in_parallel(collect, order)
        if cleanup and (jobs := self._all_collected(succeeded)):
            self._discard(jobs)
        return exceptions

    def _all_collected(self, succeeded: list[JobHandle]) -> list[JobHandle]:
        """Add to the collected jobs; return the jobs of all inputs once every value is collected, else []."""
        if not succeeded:
            return []
        with self._board.changed:
            self._collected |= {job.job_id: job for job in succeeded}
            submitted = sum(job is not None for job in self._board.jobs)
            is_all = self._board.is_over() and len(self._collected) >= submitted
            return list(self._collected.values()) if is_all else []

    def _discard(self, jobs: list[JobHandle]) -> None:
        """Remove the objects of all inputs; nobody needs to wait for that."""
        # Not a daemon: a script that ends now still cleans up.
        name = f"kinetic-cleanup-{self.group_id}"
        threading.Thread(target=self._scheduler.discard, args=(jobs,), name=name).start()


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout
