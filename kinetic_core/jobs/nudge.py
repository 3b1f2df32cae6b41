"""Nudges: a connection to a worker, which makes calls quick and on which nothing depends.

Through it a client tells the worker to look for a call, and the worker tells the client to look for its end.
Without it both look into the store a few times a second.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable

from kinetic_core._runner import object_names
from kinetic_core._runner.notes import ForgedNote, decode_note
from kinetic_core._runner.nudge import LOOK
from kinetic_core.backends.base import Backend
from kinetic_core.errors import KineticError, ObjectNotFound
from kinetic_core.jobs.forward import Connection

_LONGEST_NOTE = 1 << 12
_AGAIN_SECONDS = 60.0
"""Seconds after a connection has failed in which no other is tried."""
_CLOSE = b"c"
_CHUNK = 16
_LOG = logging.getLogger(__name__)


class Nudge:
    """Connection to one worker, opened and served by a thread of its own, as long as both sides live."""

    def __init__(
        self,
        backend: Backend,
        namespace: str,
        worker_id: str,
        key: bytes,
        looked: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open nothing yet. `looked` is called, in the thread, when the worker says that a call has ended."""
        self._backend, self._namespace = backend, namespace
        self._worker_id, self._key, self._looked, self._clock = worker_id, key, looked, clock
        self._lock = threading.Lock()
        self._waker: socket.socket | None = None
        """Other end of what the thread waits for; None without a thread."""
        self._again_at = 0.0
        self._is_closed = False

    def open(self) -> None:
        """Begin to connect, unless there is a connection or none can be had. Returns at once."""
        with self._lock:
            if self._waker is not None or self._is_closed or self._clock() < self._again_at:
                return
            woken, self._waker = socket.socketpair()
            name = f"kinetic-nudge-{self._worker_id}"
            threading.Thread(target=self._run, args=(woken,), name=name, daemon=True).start()

    def send(self) -> None:
        """Tell the worker to look, as soon as there is a connection. Returns at once."""
        self._order(LOOK)

    def close(self) -> None:
        """End the connection, and open none again."""
        self._is_closed = True
        self._order(_CLOSE)

    def _order(self, order: bytes) -> None:
        with self._lock:
            if self._waker is not None:
                try:
                    self._waker.send(order)
                except OSError:
                    return  # the thread is about to end

    def _run(self, woken: socket.socket) -> None:
        again_at = 0.0
        try:
            connection = self._dialled()
            try:
                self._serve(connection, woken)
            finally:
                connection.close()
        except (KineticError, OSError, ObjectNotFound, ForgedNote, KeyError, TypeError) as exc:
            _LOG.debug("%s is not nudged: %s", self._worker_id, exc)
            again_at = self._clock() + _AGAIN_SECONDS
        finally:
            with self._lock:
                waker, self._waker, self._again_at = self._waker, None, again_at
            if waker is not None:
                waker.close()
            woken.close()

    def _dialled(self) -> Connection:
        name = object_names.nudge(self._worker_id)
        told = decode_note(self._key, name, self._backend.store.read_range(name, 0, _LONGEST_NOTE))
        return self._backend.ports.dial(self._namespace, told["pod"], told["port"])

    def _serve(self, connection: Connection, woken: socket.socket) -> None:
        sources: list[socket.socket | int] = [woken, connection.fileno()]
        while True:
            ready, _, _ = select.select(sources, [], [])
            if woken in ready:
                orders = woken.recv(_CHUNK)
                if _CLOSE in orders or not orders:
                    return
                connection.send(LOOK)
            if connection.fileno() in ready:
                told = connection.receive()
                if told is None:
                    return
                if told:
                    self._looked()


def nudge_of(
    backend: Backend, namespace: str, worker_id: str, key: bytes, looked: Callable[[], None]
) -> Nudge:
    """Return the client's connection to a worker."""
    return backend.connections.get(
        (Nudge, backend.key, namespace, worker_id), lambda: Nudge(backend, namespace, worker_id, key, looked)
    )
