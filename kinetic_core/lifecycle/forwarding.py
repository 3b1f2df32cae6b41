"""A port of this machine whose connections lead somewhere else: to what a job listens on."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol, Self

from kinetic_core.errors import InvalidRequest, KineticError
from kinetic_core.local.ports import SocketConnection

_JOIN_SECONDS = 30.0
_DRAIN_SECONDS = 2.0
"""For the news that the job has ended, and the debugger's good-bye."""
_DRAIN, _CLOSE = b"d", b"c"
_CHUNK = 16
_LOG = logging.getLogger(__name__)


class Connection(Protocol):
    """One connection, as a thread that serves several needs it."""

    def fileno(self) -> int:
        """Readable when `receive` has something to do."""

    def receive(self) -> bytes | None:
        """What has arrived, b"" if nothing has yet; None once the other side is closed."""

    def send(self, data: bytes) -> None:
        """All of it."""

    def close(self) -> None: ...


def listening(port: int) -> socket.socket:
    """A socket that listens on this port of the loopback, 0 for a free one, until it is closed.

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
    """What connects to `listener` talks to what `dial` connects to, in one thread, until it is closed."""

    def __init__(
        self, listener: socket.socket, dial: Callable[[], Connection], patience: float = _DRAIN_SECONDS
    ) -> None:
        """`patience`: how many seconds connections have to end when it drains."""
        self.port: int = listener.getsockname()[1]
        self._listener, self._dial, self._patience = listener, dial, patience
        listener.setblocking(False)
        self._woken, self._waker = socket.socketpair()
        self._peers: dict[Connection, Connection] = {}
        """Both ends of each pair, by the other."""
        self._thread = threading.Thread(target=self._run, name=f"kinetic-forward-{self.port}", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Accept nothing more, and let what is connected end by itself. Does not wait."""
        self._wake(_DRAIN)

    def close(self) -> None:
        """Close everything at once; when this returns, nothing is open any more."""
        self._wake(_CLOSE)
        self.join()

    def join(self) -> None:
        """Wait until it is closed."""
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
