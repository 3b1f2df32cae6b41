"""Client-driven batches: each input has a Job of its own, which a client creates when its turn comes.

Everything is stored before the first Job is created: when the client dies, any client that attaches to the
batch continues it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from kinetic_core._runner import object_names
from kinetic_core._runner.object_names import input_id
from kinetic_core.backends.base import Backend, BatchQueues
from kinetic_core.batches.definition import (
    Plan,
    batch_digest,
    line_object,
    note_failure,
    noted_failures,
    other_batch,
    resumptions,
)
from kinetic_core.batches.handle import BatchHandle
from kinetic_core.batches.progress import Board, may_end
from kinetic_core.batches.queue import Line, Rules, line_frame, line_name, packed_line, read_line
from kinetic_core.batches.rerun import run_again
from kinetic_core.batches.scheduler import Tell, finish
from kinetic_core.batches.single import JobPerInput, is_created, read_board, store_manifest
from kinetic_core.errors import KineticError, ObjectNotFound
from kinetic_core.jobs.bundle import Packed
from kinetic_core.jobs.cancel import drop_payloads
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.inputs import CLIENT_DRIVEN, read_manifest, stored_of
from kinetic_core.jobs.observe import find
from kinetic_core.jobs.references import check_namespace
from kinetic_core.jobs.watch import watch_for

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Starter:
    """Thread that starts the inputs in `todo`, in rising order; the `board` has the other inputs."""

    backend: Backend
    namespace: str
    group_id: str
    line: Line
    todo: list[int]
    rules: Rules
    board: Board

    def begin(self, *, daemon: bool) -> None:
        """Start the thread. A script waits at its end for one that is no daemon."""
        with ExitStack() as kept:
            kept.enter_context(watch_for(self.backend, self.namespace).held())
            name = f"kinetic-{self.group_id}"
            threading.Thread(target=self._run, args=(kept.pop_all(),), name=name, daemon=daemon).start()

    def _run(self, observing: ExitStack) -> None:
        with observing:
            error: BaseException | None = None
            is_over = False
            try:
                is_over = self._start_all()
                if self.rules.cancel_running:
                    self._wait_and_cancel()
            except Exception as exc:  # noqa: BLE001  told to whoever waits for the batch
                _LOG.exception("starting the inputs of %s failed", self.group_id)
                error = exc
            self.board.finish(error)
            if is_over:
                finish(self.backend, self.group_id, self.board)

    def _start_all(self) -> bool:
        """Start all inputs; return False if this process was told to stop and other clients must continue."""
        for done, index in enumerate(self.todo):
            if not self._is_time():
                with self.board.changed:
                    return self.board.cancelled or self._has_failed()
            if self._has(object_names.finished(self.group_id)):
                self._take_over(self.todo[done:])
                return True
            self._start(index)
        return True

    def _take_over(self, rest: list[int]) -> None:
        """Add the jobs of inputs that another client has started before the batch was finished."""
        for index in rest:
            reference = find(self.backend, input_id(self.group_id, index))
            if reference is not None:
                self.board.add(index, JobHandle.of(reference, self.backend.connections))

    def _is_time(self) -> bool:
        """Wait until another job may start; return False if no further job may start."""
        board, limit = self.board, self.rules.max_concurrent

        def ready() -> bool | None:
            if self._has_failed():
                board.stopping = True
            return True if board.stopping or limit is None or board.active() < limit else None

        self._wait_for(ready)
        if not board.stopping and self._has(object_names.stop(self.group_id)):
            board.stop(cancel=True)  # somebody, on whatever machine, has cancelled the batch
        return not board.stopping

    def _wait_for(self, condition: Callable[[], bool | None]) -> None:
        """Wait on the board, also while nobody learns how jobs end, if that may change.

        Raises InvalidRequest if the client was closed.
        """
        while True:
            try:
                self.board.wait_for(condition, None, self.group_id)
            except KineticError as exc:
                if not may_end(exc):
                    raise
            else:
                return

    def _has_failed(self) -> bool:
        """Return whether an input's failure stops the others. Call it under the board's `changed`."""
        return self.rules.fail_fast and bool(self.board.failed() or self.board.submission_failures)

    def _has(self, name: str) -> bool:
        return self.backend.store.find(name) is not None

    def _start(self, index: int) -> None:
        waiting = self.line[index]
        assert waiting is not None  # noqa: S101  what cannot be submitted is not to do
        try:
            handle = JobHandle.of(waiting.start(self.backend), self.backend.connections)
        except Exception as exc:  # noqa: BLE001  this input's failure; the others go on
            note_failure(self.backend, self.namespace, self.group_id, index, exc)
            self.board.refuse(index, exc)
            return
        self.board.add(index, handle)
        # The job may have begun while somebody cancelled the batch.
        if self.board.cancelled or self._has(object_names.stop(self.group_id)):
            self.board.stop(cancel=True)
            handle.cancel()

    def _wait_and_cancel(self) -> None:
        board = self.board
        self._wait_for(lambda: True if self._has_failed() or board.active() == 0 else None)
        with board.changed:
            living = [job for i, job in enumerate(board.jobs) if job is not None and i not in board.ended]
        for job in living:
            job.cancel()


_INTERVAL = 10.0


class ClientDrivenScheduler(JobPerInput):
    """Scheduler of a batch whose Jobs the attached clients create."""

    def __init__(self, backend: Backend, manifest: Mapping[str, Any]) -> None:
        super().__init__(backend, manifest["namespace"], manifest["group_id"])

    def cancel(self, board: Board, tell: Tell) -> None:
        """Start no further job and stop every job that has not ended; return when none of their pods runs."""
        self.stop()
        finish(self.backend, self.group_id, board)
        started = _started(self.backend, self.group_id)  # some perhaps by others, just now
        with board.changed:
            living = [input_id(self.group_id, index) for index in started if index not in board.ended]
        ended = board.size - len(living)
        self.cancel_all(living, lambda done, _: tell(ended + done, board.size))

    def discard(self, jobs: Sequence[JobHandle]) -> None:
        """Remove the jobs; until all values are collected, other clients need the keys."""
        drop_payloads(self.backend.connections, jobs)

    def remove(self, jobs: Sequence[JobHandle], *, k8s: bool, gcs: bool) -> None:
        """Remove the objects of each job, and with `k8s` the queue's digest."""
        super().remove(jobs, k8s=k8s, gcs=gcs)
        if k8s:
            _lines(self.backend).remove(self.namespace, self.group_id)

    def when_left(self, living: int) -> str:
        """Say that the batch needs a client."""
        return f"starts nothing more until somebody attaches to it; {living} of its jobs go on"


