"""The inputs of a batch that have a Job each: how one is submitted, and how they are found again."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kinetic_core.batch.board import Board
from kinetic_core.batch.failures import note_failure
from kinetic_core.batch.inputs import arguments_of
from kinetic_core.batch.names import child_id, failure_object, finished_object, manifest_object
from kinetic_core.batch.plan import Plan
from kinetic_core.errors import KineticError, ObjectNotFound
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.handle import JobHandle
from kinetic_core.lifecycle.observing import find
from kinetic_core.lifecycle.packing import Packed
from kinetic_core.lifecycle.preparing import Group, address
from kinetic_core.lifecycle.submission import submit


def read_board(
    backend: Backend, manifest: Mapping[str, Any], interval: float, timeout: float | None
) -> Board:
    """What is stored; while it is not all, a thread looks every `interval` seconds for jobs that are new."""
    group_id, board = str(manifest["group_id"]), Board(int(manifest["total_expected"]))
    reader = _Reader(backend, group_id, board, interval, timeout)
    if not reader.look():
        threading.Thread(target=reader.run, name=f"kinetic-{group_id}", daemon=True).start()
    return board


def store_manifest(packed: Packed, plan: Plan, size: int, **more: str) -> dict[str, Any]:
    """Say, and return what was said, that there is such a batch, of which each input has a Job of its own."""
    content = plan.manifest(size, packed.function_name, **more)
    packed.backend.store.create(manifest_object(plan.group_id), json.dumps(content, sort_keys=True).encode())
    return content


def submit_input(packed: Packed, plan: Plan, index: int, item: Any) -> JobHandle | Exception:
    """Submit one input; why it cannot be, if so, which is stored then."""
    try:
        args, kwargs = arguments_of(item, plan.input_mode)
        job_id, group = child_id(plan.group_id, index), Group(plan.group_id, "map", index)
        return JobHandle.of(submit(address(packed, args, kwargs, job_id=job_id, group=group)))
    except Exception as exc:  # noqa: BLE001  this input's failure; the others go on
        note_failure(packed.backend.store, plan.group_id, index, exc)
        return exc


@dataclass(frozen=True)
class _Reader:
    """Fills a board from the store while another process submits."""

    backend: Backend
    group_id: str
    board: Board
    interval: float
    timeout: float | None

    def look(self) -> bool:
        """Read what is stored now; True when submission is over."""
        finished = self.backend.store.find(finished_object(self.group_id)) is not None
        for index in range(self.board.size):
            if self.board.jobs[index] is None and index not in self.board.submission_failures:
                self._read(index)
        with self.board.changed:
            known = sum(job is not None for job in self.board.jobs) + len(self.board.submission_failures)
        if finished or known == self.board.size:
            self.board.finish()
            return True
        return False

    def run(self) -> None:
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        pause = threading.Event()
        while not pause.wait(self.interval):
            if self.look():
                return
            if self.board.stopping or (deadline is not None and time.monotonic() > deadline):
                with self.board.changed:
                    missing = [i for i, job in enumerate(self.board.jobs) if job is None]
                    self.board.unavailable = {i: child_id(self.group_id, i) for i in missing}
                self.board.finish()
                return

    def _read(self, index: int) -> None:
        reference = find(self.backend, child_id(self.group_id, index))
        if reference is not None:
            self.board.add(index, JobHandle.of(reference))
            return
        try:
            note = json.loads(self.backend.store.read(failure_object(self.group_id, index)))
        except ObjectNotFound:
            return
        self.board.refuse(index, KineticError(f"{note['type']}: {note['message']}"))
