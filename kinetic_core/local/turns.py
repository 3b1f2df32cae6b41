"""Batches whose jobs wait for their turn: made, looked after, dropped. The supervisor does the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from kinetic_core.errors import StoreError
from kinetic_core.local import process
from kinetic_core.local.layout import Layout
from kinetic_core.local.lines import drop_waiting, forget, job_ids
from kinetic_core.local.record import is_over, is_waiting, read_record, take_lock, wait_for_lock
from kinetic_core.local.starting import start_supervisor

if TYPE_CHECKING:
    from kinetic_core.local.backend import LocalBackend
    from kinetic_core.model.line import Line


class LocalTurns:
    """A batch's lock is held by whoever makes its jobs, and then by its supervisor, so that there is one.

    A batch of which jobs can be made while it has a supervisor has a second lock for that.
    """

    def __init__(self, layout: Layout, in_line: Callable[[Line], LocalBackend]) -> None:
        self._layout, self._in_line = layout, in_line

    @contextmanager
    def gather(self, namespace: str, line: Line) -> Iterator[LocalBackend]:
        """A backend whose jobs wait in this line; at the end its supervisor is started.

        Raises StoreError if the batch is being made by another process, BackendUnavailable.
        """
        process.made(self._layout.cluster(namespace))
        lock = take_lock(self._layout.batch_lock(namespace, line.group_id))
        if lock is None:
            raise StoreError(f"{line.group_id} is being made by another process")
        try:
            yield self._in_line(line)
            start_supervisor(self._layout, namespace, line, lock)
        except BaseException:
            self.drop(namespace, line.group_id)
            raise
        finally:
            os.close(lock)

    @contextmanager
    def take_up(self, namespace: str, line: Line) -> Iterator[tuple[LocalBackend, bool]]:
        """As `gather`, for a batch that others may make, too, or have made; and whether nothing of it lives.

        Inside, nobody else makes jobs of it; one who does is waited for. Left by an exception, what was made
        waits for whoever looks at it. Raises BackendUnavailable.
        """
        layout, group_id = self._layout, line.group_id
        process.made(layout.cluster(namespace))
        with ExitStack() as held:
            held.callback(os.close, wait_for_lock(layout.making_lock(namespace, group_id)))
            backend = self._in_line(line)
            lock = take_lock(layout.batch_lock(namespace, group_id))
            lives = self._lives(backend, namespace, group_id)
            if lock is None and not lives:  # its supervisor is about to end
                lock = wait_for_lock(layout.batch_lock(namespace, group_id))
            if lock is not None:
                held.callback(os.close, lock)
            known = job_ids(layout, namespace, group_id)
            yield backend, not lives
            if lock is not None:
                if self._waiting(namespace, group_id):
                    start_supervisor(layout, namespace, line, lock)
            elif job_ids(layout, namespace, group_id) != known:  # which the supervisor there is does not know
                start_supervisor(layout, namespace, line, None)

    def look_after(self, namespace: str, line: Line, *, is_waiting: bool) -> None:
        """Give a batch, one of whose jobs has not ended, another supervisor if it needs one and has none."""
        if not (is_waiting or line.cancel_running):
            return
        lock = take_lock(self._layout.batch_lock(namespace, line.group_id))
        if lock is None:
            return
        try:
            start_supervisor(self._layout, namespace, line, lock)
        finally:
            os.close(lock)

    def drop(self, namespace: str, group_id: str) -> None:
        """End the jobs that still wait; one that is being started just now is not among them."""
        drop_waiting(self._layout, namespace, group_id)

    def forget(self, namespace: str, job_ids: Iterable[str]) -> None:
        """Forget jobs that have ended, so that they can be made again: even their agents have ended then."""
        for job_id in job_ids:
            lock = wait_for_lock(self._layout.lock(namespace, job_id))
            try:
                forget(self._layout, namespace, job_id)
            finally:
                os.close(lock)

    def _lives(self, backend: LocalBackend, namespace: str, group_id: str) -> bool:
        found = (backend.get(namespace, job_id) for job_id in job_ids(self._layout, namespace, group_id))
        return any(one is not None and not is_over({"job": one[0]}) for one in found)

    def _waiting(self, namespace: str, group_id: str) -> bool:
        ids = job_ids(self._layout, namespace, group_id)
        records = (read_record(self._layout.record(namespace, job_id)) for job_id in ids)
        return any(record is not None and is_waiting(record) for record in records)