def _handle(backend: Backend, manifest: Mapping[str, Any], board: Board) -> BatchHandle:
    scheduler = ClientDrivenScheduler(backend, manifest)
    return BatchHandle(scheduler.group_id, manifest["group_name"], manifest["tags"], board, scheduler)


def start_client_driven(packed: Packed, items: Sequence[Any], plan: Plan) -> BatchHandle:
    """Store everything and start the first jobs; a thread of this process starts the others.

    Submitting the same batch under the same id again continues it. Raises JobConflict if the id belongs to
    another batch, StoreError or the cluster's error if the batch cannot be created.
    """
    backend, manifest = packed.backend, _stored(packed, items, plan)
    if plan.skip_done and (found := _line_of(backend, manifest)) is not None:
        run_again(backend, found[0], plan.group_id)
    if handle := _gone_on_with(backend, manifest, daemon=False):
        return handle
    namespace = manifest["namespace"]
    board = read_board(backend, namespace, manifest, _INTERVAL, None, follows=True)
    return _handle(backend, manifest, board)


def attach_client_driven(
    backend: Backend, manifest: Mapping[str, Any], interval: float, timeout: float | None, *, goes_on: bool
) -> BatchHandle:
    """Attach to a stored batch; unless it `goes_on`, another client must start the inputs without a job."""
    namespace = manifest["namespace"]
    check_namespace(namespace, manifest["group_id"], backend)
    if goes_on and (handle := _gone_on_with(backend, manifest, daemon=True)):
        return handle
    board = read_board(backend, namespace, manifest, interval, timeout)
    return _handle(backend, manifest, board)


def _gone_on_with(backend: Backend, manifest: Mapping[str, Any], *, daemon: bool) -> BatchHandle | None:
    """Continue a stored batch: return its handle, and start the rest in a thread; None if it cannot go on."""
    group_id, namespace = str(manifest["group_id"]), str(manifest["namespace"])
    if backend.store.find(object_names.finished(group_id)) is not None:
        return None
    found = _line_of(backend, manifest)
    if found is None:
        _LOG.warning("%s is too old to be gone on with: inputs without a job will have none", group_id)
        return None
    line, rules = found
    board = Board(len(line))
    todo = _fill(board, backend, namespace, group_id, line)
    Starter(backend, namespace, group_id, line, todo, rules, board).begin(daemon=daemon)
    return _handle(backend, manifest, board)


