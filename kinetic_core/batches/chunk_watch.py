"""`ChunkWatch`: the chunks of one batch, observed until all its inputs have ended."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.chunks import indexes_of, stops_after_failure
from kinetic_core.backends.kubernetes.names import CHUNK
from kinetic_core.batches.progress import Board, Look
from kinetic_core.batches.rerun import stored_states
from kinetic_core.batches.scheduler import in_parallel
from kinetic_core.job import ChunkObservation, JobObservation, JobReference, JobStatus
from kinetic_core.jobs.facts import attempts_claimed
from kinetic_core.jobs.inputs import (
    NEVER_STARTED,
    chunk_reference,
    observe_chunk,
    reconcile_chunk,
    stored_of,
)
from kinetic_core.jobs.signing import outcome_key
from kinetic_core.jobs.watch import Kind, Subscription, watch_for

_CHUNK = Kind(observe_chunk, reconcile_chunk)
_RETRY_SECONDS = 2.0
_SUCCEEDED = JobObservation(JobStatus.SUCCEEDED, "Completed", "the outcome is committed")
_FAILED = JobObservation(JobStatus.FAILED, "Failed", "it failed, and has no retries left")
_STOPPED = JobObservation(JobStatus.FAILED, "Stopped", "it was stopped while it ran")
_CANCELLED = JobObservation(JobStatus.CANCELLED, "Cancelled", "it was cancelled")
_ENDS = {"succeeded": _SUCCEEDED, wire.CANCELLED: _CANCELLED}
_FAILED_ANOTHER = "MaxFailedIndexesExceeded"
"""Reason of a Job that Kubernetes ended because an input had failed."""


class ChunkWatch:
    """Watch of one batch's chunks, in the thread of the namespace's watch, until all chunks have ended.

    The store is asked only for what the Jobs do not report: which inputs were dropped, with one request per
    thousand of them, and which were launched, with one for each that ran at the end. A failed request is
    repeated.
    """

    def __init__(self, backend: Backend, whole: JobReference, board: Board) -> None:
        self._backend, self._whole, self._board = backend, whole, board
        self._fail_fast = False
        self._subscriptions: dict[int, Subscription] = {}
        self._subscribing, self._taking = threading.Lock(), threading.Lock()
        self._known: set[int] = set()
        self._over: set[int] = set()
        self._has_stopped = self._is_closed = False
        self._look = Look(board, whole.job_id)

    def start(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Watch these chunks, the oldest first; returns at once."""
        if not jobs:
            self._end()
        self._fail_fast = any(map(stops_after_failure, jobs))
        job_watch = watch_for(self._backend, self._whole.namespace)
        later: set[int] = set()
        with self._subscribing:
            for job in reversed(jobs):
                number, inputs = int(job["metadata"]["labels"][CHUNK]), set(indexes_of(job))
                own = frozenset(inputs - later)  # what a later part has was run again there
                later |= inputs
                told = partial(self._seen, number, own, len(jobs))
                reference = chunk_reference(self._whole, number)
                follows = self._board.follows
                self._subscriptions[number] = job_watch.subscribe(
                    reference, told, _CHUNK, self._board.tell, follows=follows
                )
        self._board.on_follow(self._follow)
        self._board.on_close(self._close)

    def _close(self) -> None:
        self._is_closed = True
        with self._subscribing:
            for subscription in self._subscriptions.values():
                subscription.close()

    def _follow(self) -> None:
        with self._subscribing:
            for subscription in self._subscriptions.values():
                subscription.follow()

    def _seen(self, number: int, own: frozenset[int], parts: int, seen: JobObservation) -> None:
        assert isinstance(seen, ChunkObservation)  # noqa: S101  what `observe_chunk` gives
        if self._is_closed:
            return
        self._board.note_shared(number, seen)
        try:
            with self._taking:
                self._take(number, own, parts, seen)
                self._look.went_well()
        except Exception as exc:  # noqa: BLE001  nobody else would tell those who wait
            if self._look.goes_on_after(exc):
                again = threading.Timer(_RETRY_SECONDS, self._seen, (number, own, parts, seen))
                again.daemon = True
                again.start()

    def _take(self, number: int, own: frozenset[int], parts: int, seen: ChunkObservation) -> None:
        succeeded, failed = seen.succeeded & own - self._known, seen.failed & own - self._known
        dropped: set[int] = set()
        if self._fail_fast and self._board.follows and seen.failed & own and not self._has_stopped:
            self._stop_others()
            self._has_stopped = True
        ended = dict.fromkeys(succeeded, _SUCCEEDED) | dict.fromkeys(failed, _FAILED)
        if failed and (self._fail_fast or self._some_cancelled()):
            states = stored_states(self._backend, self._whole.namespace, self._whole.job_id)
            dropped = {index for index in failed if states.get(index) == wire.DROPPED}
            ended |= {i: _CANCELLED for i in failed if states.get(i) == wire.CANCELLED}
            ended = {index: end for index, end in ended.items() if index not in dropped}
        if seen.status.ended_without_value:
            rest = own - seen.succeeded - seen.failed
            launched = rest if seen.reason == NEVER_STARTED else self._launched(rest)
            cancelled = seen.status is JobStatus.CANCELLED or seen.reason == _FAILED_ANOTHER
            ended |= dict.fromkeys(launched, _CANCELLED if cancelled else _STOPPED)
            dropped |= rest - launched
        self._known |= succeeded | failed
        self._board.end(ended, dropped)
        if seen.is_terminal and number not in self._over:
            if len(self._over | {number}) == parts:
                self._end()
            self._over.add(number)
            with self._subscribing:
                self._subscriptions[number].close()

    def _end(self) -> None:
        """Record the end of the last chunk; inputs that no Job reports end as the store says."""
        with self._board.changed:
            unknown = {i for i, job in enumerate(self._board.jobs) if job and i not in self._board.ended}
        stored = stored_states(self._backend, self._whole.namespace, self._whole.job_id) if unknown else {}
        states = {index: stored[index] for index in unknown & stored.keys()}
        dropped = {index for index, state in states.items() if state == wire.DROPPED}
        ended = {index: _ENDS.get(state, _FAILED) for index, state in states.items() if index not in dropped}
        self._board.end(ended, dropped)
        self._board.lose(
            {index: object_names.input_id(self._whole.job_id, index) for index in unknown - states.keys()}
        )
        self._board.finish()

    def _stop_others(self) -> None:
        """Stop the other inputs on behalf of an input whose runner was killed with its container."""
        self._backend.store.create_if_absent(object_names.stop(self._whole.job_id), b"observer")

    def _some_cancelled(self) -> bool:
        """Return whether somebody has cancelled single inputs, which the Jobs report as failed."""
        group_id = self._whole.job_id
        marks = stored_of(self._backend.store, group_id, object_names.cancel(f"{group_id}-*"))
        return any(True for _ in marks)

    def _launched(self, indexes: Set[int]) -> set[int]:
        """Return which of these inputs a pod has begun, by the claims that runners have signed."""
        assert self._backend.parts is not None  # noqa: S101  its Jobs are watched
        store, group_id = self._backend.store, self._whole.job_id
        claims = stored_of(store, group_id, object_names.claim(f"{group_id}-*", 0))
        listed = indexes & {index for index, _ in claims}
        jobs = self._backend.parts.parts(self._whole.namespace, group_id) if listed else ()
        keys = {index: key for job in jobs if (key := outcome_key(job)) for index in indexes_of(job)}
        found: set[int] = set()

        def look(index: int) -> None:
            child = object_names.input_id(group_id, index)
            if attempts_claimed(store, child, wire.input_key(keys[index], index)):
                found.add(index)

        for _, error in in_parallel(look, sorted(listed & keys.keys())):
            if error is not None:
                raise error
        return found
