"""`BatchHandle` of inputs that share Jobs: the number of its requests does not grow with the inputs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kinetic_core._runner import wire
from kinetic_core.backends.base import Backend, Parts
from kinetic_core.backends.kubernetes.chunks import indexes_of, stops_after_failure
from kinetic_core.backends.kubernetes.names import JOB_ID, PART
from kinetic_core.batches.definition import (
    Plan,
    finished_object,
    inputs_object,
    manifest_object,
    noted_failures,
)
from kinetic_core.batches.handle import BatchHandle, finish, in_parallel
from kinetic_core.batches.indexed import chunk_reference, submit_batch
from kinetic_core.batches.progress import Board
from kinetic_core.batches.rerun import stored_states
from kinetic_core.errors import JobNotFound, KineticError, ObjectExists, StoreError
from kinetic_core.job import ChunkObservation, JobObservation, JobReference, JobStatus
from kinetic_core.jobs.bundle import Packed
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.inputs import (
    GAVE_UP,
    forget,
    input_reference,
    observe_chunk,
    reconcile_chunk,
    stored_of,
)
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.jobs.references import checked_reference
from kinetic_core.jobs.signing import outcome_key
from kinetic_core.jobs.watch import Kind, Subscription, watch_for
from kinetic_core.store.documents import malformed

_LOG = logging.getLogger(__name__)


class IndexedBatchHandle(BatchHandle):
    """Handle of a batch that the cluster runs without a client."""

    def __init__(
        self, whole: JobReference, name: str | None, tags: Mapping[str, str], board: Board, backend: Backend
    ) -> None:
        super().__init__(whole.job_id, name, tags, board, backend)
        assert backend.parts is not None  # noqa: S101  only there inputs share Jobs
        self._namespace, self._parts = whole.namespace, backend.parts
        self._keys = _Keys(backend.parts, whole)

    def statuses(self) -> list[tuple[int, JobStatus]]:
        """Return index and status of every submitted job, with two requests while some have not ended."""
        with self._board.changed:
            known = {index: seen.status for index, seen in self._board.ended.items()}
            jobs = [index for index, job in enumerate(self._board.jobs) if job is not None]
        running = self._parts.running(self._namespace, self.group_id) if len(known) < len(jobs) else set()
        alive = {True: JobStatus.RUNNING, False: JobStatus.PENDING}
        return [(index, known.get(index) or alive[index in running]) for index in jobs]

    def cancel(self) -> None:
        """Start no further input and stop every living job; return when none of their pods runs."""
        self._board.stop(cancel=True)
        finish(self._backend, self.group_id, self._board)
        errors = in_parallel(lambda part: self._backend.delete(self._namespace, part), self._part_ids())
        for _, error in errors:
            if error is not None:
                raise error

    def cleanup(self, *, k8s: bool = True, gcs: bool = True) -> None:
        """Remove the batch's Kubernetes objects, and with `gcs` all its stored objects but outputs.

        Raises InvalidRequest while an input of the batch runs: cancel first.
        """
        self._must_be_over()
        if k8s:
            self._backend.remove(self._namespace, *self._part_ids())
        if gcs:
            forget(self._backend.store, self.group_id)

    def _when_left(self, living: int) -> str:
        return f"goes on in the cluster, {living} of its jobs have not ended"

    def _part_ids(self) -> list[str]:
        jobs = self._parts.parts(self._namespace, self.group_id)
        return [str(job["metadata"]["labels"][JOB_ID]) for job in jobs]

    def _key(self, _backend: Backend, reference: JobReference) -> bytes | None:
        return self._keys.of(reference)

    def _value(self, handle: JobHandle) -> Any:
        try:
            return handle.collect(key=self._key)
        except JobNotFound:  # its runner was killed with its container: what is known of that is written now
            reconcile(self._backend, handle)
            return handle.collect(key=self._key)

    def _drop(self, succeeded: list[JobHandle]) -> None:
        """Remove each Job once all its inputs have succeeded and are collected: the others need its key."""
        if not self._all_collected(succeeded):
            return
        try:
            self._backend.remove(self._namespace, *self._part_ids())
            store = self._backend.store
            for pattern in (inputs_object(self.group_id, "*"), wire.batch_payload_object(self.group_id, "*")):
                store.delete_many([info.name for info in store.list(pattern.rstrip("*"), pattern)])
        except (KineticError, OSError) as exc:
            _LOG.warning("cleaning up after %s: %s", self.group_id, exc)


class _Keys:
    """Keys of outcomes, read once: they vanish with the Jobs, and values may be read again."""

    def __init__(self, parts: Parts, whole: JobReference) -> None:
        self._parts, self._whole = parts, whole
        self._lock = threading.Lock()
        self._of: dict[int, bytes] | None = None

    def of(self, child: JobReference) -> bytes | None:
        """Return the key of one input's outcome; None if the Job that had the key is gone."""
        assert child.group_index is not None  # noqa: S101  it is a batch's
        with self._lock:
            if self._of is None:
                self._of = {}
                for job in self._parts.parts(self._whole.namespace, self._whole.job_id):
                    key = outcome_key(job)
                    if key is not None:
                        self._of |= dict.fromkeys(indexes_of(job), key)
            key = self._of.get(child.group_index)
        return None if key is None else wire.input_key(key, child.group_index)


