"""Starting a batch whose inputs share Jobs, and finding it again."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kinetic_core.batch.board import Board
from kinetic_core.batch.failures import noted_failures
from kinetic_core.batch.names import finished_object
from kinetic_core.batch.part_watching import PartWatch
from kinetic_core.batch.plan import Plan
from kinetic_core.batch.shared_handle import SharedBatchHandle
from kinetic_core.batch.shared_jobs import submit_batch
from kinetic_core.cluster.parts import indexes_of
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.children import child_reference
from kinetic_core.lifecycle.handle import JobHandle
from kinetic_core.lifecycle.observing import placed
from kinetic_core.lifecycle.packing import Packed
from kinetic_core.model.job import JobReference


def start_shared(packed: Packed, items: Sequence[Any], plan: Plan) -> SharedBatchHandle:
    """Submit everything and watch it; the client is not needed from here on."""
    whole, failures = submit_batch(packed, items, plan)
    found = _Stored(packed.backend, whole, len(items), plan.fail_fast)
    board = found.board(failures)
    found.watch(board)
    return SharedBatchHandle(whole, plan.name, plan.tags, board, packed.backend)


def attach_shared(
    backend: Backend, manifest: Mapping[str, Any], interval: float, timeout: float | None
) -> SharedBatchHandle:
    """The same from what is stored. Until all inputs have a Job, a thread looks every `interval` seconds."""
    whole = placed(JobReference.from_dict(manifest["reference"]), backend)
    found = _Stored(backend, whole, int(manifest["total_expected"]), bool(manifest["fail_fast"]))
    board = found.board(noted_failures(backend.store, whole.job_id))
    if found.is_submitted(board):
        found.watch(board)
    else:
        name = f"kinetic-{whole.job_id}"
        threading.Thread(target=found.wait, args=(board, interval, timeout), name=name, daemon=True).start()
    return SharedBatchHandle(whole, manifest["group_name"], manifest["tags"], board, backend)


@dataclass(frozen=True)
class _Stored:
    """A batch as the store and the cluster have it."""

    backend: Backend
    whole: JobReference
    size: int
    fail_fast: bool

    def board(self, failures: Mapping[int, Exception]) -> Board:
        board = Board(self.size)
        board.submission_failures = dict(failures)
        children = (child_reference(self.whole, index) for index in range(self.size))
        board.fill([None if i in failures else JobHandle.of(child) for i, child in enumerate(children)])
        return board

    def is_submitted(self, board: Board) -> bool:
        """Whether every input has a Job, or had one."""
        if self.backend.store.find(finished_object(self.whole.job_id)) is not None:
            return True
        submitted = {index for job in self._parts() for index in indexes_of(job)}
        return len(submitted | board.submission_failures.keys()) == self.size

    def watch(self, board: Board) -> None:
        """Let the board be filled from now on."""
        PartWatch(self.backend, self.whole, board, self.fail_fast).start(self._parts())

    def wait(self, board: Board, interval: float, timeout: float | None) -> None:
        """Look again until all is submitted; then, or after `timeout` seconds, watch what there is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = threading.Event()
        while not pause.wait(interval):
            if board.stopping or (deadline is not None and time.monotonic() > deadline):
                break
            if self.is_submitted(board):
                break
        self.watch(board)

    def _parts(self) -> Sequence[Mapping[str, Any]]:
        assert self.backend.parts is not None  # noqa: S101  only there inputs share Jobs
        return self.backend.parts.parts(self.whole.namespace, self.whole.job_id)
