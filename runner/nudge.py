"""Nudge: connections by which clients tell a worker to look for a call, and it tells them of its end.

A byte in either direction says "look into the store now", and nothing else. Whoever connects can make the
other side look a little sooner; a connection that is lost makes both sides look as often as without one.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from . import object_names
from .attempt import Job
from .notes import encode_note
from .store import Store, StoreUnavailable

LOOK = b"\n"
_LOOPBACK = "127.0.0.1"
_CLIENTS = 64
_CHUNK = 1 << 12
_LEAST_SECONDS = 0.01
"""Seconds between two nudges that count: more often nobody makes the worker look."""


class Nudge:
    """Port of the worker's loopback, and the clients that are connected to it."""

    def __init__(self) -> None:
        """Listen on a port. Raises OSError."""
        self._listener = socket.create_server((_LOOPBACK, 0))
        self._listener.setblocking(False)
        self._clients: list[socket.socket] = []
        self._nudged_at = 0.0
        self.port: int = self._listener.getsockname()[1]

    def sources(self) -> Sequence[socket.socket]:
        """Return what becomes readable when somebody connects or nudges."""
        return [self._listener, *self._clients]

    def take(self) -> None:
        """Take what clients have sent. Returns at once, unless they send without a pause."""
        self._accept()
        for client in list(self._clients):
            try:
                if not client.recv(_CHUNK):
                    self._drop(client)
            except BlockingIOError:
                continue
            except OSError:
                self._drop(client)
        now = time.monotonic()
        time.sleep(max(0.0, self._nudged_at + _LEAST_SECONDS - now))
        self._nudged_at = now

    def tell(self) -> None:
        """Tell all clients to look."""
        self._accept()
        for client in list(self._clients):
            try:
                client.send(LOOK)
            except BlockingIOError:
                continue  # it has more than enough to read
            except OSError:
                self._drop(client)

    def close(self) -> None:
        """Close everything in this process; another one that has forked it keeps its own."""
        for each in self.sources():
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):  # nobody else has come
            while True:
                client, _ = self._listener.accept()
                client.setblocking(False)
                self._clients.append(client)
                if len(self._clients) > _CLIENTS:
                    self._drop(self._clients[0])

    def _drop(self, client: socket.socket) -> None:
        self._clients.remove(client)
        client.close()


def open_nudge(worker: Job, store: Store) -> Nudge | None:
    """Listen for nudges, and note port and pod for clients; None, saying why, where that cannot be done."""
    name = object_names.nudge(worker.job_id)
    try:
        nudge = Nudge()
    except OSError as exc:
        sys.stderr.write(f"kinetic: no client can nudge this worker: {exc}\n")
        return None
    try:
        told = {"port": nudge.port, "pod": worker.pod_name}
        store.create_if_absent(name, encode_note(worker.outcome_key, name, told))
    except StoreUnavailable as exc:
        sys.stderr.write(f"kinetic: no client can nudge this worker: {exc}\n")
        nudge.close()
        return None
    return nudge