_CHUNK = Kind(observe_chunk, reconcile_chunk)
_RETRY_SECONDS = 2.0
_SUCCEEDED = JobObservation(JobStatus.SUCCEEDED, "Completed", "the outcome is committed")
_FAILED = JobObservation(JobStatus.FAILED, "Failed", "it failed, and has no retries left")
_STOPPED = JobObservation(JobStatus.FAILED, "Stopped", "it was stopped while it ran")


class ChunkWatch:
    """Watch of one batch's chunks, in the thread of the namespace's watch, until all chunks have ended.

    The store is asked, one request per thousand inputs, only for what the Jobs do not report: which inputs
    were dropped, which were launched. A failed request is repeated.
    """

    def __init__(self, backend: Backend, whole: JobReference, board: Board) -> None:
        self._backend, self._whole, self._board = backend, whole, board
        self._fail_fast = False
        self._subscriptions: dict[int, Subscription] = {}
        self._subscribing, self._taking = threading.Lock(), threading.Lock()
        self._known: set[int] = set()
        self._over: set[int] = set()
        self._has_stopped = False

    def start(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Watch these chunks, the oldest first; returns at once."""
        if not jobs:
            self._end()
        self._fail_fast = any(map(stops_after_failure, jobs))
        hub = watch_for(self._backend, self._whole.namespace)
        later: set[int] = set()
        with self._subscribing:
            for job in reversed(jobs):
                number, inputs = int(job["metadata"]["labels"][PART]), set(indexes_of(job))
                own = frozenset(inputs - later)  # what a later part has was run again there
                later |= inputs
                told = partial(self._seen, number, own, len(jobs))
                reference = chunk_reference(self._whole, number)
                follows = self._board.follows
                self._subscriptions[number] = hub.subscribe(reference, told, _CHUNK, follows=follows)
        self._board.on_follow(self._follow)

    def _follow(self) -> None:
        with self._subscribing:
            for subscription in self._subscriptions.values():
                subscription.follow()

    def _seen(self, number: int, own: frozenset[int], parts: int, seen: JobObservation) -> None:
        assert isinstance(seen, ChunkObservation)  # noqa: S101  what `observe_chunk` gives
        try:
            with self._taking:
                self._take(number, own, parts, seen)
        except StoreError as exc:
            _LOG.warning("cannot tell how inputs of %s ended, trying again: %s", self._whole.job_id, exc)
            again = threading.Timer(_RETRY_SECONDS, self._seen, (number, own, parts, seen))
            again.daemon = True
            again.start()

    def _take(self, number: int, own: frozenset[int], parts: int, seen: ChunkObservation) -> None:
        succeeded, failed = seen.succeeded & own - self._known, seen.failed & own - self._known
        dropped: set[int] = set()
        if self._fail_fast and self._board.follows and seen.failed & own and not self._has_stopped:
            self._stop_others()
            self._has_stopped = True
        if failed and self._fail_fast:
            states = stored_states(self._backend, self._whole.namespace, self._whole.job_id)
            dropped = {index for index in failed if states.get(index) == wire.DROPPED}
        ended = dict.fromkeys(succeeded, _SUCCEEDED)
        ended |= dict.fromkeys(failed - dropped, _FAILED)
        if seen.status is JobStatus.FAILED:
            rest = own - seen.succeeded - seen.failed
            launched = rest if seen.reason == GAVE_UP else rest & self._launched()
            ended |= dict.fromkeys(launched, _STOPPED)
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
        good = {index for index, state in states.items() if state == "succeeded"}
        dropped = {index for index, state in states.items() if state == wire.DROPPED}
        ended = {index: _SUCCEEDED if index in good else _FAILED for index in states if index not in dropped}
        self._board.end(ended, dropped)
        self._board.lose(
            {index: wire.input_id(self._whole.job_id, index) for index in unknown - states.keys()}
        )
        self._board.finish()

    def _stop_others(self) -> None:
        """Stop the other inputs on behalf of an input whose runner was killed with its container."""
        try:
            self._backend.store.create(wire.stop_object(self._whole.job_id), b"observer")
        except ObjectExists:
            return

    def _launched(self) -> set[int]:
        """List the inputs that a pod has begun."""
        group_id = self._whole.job_id
        claims = wire.claim_object(f"{group_id}-*", 0)
        return {index for index, _ in stored_of(self._backend.store, group_id, claims)}


def start_indexed(packed: Packed, items: Sequence[Any], plan: Plan) -> IndexedBatchHandle:
    """Submit everything and watch it; the client is not needed from here on."""
    whole, failures = submit_batch(packed, items, plan)
    found = _Stored(packed.backend, whole, len(items))
    board = found.board(failures, follows=True)
    found.watch(board)
    return IndexedBatchHandle(whole, plan.name, plan.tags, board, packed.backend)


def attach_indexed(
    backend: Backend, group_id: str, manifest: Mapping[str, Any], interval: float, timeout: float | None
) -> IndexedBatchHandle:
    """Attach to a stored batch. Until all inputs have a Job, a thread looks every `interval` seconds."""
    whole = checked_reference(manifest["reference"], group_id, backend)
    found = _Stored(backend, whole, int(manifest["total_expected"]))
    failures = noted_failures(backend, whole.namespace, whole.job_id)
    board = found.board(failures, follows=False)
    if found.is_submitted(board):
        found.watch(board)
    else:
        name = f"kinetic-{whole.job_id}"
        threading.Thread(target=found.wait, args=(board, interval, timeout), name=name, daemon=True).start()
    return IndexedBatchHandle(whole, manifest["group_name"], manifest["tags"], board, backend)


@dataclass(frozen=True)
class _Stored:
    """Batch as the store and the cluster have it."""

    backend: Backend
    whole: JobReference
    size: int

    def board(self, failures: Mapping[int, Exception], *, follows: bool) -> Board:
        board = Board(self.size, follows=follows)
        board.submission_failures = dict(failures)
        children = (input_reference(self.whole, index) for index in range(self.size))
        board.fill(
            [
                None if i in failures else JobHandle.of(child, self.backend.connections)
                for i, child in enumerate(children)
            ]
        )
        return board

    def is_submitted(self, board: Board) -> bool:
        """Return whether every input has a Job, or had one."""
        if self.backend.store.find(finished_object(self.whole.job_id)) is not None:
            return True
        submitted = {index for job in self._parts() for index in indexes_of(job)}
        return len(submitted | board.submission_failures.keys()) == self.size

    def watch(self, board: Board) -> None:
        """Fill the board from a watch from now on."""
        ChunkWatch(self.backend, self.whole, board).start(self._parts())

    def wait(self, board: Board, interval: float, timeout: float | None) -> None:
        """Look again until all is submitted; then, or after `timeout` seconds, watch the existing Jobs."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = threading.Event()
        while not pause.wait(interval):
            if board.stopping or (deadline is not None and time.monotonic() > deadline):
                break
            if self.is_submitted(board):
                break
        self.watch(board)

    def _parts(self) -> Sequence[Mapping[str, Any]]:
        """Return the Jobs. Raises MalformedObject if the manifest names fewer inputs than they have."""
        assert self.backend.parts is not None  # noqa: S101  only there inputs share Jobs
        jobs = self.backend.parts.parts(self.whole.namespace, self.whole.job_id)
        size = 1 + max((index for job in jobs for index in indexes_of(job)), default=-1)
        if size > self.size:
            name = manifest_object(self.whole.job_id)
            raise malformed(self.backend.store, name, f"it names {self.size} inputs, its Jobs have {size}")
        return jobs
