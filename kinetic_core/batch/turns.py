"""A batch whose jobs were all created when it returns, and wait for their turn without a client."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kinetic_core._runner import wire
from kinetic_core.batch.board import Board
from kinetic_core.batch.handle import finish
from kinetic_core.batch.plan import Plan
from kinetic_core.batch.single_jobs import read_board, store_manifest, submit_input
from kinetic_core.batch.taking_up import DIGEST, take_up
from kinetic_core.batch.unattended import UnattendedBatchHandle
from kinetic_core.errors import StoreError
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.handle import JobHandle
from kinetic_core.lifecycle.packing import Packed
from kinetic_core.model.line import Line

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 10.0


class WaitingBatchHandle(UnattendedBatchHandle):
    """One function over many inputs that this machine runs without a client."""

    def __init__(self, manifest: Mapping[str, Any], board: Board, backend: Backend) -> None:
        super().__init__(manifest["group_id"], manifest["group_name"], manifest["tags"], board, backend)
        self._namespace: str = manifest["namespace"]
        self._may_be_asked_for_again = DIGEST in manifest

    def cancel(self) -> None:
        """Start nothing more and stop every job that has not ended; returns when nothing of it runs."""
        self._stop_starting()
        assert self._backend.turns is not None  # noqa: S101  only there inputs wait for their turn
        self._backend.turns.drop(self._namespace, self.group_id)
        with self._board.changed:
            living = [job for i, job in enumerate(self._board.jobs) if job and i not in self._board.ended]
        self._cancel_all(living)

    def _drop(self, succeeded: list[JobHandle]) -> None:
        """Nothing before all values are collected, and no keys that whoever makes this call again needs."""
        jobs = self._all_collected(succeeded)
        if not self._may_be_asked_for_again:
            super()._drop(jobs)
            return
        try:
            self._backend.store.delete_many([wire.payload_object(job.job_id) for job in jobs])
        except StoreError as exc:
            _LOG.warning("cleaning up after %s: %s", self.group_id, exc)

    def _when_left(self, living: int) -> str:
        return f"goes on without this process, {living} of its jobs have not ended"


def start_in_turns(packed: Packed, items: Sequence[Any], plan: Plan) -> WaitingBatchHandle:
    """Create all jobs, which wait; their supervisor runs them. Neither needs this process from here on.

    If this is left by an exception, nothing of a batch with a new id runs; of one with an id of the user's,
    what was made stays for the next call.
    """
    line = Line(plan.group_id, len(items), plan.max_concurrent, plan.fail_fast, plan.cancel_running)
    if plan.is_new:
        return _start_new(packed, items, plan, line)
    manifest, failures = take_up(packed, items, plan, line)
    board = read_board(packed.backend, manifest, _LOOK_SECONDS, None)
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


def attach_in_turns(
    backend: Backend, manifest: Mapping[str, Any], interval: float, timeout: float | None
) -> WaitingBatchHandle:
    """The same from what is stored, while it is being made and ever after."""
    return WaitingBatchHandle(manifest, read_board(backend, manifest, interval, timeout), backend)
