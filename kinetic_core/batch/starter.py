"""A client that gives the inputs of a line their turns. Any number of them do that together.

All take the inputs in the same order, and a job is created once for one id. So each knows every input before
the one it creates, and between them no more live than one of them would let live.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from dataclasses import dataclass

from kinetic_core._runner.wire import stop_object
from kinetic_core.batch.board import Board
from kinetic_core.batch.failures import note_failure
from kinetic_core.batch.handle import finish
from kinetic_core.batch.lines import Line
from kinetic_core.batch.names import child_id, finished_object
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.handle import JobHandle
from kinetic_core.lifecycle.hub import hub_for
from kinetic_core.lifecycle.observing import find

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rules:
    """When an input may start: `max_concurrent` jobs live at once (None: any number).

    `fail_fast`: none starts after one that failed; `cancel_running`: what runs then is stopped, too.
    """

    max_concurrent: int | None
    fail_fast: bool
    cancel_running: bool


@dataclass(frozen=True)
class Starter:
    """Starts the `todo` of a line, in rising order; the `board` has the rest."""

    backend: Backend
    namespace: str
    group_id: str
    line: Line
    todo: list[int]
    rules: Rules
    board: Board

    def begin(self, *, daemon: bool) -> None:
        """In a thread. A script that ends waits for one that is no daemon, and so starts all its inputs."""
        with ExitStack() as kept:
            kept.enter_context(hub_for(self.backend, self.namespace).held())
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
        """Whether nobody else needs to go on: False if this process was told to stop, and others were not."""
        for done, index in enumerate(self.todo):
            if not self._is_time():
                with self.board.changed:
                    return self.board.cancelled or self._has_failed()
            if self._has(finished_object(self.group_id)):
                self._take_over(self.todo[done:])
                return True
            self._start(index)
        return True

    def _take_over(self, rest: list[int]) -> None:
        """What another client has started. It has seen to it that nothing more starts."""
        for index in rest:
            reference = find(self.backend, child_id(self.group_id, index))
            if reference is not None:
                self.board.add(index, JobHandle.of(reference))

    def _is_time(self) -> bool:
        """Wait until one more may live; False if none may start any more."""
        board, limit = self.board, self.rules.max_concurrent

        def ready() -> bool | None:
            if self._has_failed():
                board.stopping = True
            return True if board.stopping or limit is None or board.active() < limit else None

        board.wait_for(ready, None, self.group_id)
        if not board.stopping and self._has(stop_object(self.group_id)):
            board.stop(cancel=True)  # somebody, on whatever machine, has cancelled the batch
        return not board.stopping

    def _has_failed(self) -> bool:
        """Whether an input's failure stops the others. Call it under the board's `changed`."""
        return self.rules.fail_fast and bool(self.board.failed() or self.board.submission_failures)

    def _has(self, name: str) -> bool:
        return self.backend.store.find(name) is not None

    def _start(self, index: int) -> None:
        waiting = self.line[index]
        assert waiting is not None  # noqa: S101  what cannot be submitted is not to do
        try:
            handle = JobHandle.of(waiting.start(self.backend))
        except Exception as exc:  # noqa: BLE001  this input's failure; the others go on
            note_failure(self.backend.store, self.group_id, index, exc)
            self.board.refuse(index, exc)
            return
        self.board.add(index, handle)
        # It may have begun while somebody cancelled the batch.
        if self.board.cancelled or self._has(stop_object(self.group_id)):
            self.board.stop(cancel=True)
            handle.cancel()

    def _wait_and_cancel(self) -> None:
        board = self.board
        board.wait_for(lambda: True if self._has_failed() or board.active() == 0 else None, None, "")
        with board.changed:
            living = [job for i, job in enumerate(board.jobs) if job is not None and i not in board.ended]
        for job in living:
            job.cancel()
