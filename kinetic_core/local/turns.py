"""Batches whose jobs wait for their turn: made, looked after, dropped. The supervisor does the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kinetic_core.errors import StoreError
from kinetic_core.local import process
from kinetic_core.local.layout import Layout
from kinetic_core.local.lines import drop_waiting
from kinetic_core.local.record import take_lock
from kinetic_core.local.starting import start_supervisor

if TYPE_CHECKING:
    from kinetic_core.local.backend import LocalBackend
    from kinetic_core.model.line import Line


class LocalTurns:
    """A batch's lock is held by whoever makes its jobs, and then by its supervisor, so that there is one."""

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
