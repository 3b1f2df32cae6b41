"""`Scheduler`: what starts the inputs of a batch, and so knows how to stop, collect and remove them.

Three modules have one each: `indexed` (Kubernetes runs many inputs as one Job), `supervised` (a process of
this machine gives each job its turn) and `client_driven` (a client creates the Job of each input).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kinetic_core._runner import object_names
from kinetic_core.backends.base import Backend
from kinetic_core.batches.progress import Board
from kinetic_core.job import JobStatus

if TYPE_CHECKING:
    from kinetic_core.jobs.handle import JobHandle

_WORKERS = 16
Tell = Callable[[int, int], None]
"""Is told how many of so many inputs are done."""


class Scheduler(Protocol):
    """Scheduler of one stored batch. `board` and `jobs` are those of the batch's handle."""

    @property
    def backend(self) -> Backend:
        """The backend that runs the batch."""

    def statuses(self, board: Board) -> list[tuple[int, JobStatus]]:
        """Return index and status of every job on the board; one that was just dropped may be CANCELLED."""

    def stop(self) -> None:
        """Start no further input."""

    def cancel(self, board: Board, tell: Tell) -> None:
        """Start no further input, and stop every job that has not ended; `tell` how many of them have."""

    def value(self, job: JobHandle) -> Any:
        """Return the value of a job that has ended, or raise its exception."""

    def discard(self, jobs: Sequence[JobHandle]) -> None:
        """Remove Kubernetes objects and payloads of all inputs, whose values are collected."""

    def remove(self, jobs: Sequence[JobHandle], *, k8s: bool, gcs: bool) -> None:
        """Remove the Kubernetes objects (`k8s`) and stored objects (`gcs`) of a batch that has ended."""

    def when_left(self, living: int) -> str:
        """Say what becomes of the batch without this process, whose `living` jobs have not ended."""


def finish(backend: Backend, group_id: str, board: Board, round_number: int = 0) -> None:
    """Store, once, that the batch, or a map's round, starts no further job, and which inputs were dropped."""
    with board.changed:
        dropped = sorted(board.dropped)
    mark = object_names.finished(group_id, round_number)
    backend.store.create_if_absent(mark, json.dumps({"dropped": dropped}).encode())


def in_parallel(
    action: Any, things: Sequence[Any], tell: Tell | None = None
) -> list[tuple[Any, BaseException | None]]:
    """Apply an action to each thing on a few threads; return each thing with the error that it met.

    `tell` is called in this thread whenever an action has ended.
    """
    if not things:
        return []
    from concurrent.futures import ThreadPoolExecutor, as_completed

    with ThreadPoolExecutor(min(_WORKERS, len(things)), "kinetic-batch") as pool:
        futures = [(thing, pool.submit(action, thing)) for thing in things]
        if tell is not None:
            for done, _ in enumerate(as_completed([future for _, future in futures]), 1):
                tell(done, len(things))
    return [(thing, future.exception()) for thing, future in futures]
