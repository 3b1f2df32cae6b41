"""An HTTP/1.1 server, on a thread of its own, that plays a script of faults with whatever it serves."""

from __future__ import annotations

import io
import socket
import threading
from abc import ABC, abstractmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self, cast

from kinetic_core.testing.faults import Act, Fault, Faults

_CLOSE_SECONDS = 10.0


class ConnectionDropped(Exception):
    """A fault has ended the connection, or the client has."""


class FaultyServer:
    """A server that listens from when it is made until it is closed; a context manager.

    `port` 0 takes a free one. Listen on an address that pods can reach to serve them too.
    """

    handler: type[FaultyHandler]

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.faults = Faults()
        self.closing = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._served = threading.Condition()
        self._listener = _Listener((host, port), self.handler)
        self._listener.owner = self
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens: `http://HOST:PORT`."""
        host, port = self._listener.server_address[:2]
        return f"http://{host!s}:{port}"

    def disconnect(self) -> None:
        """Break every connection that is open now, as a server does that dies."""
        with self._served:
            for each in self._sockets:
                _shut(each)

    def close(self) -> None:
        """Stop listening, break what is open, and wait for the threads to end."""
        self.closing.set()
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()
        self.disconnect()
        with self._served:
            self._served.wait_for(lambda: not self._sockets, _CLOSE_SECONDS)

    def hold(self, connection: socket.socket) -> None:
        """Have a connection broken with the others."""
        with self._served:
            self._sockets.add(connection)
        if self.closing.is_set():
            _shut(connection)

    def release(self, connection: socket.socket) -> None:
        """The connection is about to be closed by its owner."""
        with self._served:
            self._sockets.discard(connection)
            self._served.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    owner: FaultyServer

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self.owner.hold(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.owner.release(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is what this server is for; anything else is told by the standard way."""
        import sys

        if not isinstance(sys.exception(), (ConnectionDropped, OSError)):
            super().handle_error(request, client_address)


class FaultyHandler(BaseHTTPRequestHandler, ABC):
    """Handles the requests of one connection: plays their faults, and calls `serve` for the rest."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @abstractmethod
    def serve(self, body: bytes, passed: int) -> None:
        """Answer the request with `reply` and `write`; only `passed` bytes of its body arrive."""

    _fault: Fault | None = None
    _left: int | None = None
    """Bytes of the reply's body that may still leave."""
    _chunked = False

    @property
    def owner(self) -> FaultyServer:
        """The server this connection belongs to."""
        return cast("_Listener", self.server).owner

    def reply(self, status: int, headers: list[tuple[str, str]], length: int | None) -> None:
        """Start an answer; without a length it is written in chunks and ended by an empty one."""
        if self._left == 0 and self._fault is not None and self._fault.act is Act.SILENCE:
            self._stop(self._fault)
        self._chunked = length is None
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def write(self, piece: bytes) -> None:
        """Send a part of the body now; an empty one ends a chunked body."""
        allowed = piece if self._left is None else piece[: self._left]
        if allowed or not piece:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(allowed), allowed) if self._chunked else allowed)
        if self._left is not None and self._fault is not None:
            self._left -= len(allowed)
            if len(allowed) < len(piece) or self._left == 0:
                self._stop(self._fault)

    def _stop(self, fault: Fault) -> None:
        """The reply ends here: at once, or after a silence."""
        self.owner.closing.wait(fault.seconds)
        raise ConnectionDropped

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.owner.faults.take(self.command, self.path, body)
        cut = fault is not None and fault.act in (Act.CUT_REPLY, Act.SILENCE)
        self._fault, self._left = fault, fault.after_bytes if cut and fault is not None else None
        try:
            self._play(fault, body)
        except (ConnectionDropped, OSError):
            self.close_connection = True
            _shut(self.connection)

    def _play(self, fault: Fault | None, body: bytes) -> None:
        act = None if fault is None else fault.act
        if fault is None or act in (Act.CUT_REPLY, Act.SILENCE):
            self.serve(body, len(body))
        elif act is Act.ANSWER:
            headers = {"Content-Type": "application/json", **fault.headers}
            self.reply(fault.status, list(headers.items()), len(fault.body))
            self.wfile.write(fault.body)
        elif act is Act.DELAY:
            self.owner.closing.wait(fault.seconds)
            self.serve(body, len(body))
        elif act is Act.LOSE_REPLY:
            self.wfile = cast("io.BufferedIOBase", io.BytesIO())
            self.serve(body, len(body))
            raise ConnectionDropped
        elif act is Act.CUT_REQUEST:
            self.serve(body, min(fault.after_bytes, len(body)))
            raise ConnectionDropped
        else:
            raise ConnectionDropped

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815  dispatched by name

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name in the base class
        """Say nothing: the requests are recorded."""


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other side was quicker
