"""Ports of this machine: what local jobs listen on, and where a debugger of a job elsewhere comes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

_CHUNK = 1 << 16
_SECONDS = 20.0


class SocketConnection:
    """A connection over a plain socket, as `jobs.forward.Connection` describes it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(_SECONDS)
        self._socket = sock

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> bytes | None:
        return self._socket.recv(_CHUNK) or None

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        self._socket.close()


class LocalPorts:
    """What the processes of local jobs listen on."""

    def check(self, namespace: str) -> None:
        """Whoever can start a local job can connect to it."""

    def dial(self, namespace: str, pod: str, port: int) -> SocketConnection:
        """Raises OSError if nothing listens there."""
        import socket

        del namespace, pod  # here all have the same loopback
        return SocketConnection(socket.create_connection(("127.0.0.1", port), _SECONDS))
