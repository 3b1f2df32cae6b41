"""A batch each of whose inputs has a Job of its own: submitted by a thread of this process."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from kinetic_core.batch.board import Board
from kinetic_core.batch.handle import BatchHandle, finish
from kinetic_core.batch.inputs import arguments_of
from kinetic_core.batch.names import child_id, failure_object, finished_object, manifest_object
from kinetic_core.batch.plan import Plan
from kinetic_core.errors import KineticError, ObjectNotFound
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.handle import JobHandle
from kinetic_core.lifecycle.hub import hub_for
from kinetic_core.lifecycle.observing import find
from kinetic_core.lifecycle.packing import Packed
from kinetic_core.lifecycle.preparing import Group, address
from kinetic_core.lifecycle.submission import submit

_LOG = logging.getLogger(__name__)


def start_single(packed: Packed, items: list[Any], plan: Plan) -> BatchHandle:
    """Start the jobs one by one."""
    store_manifest(packed, plan, len(items))
    board = Board(len(items))
    _Submitter(packed, items, plan, board).start()
    return BatchHandle(plan.group_id, plan.name, plan.tags, board, packed.backend)


def attach_single(
    backend: Backend, manifest: Mapping[str, Any], interval: float, timeout: float | None
) -> BatchHandle:
    """The same from what is stored."""
    board = read_board(backend, manifest, interval, timeout)
    group_id, tags = str(manifest["group_id"]), manifest.get("tags") or {}
    return BatchHandle(group_id, manifest.get("group_name"), tags, board, backend)


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
        note = json.dumps({"type": type(exc).__name__, "message": str(exc)}).encode()
        packed.backend.store.create(failure_object(plan.group_id, index), note)
        return exc


@dataclass(frozen=True)
class _Submitter:
    """Submits a batch's inputs, as many at a time as may live at once."""

    packed: Packed
    items: list[Any]
    plan: Plan
    board: Board

    @property
    def group_id(self) -> str:
        return self.plan.group_id

    def start(self) -> None:
        """Submit in a thread that is no daemon: a script that ends now still submits all its inputs."""
        with ExitStack() as kept:
            kept.enter_context(hub_for(self.packed.backend, self.packed.spec.namespace).held())
            threading.Thread(
                target=self._run, args=(kept.pop_all(),), name=f"kinetic-{self.group_id}"
            ).start()

    def _run(self, observing: ExitStack) -> None:
        with observing:
            self._submit_all()
            finish(self.packed.backend, self.group_id, self.board)

    def _submit_all(self) -> None:
        error: BaseException | None = None
        try:
            for index, item in enumerate(self.items):
                if not self._may_launch():
                    break
                self._launch(index, item)
            if self.plan.cancel_running:
                self._wait_and_cancel()
        except Exception as exc:  # noqa: BLE001  told to whoever waits for the batch
            _LOG.exception("submitting %s failed", self.group_id)
            error = exc
        self.board.finish(error)

    def _may_launch(self) -> bool:
        board = self.board

        def ready() -> bool | None:
            if self.plan.fail_fast and (board.failed() or board.submission_failures):
                board.stopping = True
            limit = self.plan.max_concurrent
            free = limit is None or board.active() < limit
            return True if board.stopping or free else None

        board.wait_for(ready, None, self.group_id)
        if not board.stopping and self.packed.backend.store.find(finished_object(self.group_id)):
            board.stop(cancel=True)  # somebody who attached to the batch has cancelled it
        return not board.stopping

    def _launch(self, index: int, item: Any) -> None:
        handle = submit_input(self.packed, self.plan, index, item)
        if isinstance(handle, Exception):
            self.board.refuse(index, handle)
            return
        self.board.add(index, handle)
        if self.board.cancelled:
            handle.cancel()

    def _wait_and_cancel(self) -> None:
        board = self.board
        board.wait_for(
            lambda: True if board.failed() or board.submission_failures or board.active() == 0 else None,
            None,
            "",
        )
        with board.changed:
            living = [job for i, job in enumerate(board.jobs) if job is not None and i not in board.ended]
        for job in living:
            job.cancel()


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
