"""A port of this machine whose connections lead somewhere else: to what a job listens on."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Protocol, Self

from kinetic_core.errors import InvalidRequest, KineticError
from kinetic_core.local.ports import SocketConnection

_JOIN_SECONDS = 30.0
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

    def __init__(self, listener: socket.socket, dial: Callable[[], Connection]) -> None:
        self.port: int = listener.getsockname()[1]
        self._listener, self._dial = listener, dial
        listener.setblocking(False)
        self._woken, self._waker = socket.socketpair()
        self._peers: dict[Connection, Connection] = {}
        """Both ends of each pair, by the other."""
        self._thread = threading.Thread(target=self._run, name=f"kinetic-forward-{self.port}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the thread close everything and end; from any thread, any number of times."""
        try:
            self._waker.send(b"\0")
        except OSError:
            return  # it has

    def close(self) -> None:
        """The same; when this returns, nothing is open any more."""
        self.stop()
        self._thread.join(_JOIN_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener, self._woken, self._waker:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            try:
                while True:
                    for key, _ in selector.select():
                        if key.fileobj is self._woken:
                            return
                        if key.fileobj is self._listener:
                            self._accept(selector)
                        elif key.data in self._peers:  # its other end may have closed it just now
                            self._pass_on(selector, key.data)
            finally:
                for connection in list(self._peers):
                    connection.close()

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
