"""Forwarding of a local port to connections of another kind, such as those to a pod's port."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol, Self

from kinetic_core.backends.local.ports import SocketConnection
from kinetic_core.errors import InvalidRequest, KineticError

_JOIN_SECONDS = 30.0
_DRAIN_SECONDS = 2.0
"""Seconds for the news that the job has ended, and the debugger's good-bye."""
_DRAIN, _CLOSE = b"d", b"c"
_CHUNK = 16
_LOG = logging.getLogger(__name__)


class Connection(Protocol):
    """Connection that one thread serves together with others."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has something to do."""

    def receive(self) -> bytes | None:
        """Return the bytes that have arrived, b"" for none yet; None once the other side is closed."""

    def send(self, data: bytes) -> None:
        """Send all of the data."""

    def close(self) -> None: ...


def listening(port: int) -> socket.socket:
    """Open a socket that listens on this port of the loopback; 0 picks a free port.

    Raises InvalidRequest, naming `local_port`, if the port is taken.
    """
    if not isinstance(port, int) or isinstance(port, bool):
        raise TypeError(f"local_port={port!r} must be a whole number")
    if not 0 <= port <= 65535:
        raise InvalidRequest(f"local_port={port} must be between 0 (any free port) and 65535")
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as exc:
        raise InvalidRequest(
            f"local_port={port} cannot be used on this machine: {os.strerror(exc.errno or 0)}. Choose "
            "another, or 0 for any that is free; a call with debug=True takes KINETIC_DEBUG_PORT"
        ) from exc


class Forward:
    """Thread that connects each client of `listener` to a connection that `dial` opens."""

    def __init__(
        self, listener: socket.socket, dial: Callable[[], Connection], patience: float = _DRAIN_SECONDS
    ) -> None:
        """Start the thread. `patience` is how many seconds `drain` leaves open connections."""
        self.port: int = listener.getsockname()[1]
        self._listener, self._dial, self._patience = listener, dial, patience
        listener.setblocking(False)
        self._woken, self._waker = socket.socketpair()
        self._peers: dict[Connection, Connection] = {}
        """Both ends of each pair, keyed by the other end."""
        self._thread = threading.Thread(target=self._run, name=f"kinetic-forward-{self.port}", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Accept no more connections, and let open ones end by themselves. Does not wait."""
        self._wake(_DRAIN)

    def close(self) -> None:
        """Close all connections at once; return when they are closed."""
        self._wake(_CLOSE)
        self.join()

    def join(self) -> None:
        """Wait until the forwarding is closed."""
        self._thread.join(_JOIN_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake(self, order: bytes) -> None:
        try:
            self._waker.send(order)
        except OSError:
            return  # it is closed

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener, self._woken, self._waker:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            try:
                self._serve(selector)
            finally:
                for connection in list(self._peers):
                    connection.close()

    def _serve(self, selector: selectors.BaseSelector) -> None:
        end: float | None = None
        while end is None or (self._peers and time.monotonic() < end):
            for key, _ in selector.select(None if end is None else max(0.0, end - time.monotonic())):
                if key.fileobj is self._woken:
                    if _CLOSE in self._woken.recv(_CHUNK):
                        return
                    if end is None:
                        end = time.monotonic() + self._patience
                        selector.unregister(self._listener)
                        self._listener.close()
                elif key.fileobj is self._listener:
                    if end is None:
                        self._accept(selector)
                elif key.data in self._peers:  # its other end may have closed it just now
                    self._pass_on(selector, key.data)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            here = SocketConnection(self._listener.accept()[0])
        except OSError:
            return  # who had come is gone
        try:
            there = self._dial()
        except (KineticError, OSError) as exc:
            _LOG.warning("port %d leads nowhere now: %s", self.port, exc)
            here.close()
            return
        for one, other in ((here, there), (there, here)):
            self._peers[one] = other
            selector.register(one.fileno(), selectors.EVENT_READ, one)

    def _pass_on(self, selector: selectors.BaseSelector, one: Connection) -> None:
        other = self._peers[one]
        try:
            data = one.receive()
            if data:
                other.send(data)
            if data is not None:
                return
        except KineticError as exc:
            _LOG.warning("a connection through port %d broke: %s", self.port, exc)
        except OSError as exc:
            _LOG.debug("a connection through port %d broke here: %s", self.port, exc)
        for each in (one, other):
            selector.unregister(each.fileno())
            del self._peers[each]
            each.close()
