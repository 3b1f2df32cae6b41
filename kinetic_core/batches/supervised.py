"""Supervised batches: all jobs are created at once, and wait for their turn without a client."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kinetic_core._runner import object_names
from kinetic_core._runner.object_names import input_id
from kinetic_core.backends.base import Backend, SupervisedQueue
from kinetic_core.backends.kubernetes.chunks import input_of
from kinetic_core.batches.definition import (
    Plan,
    batch_digest,
    dropped_inputs,
    failure_object,
    other_batch,
)
from kinetic_core.batches.handle import BatchHandle
from kinetic_core.batches.progress import Board
from kinetic_core.batches.scheduler import Tell, finish
from kinetic_core.batches.single import JobPerInput, read_board, store_manifest, submit_input
from kinetic_core.errors import ObjectNotFound, StoreError
from kinetic_core.job import JobStatus, Line
from kinetic_core.jobs.bundle import Packed
from kinetic_core.jobs.cancel import delete_payloads, drop_payloads, index_object
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.inputs import SUPERVISED, read_manifest
from kinetic_core.jobs.observe import find
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.terminal import Progress

DIGEST = "spec_digest"
"""Field of a manifest with the digest of the call; a batch with a generated id has none."""


def take_up(
    packed: Packed, items: Sequence[Any], plan: Plan, line: Line
) -> tuple[Mapping[str, Any], dict[int, Exception]]:
    """Create the missing jobs of a batch; return its manifest, and errors of jobs that cannot be created.

    Missing are jobs that a dead submitter has not created; with `skip_done`, and if no job of the batch
    lives, also those without a value, whose stored objects but outputs are removed first. Raises JobConflict
    if the id belongs to another batch.
    """
    queue, namespace = packed.backend.supervised_queue, packed.spec.namespace
    assert queue is not None  # noqa: S101  only there inputs wait for their turn
    digest = batch_digest(packed, items, plan)
    with queue.take_up(namespace, line) as (waiting, is_idle):
        manifest = _manifest(packed, plan, len(items), digest, queue)
        batch = _Stored(packed.backend, queue, namespace, plan.group_id, len(items))
        begin_anew = plan.skip_done and is_idle
        missing = batch.without_value() if begin_anew else batch.never_made()
        if missing:
            batch.forget(missing, may_start=begin_anew)
        each = replace(packed, backend=waiting)
        made = {index: submit_input(each, plan, index, items[index]) for index in missing}
        batch.tell_submitted()
    return manifest, {index: job for index, job in made.items() if isinstance(job, Exception)}


@dataclass(frozen=True)
class _Stored:
    """Batch while no other process creates its jobs."""

    backend: Backend
    queue: SupervisedQueue
    namespace: str
    group_id: str
    size: int

    def without_value(self) -> list[int]:
        return [index for index in range(self.size) if self._status(index) is not JobStatus.SUCCEEDED]

    def never_made(self) -> list[int]:
        """List the inputs whose jobs were never created; jobs that were removed later do not count."""
        dropped = dropped_inputs(self.backend, self.group_id)
        submitters_left = range(self.size) if dropped is None else sorted(dropped)
        return [
            index
            for index in submitters_left
            if self._status(index) is JobStatus.NOT_FOUND
            and self.backend.store.find(failure_object(self.group_id, index)) is None
        ]

    def forget(self, indexes: Collection[int], *, may_start: bool) -> None:
        """Remove the stored objects of these inputs; with `may_start` the mark that stops the batch, too.

        The mark of complete submission goes first, so that the next submitter repairs a half-done removal.
        """
        store = self.backend.store
        store.delete(object_names.finished(self.group_id))
        if may_start:
            store.delete(object_names.stop(self.group_id))
        self.queue.forget(self.namespace, [input_id(self.group_id, index) for index in indexes])
        if may_start:
            self.queue.reopen(self.namespace, self.group_id)
        for index in indexes:
            reference = find(self.backend, input_id(self.group_id, index))
            if reference is not None:
                store.delete(index_object(reference))
            store.delete_all(f"jobs/{input_id(self.group_id, index)}/")
            store.delete(failure_object(self.group_id, index))

    def tell_submitted(self) -> None:
        """Store that all inputs are submitted, whatever an earlier supervisor has written."""
        store, name = self.backend.store, object_names.finished(self.group_id)
        content = json.dumps({"dropped": []}).encode()
        if store.find(name) is not None and store.read_range(name, 0, len(content) + 1) != content:
            store.delete(name)
        store.create_if_absent(name, content)

    def _status(self, index: int) -> JobStatus:
        reference = find(self.backend, input_id(self.group_id, index))
        return JobStatus.NOT_FOUND if reference is None else reconcile(self.backend, reference).status


def _manifest(
    packed: Packed, plan: Plan, size: int, digest: str, queue: SupervisedQueue
) -> Mapping[str, Any]:
    store = packed.backend.store
    try:
        manifest = read_manifest(store, plan.group_id)
    except ObjectNotFound:
        store.delete_all(object_names.batch(plan.group_id, ""))  # what a clean-up that was killed has left
        queue.reopen(packed.spec.namespace, plan.group_id)
        manifest = store_manifest(packed, plan, size, SUPERVISED, **{DIGEST: digest})
    if manifest["scheduler"] != SUPERVISED or manifest.get(DIGEST) != digest:
        raise other_batch(plan.group_id)
    return manifest


_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 10.0


class SupervisedScheduler(JobPerInput):
    """Scheduler of a batch that this machine runs without a client."""

    def __init__(self, backend: Backend, manifest: Mapping[str, Any]) -> None:
        super().__init__(backend, manifest["namespace"], manifest["group_id"])
        self._may_be_asked_for_again = DIGEST in manifest

    def cancel(self, board: Board, tell: Tell) -> None:
        """Start no further job and stop every job that has not ended; return when none of them runs."""
        begun, dropped = self._drop()
        board.drop(index for _, index in filter(None, map(input_of, dropped)))
        self._cancel(begun, board.size, tell)

    def cancel_stored(self, size: int, tell: Tell) -> None:
        """Cancel, without a board, a batch of so many inputs: none but those that have begun is read."""
        begun, _ = self._drop()
        self._cancel(begun, size, tell)

    def _drop(self) -> tuple[list[str], list[str]]:
        """End the jobs that wait; return those that have begun and not ended, and those that were dropped."""
        self.stop()
        queue = self.backend.supervised_queue
        assert queue is not None  # noqa: S101  only there inputs wait for their turn
        queue.drop(self.namespace, self.group_id)
        return queue.begun(self.namespace, self.group_id)

    def _cancel(self, begun: Sequence[str], size: int, tell: Tell) -> None:
        ended = size - len(begun)
        tell(ended, size)
        self.cancel_all(begun, lambda done, _: tell(ended + done, size))

    def discard(self, jobs: Sequence[JobHandle]) -> None:
        """Remove the jobs, but keep their keys if the same call may be made again."""
        if not self._may_be_asked_for_again:
            drop_payloads(self.backend.connections, jobs)
            return
        try:
            delete_payloads(self.backend.store, jobs)
        except StoreError as exc:
            _LOG.warning("cleaning up after %s: %s", self.group_id, exc)

    def when_left(self, living: int) -> str:
        """Say that the batch needs no client."""
        return f"goes on without this process, {living} of its jobs have not ended"


def _handle(backend: Backend, manifest: Mapping[str, Any], board: Board) -> BatchHandle:
    scheduler = SupervisedScheduler(backend, manifest)
    return BatchHandle(scheduler.group_id, manifest["group_name"], manifest["tags"], board, scheduler)


def start_supervised(packed: Packed, items: Sequence[Any], plan: Plan, progress: Progress) -> BatchHandle:
    """Create all jobs, which wait; their supervisor runs them. Neither needs this process from here on.

    If an exception interrupts this, no job of a batch with a generated id runs; jobs of a batch with an id
    that the user chose stay for the next call.
    """
    line = Line(plan.group_id, len(items), plan.max_concurrent, plan.fail_fast, plan.cancel_running)
    if plan.is_new:
        return _start_new(packed, items, plan, line, progress)
    manifest, failures = take_up(packed, items, plan, line)
    namespace = manifest["namespace"]
    board = read_board(packed.backend, namespace, manifest, _LOOK_SECONDS, None, follows=True)
    for index, error in failures.items():
        board.refuse(index, error)
    return _handle(packed.backend, manifest, board)


def _start_new(
    packed: Packed, items: Sequence[Any], plan: Plan, line: Line, progress: Progress
) -> BatchHandle:
    backend, namespace = packed.backend, packed.spec.namespace
    assert backend.supervised_queue is not None  # noqa: S101  else there is another way
    manifest = store_manifest(packed, plan, len(items), SUPERVISED)
    board = Board(len(items))
    try:
        with backend.supervised_queue.gather(namespace, line) as waiting:
            each = replace(packed, backend=waiting)
            made = []
            for index, item in enumerate(items):
                made.append(submit_input(each, plan, index, item))
                progress.submitting(index + 1, len(items))
    finally:
        finish(backend, plan.group_id, board)
    for index, job in enumerate(made):
        if isinstance(job, Exception):
            board.refuse(index, job)
        else:
            board.add(index, job)
    board.finish()
    return _handle(backend, manifest, board)


def attach_supervised(
    backend: Backend, manifest: Mapping[str, Any], interval: float, timeout: float | None
) -> BatchHandle:
    """Attach to a stored batch, while its submitter is at work or later."""
    board = read_board(backend, manifest["namespace"], manifest, interval, timeout)
    return _handle(backend, manifest, board)