def _fill(board: Board, backend: Backend, namespace: str, group_id: str, line: Line) -> list[int]:
    """Fill the board with jobs and failures from the store; return the inputs that are still to start."""
    store = backend.store
    for index, error in noted_failures(backend, namespace, group_id).items():
        board.refuse(index, error)
    started = _started(backend, group_id)
    is_rerun = any(True for _ in store.list(resumptions(group_id)))
    # A client stores the handle before the Job: another one, or its death, may have left it in between. As
    # anybody can store handles, the last input is the last whose job exists.
    while started and not is_rerun and not _is_created(backend, group_id, started[-1]):
        started.pop()
    last = max(started, default=-1)
    if is_rerun:
        started = [index for index in started if _is_created(backend, group_id, index)]
    rest = [i for i in range(len(line)) if i not in started and i not in board.submission_failures]
    # They start in order. What is missing before the last has been removed by hand, and does not run again.
    todo = [index for index in rest if is_rerun or index >= last]
    board.lose({index: input_id(group_id, index) for index in set(rest) - set(todo)})
    for index in started:
        reference = find(backend, input_id(group_id, index))
        if reference is None:
            board.lose({index: input_id(group_id, index)})
        else:
            board.add(index, JobHandle.of(reference, backend.connections))
    return todo


def _is_created(backend: Backend, group_id: str, index: int) -> bool:
    """Return whether the job of a stored handle exists, or has ended."""
    reference = find(backend, input_id(group_id, index))
    return reference is None or is_created(backend, reference)


def _started(backend: Backend, group_id: str) -> list[int]:
    """List the inputs that have a job, in rising order, with one request per thousand."""
    found = stored_of(backend.store, group_id, object_names.handle(f"{group_id}-*"))
    return sorted(index for index, _ in found)


def _stored(packed: Packed, items: Sequence[Any], plan: Plan) -> Mapping[str, Any]:
    """Store the batch and all that it needs; return its manifest."""
    backend, digest = packed.backend, batch_digest(packed, items, plan)
    known = None if plan.is_new else _manifest(backend, plan.group_id)
    if known is None:
        try:
            known = _made(packed, items, plan, digest)
        except BaseException:
            if plan.is_new:
                backend.store.delete_all(object_names.batch(plan.group_id, ""))
                with suppress(KineticError):  # what it met first is what is told
                    _lines(backend).remove(packed.spec.namespace, plan.group_id)
            raise
    if known.get("spec_digest") != digest:
        raise other_batch(plan.group_id)
    return known


def _made(packed: Packed, items: Sequence[Any], plan: Plan, digest: str) -> Mapping[str, Any]:
    """Store the queue, record its digest in the cluster, then store the batch's manifest."""
    store, group_id, namespace = packed.backend.store, plan.group_id, packed.spec.namespace
    waiting, failures = packed_line(packed, items, plan)
    rules = Rules(plan.max_concurrent, plan.fail_fast, plan.cancel_running)
    frame = line_frame(waiting, len(items), rules)
    line = line_name(frame)
    store.create_if_absent(line_object(group_id, line), frame)
    _lines(packed.backend).keep(namespace, group_id, line, digest)
    for index, error in failures.items():
        note_failure(packed.backend, namespace, group_id, index, error)
    return store_manifest(packed, plan, len(items), CLIENT_DRIVEN, spec_digest=digest)


def _manifest(backend: Backend, group_id: str) -> Mapping[str, Any] | None:
    try:
        found = read_manifest(backend.store, group_id)
    except ObjectNotFound:
        return None
    if found["scheduler"] != CLIENT_DRIVEN:
        raise other_batch(group_id)
    return found


def _line_of(backend: Backend, manifest: Mapping[str, Any]) -> tuple[Line, Rules] | None:
    """Return the queue whose digest the cluster has, with its rules; None if the cluster has no digest."""
    group_id, namespace = str(manifest["group_id"]), str(manifest["namespace"])
    line = _lines(backend).find(namespace, group_id)
    return None if line is None else read_line(backend, namespace, group_id, line)


def _lines(backend: Backend) -> BatchQueues:
    assert backend.lines is not None  # noqa: S101  only there inputs wait for a client
    return backend.lines
