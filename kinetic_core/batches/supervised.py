"""Supervised batches: all jobs are created at once, and wait for their turn without a client."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kinetic_core._runner import wire
from kinetic_core.backends.base import Backend, SupervisedQueue
from kinetic_core.batches.definition import Plan, batch_digest, failure_object, finished_object, input_id
from kinetic_core.batches.handle import finish
from kinetic_core.batches.progress import Board
from kinetic_core.batches.single import DetachedBatchHandle, read_board, store_manifest, submit_input
from kinetic_core.errors import JobConflict, ObjectExists, ObjectNotFound, StoreError
from kinetic_core.job import JobStatus, Line
from kinetic_core.jobs.bundle import Packed
from kinetic_core.jobs.cancel import delete_payloads, index_object
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.inputs import read_manifest
from kinetic_core.jobs.observe import find
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.store.documents import read_document

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
    turns, namespace = packed.backend.turns, packed.spec.namespace
    assert turns is not None  # noqa: S101  only there inputs wait for their turn
    digest = batch_digest(packed, items, plan)
    with turns.take_up(namespace, line) as (waiting, is_idle):
        manifest = _manifest(packed, plan, len(items), digest)
        batch = _Stored(packed.backend, turns, namespace, plan.group_id, len(items))
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
    turns: SupervisedQueue
    namespace: str
    group_id: str
    size: int

    def without_value(self) -> list[int]:
        return [index for index in range(self.size) if self._status(index) is not JobStatus.SUCCEEDED]

    def never_made(self) -> list[int]:
        """List the inputs whose jobs were never created; jobs that were removed later do not count."""
        try:
            finished = read_document(self.backend.store, finished_object(self.group_id), dropped=list)
            submitters_left: Iterable[int] = {index for index in finished["dropped"] if type(index) is int}
        except ObjectNotFound:
            submitters_left = range(self.size)
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
        store.delete(finished_object(self.group_id))
        if may_start:
            store.delete(wire.stop_object(self.group_id))
        self.turns.forget(self.namespace, [input_id(self.group_id, index) for index in indexes])
        for index in indexes:
            reference = find(self.backend, input_id(self.group_id, index))
            if reference is not None:
                store.delete(index_object(reference))
            store.delete_all(f"jobs/{input_id(self.group_id, index)}/")
            store.delete(failure_object(self.group_id, index))

    def tell_submitted(self) -> None:
        """Store that all inputs are submitted, whatever an earlier supervisor has written."""
        store, name = self.backend.store, finished_object(self.group_id)
        content = json.dumps({"dropped": []}).encode()
        if store.find(name) is not None and store.read(name) != content:
            store.delete(name)
        with suppress(ObjectExists):
            store.create(name, content)

    def _status(self, index: int) -> JobStatus:
        reference = find(self.backend, input_id(self.group_id, index))
        return JobStatus.NOT_FOUND if reference is None else reconcile(self.backend, reference).status


def _manifest(packed: Packed, plan: Plan, size: int, digest: str) -> Mapping[str, Any]:
    store = packed.backend.store
    try:
        manifest = read_manifest(store, plan.group_id)
    except ObjectNotFound:
        store.delete_all(wire.batch_object(plan.group_id, ""))  # what a clean-up that was killed has left
        return store_manifest(packed, plan, size, namespace=packed.spec.namespace, **{DIGEST: digest})
    if manifest.get(DIGEST) != digest:
        raise JobConflict(
            f"{plan.group_id} exists already and is another batch (other function, inputs, files or "
            "options); use another group_id"
        )
    return manifest


_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 10.0


class WaitingBatchHandle(DetachedBatchHandle):
    """Handle of a batch that this machine runs without a client."""

    def __init__(self, manifest: Mapping[str, Any], board: Board, backend: Backend) -> None:
        super().__init__(manifest["group_id"], manifest["group_name"], manifest["tags"], board, backend)
        self._namespace: str = manifest["namespace"]
        self._may_be_asked_for_again = DIGEST in manifest

    def cancel(self) -> None:
        """Start no further job and stop every job that has not ended; return when none of them runs."""
        self._stop_starting()
        assert self._backend.turns is not None  # noqa: S101  only there inputs wait for their turn
        self._backend.turns.drop(self._namespace, self.group_id)
        with self._board.changed:
            living = [job for i, job in enumerate(self._board.jobs) if job and i not in self._board.ended]
        self._cancel_all(living)

    def _drop(self, succeeded: list[JobHandle]) -> None:
        """Remove jobs once all values are collected, but keep the keys if the same call may be made again."""
        jobs = self._all_collected(succeeded)
        if not self._may_be_asked_for_again:
            super()._drop(jobs)
            return
        try:
            delete_payloads(self._backend.store, jobs)
        except StoreError as exc:
            _LOG.warning("cleaning up after %s: %s", self.group_id, exc)

    def _when_left(self, living: int) -> str:
        return f"goes on without this process, {living} of its jobs have not ended"


def start_supervised(packed: Packed, items: Sequence[Any], plan: Plan) -> WaitingBatchHandle:
    """Create all jobs, which wait; their supervisor runs them. Neither needs this process from here on.

    If an exception interrupts this, no job of a batch with a generated id runs; jobs of a batch with an id
    that the user chose stay for the next call.
    """
    line = Line(plan.group_id, len(items), plan.max_concurrent, plan.fail_fast, plan.cancel_running)
    if plan.is_new:
        return _start_new(packed, items, plan, line)
    manifest, failures = take_up(packed, items, plan, line)
    namespace = manifest["namespace"]
    board = read_board(packed.backend, namespace, manifest, _LOOK_SECONDS, None, follows=True)
    for index, error in failures.items():
        board.refuse(index, error)
    return WaitingBatchHandle(manifest, board, packed.backend)


def _start_new(packed: Packed, items: Sequence[Any], plan: Plan, line: Line) -> WaitingBatchHandle:
    backend, namespace = packed.backend, packed.spec.namespace
    assert backend.turns is not None  # noqa: S101  else there is another way
    manifest = store_manifest(packed, plan, len(items), namespace=namespace)
    board = Board(len(items))
    try:
        with backend.turns.gather(namespace, line) as waiting:
            each = replace(packed, backend=waiting)
            made = [submit_input(each, plan, index, item) for index, item in enumerate(items)]
    finally:
        finish(backend, plan.group_id, board)
    for index, job in enumerate(made):
        if isinstance(job, Exception):
            board.refuse(index, job)
        else:
            board.add(index, job)
    board.finish()
    return WaitingBatchHandle(manifest, board, backend)


def attach_supervised(
    backend: Backend, manifest: Mapping[str, Any], interval: float, timeout: float | None
) -> WaitingBatchHandle:
    """Attach to a stored batch, while its submitter is at work or later."""
    board = read_board(backend, manifest["namespace"], manifest, interval, timeout)
    return WaitingBatchHandle(manifest, board, backend)
