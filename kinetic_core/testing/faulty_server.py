"""An HTTP/1.1 server, on a thread of its own, that plays a script of faults with whatever it serves."""

from __future__ import annotations

import io
import re
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self, cast
from urllib.parse import unquote

_BODY_SHOWN = 4096


class Act(StrEnum):
    """What a fault does to a request."""

    ANSWER = "answer"
    """Answered here with a status, without being passed on."""
    DELAY = "delay"
    """Passed on some seconds later."""
    DROP = "drop"
    """The connection is closed, and nothing is passed on."""
    LOSE_REPLY = "lose reply"
    """Passed on and done; then the connection is closed without an answer."""
    CUT_REPLY = "cut reply"
    """The connection is closed in the middle of the reply's body."""
    CUT_REQUEST = "cut request"
    """A part of the request's body is passed on; then both connections are closed."""
    SILENCE = "silence"
    """Passed on; the reply comes to a stop, for some seconds, and the connection is closed then."""


@dataclass(frozen=True)
class Fault:
    """One rule of the script: what happens to requests that `match`, after `skip` of them, `times` times.

    `match` is a regular expression that is searched in `METHOD /path?query` (unquoted), a line feed and the
    first 4,096 bytes of the request's body; `^` and `$` are ends of lines. `times` None means always.
    """

    match: str
    act: Act
    times: int | None = 1
    skip: int = 0
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0
    after_bytes: int = 0


@dataclass(frozen=True)
class Request:
    """A request that arrived: `line` is `METHOD /path?query`, unquoted; `fault` is what happened to it."""

    line: str
    body: bytes
    fault: Fault | None


class Faults:
    """A script of faults and the record of all requests. Of the rules that match, the first applies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[tuple[Fault, list[int]]] = []
        self._requests: list[Request] = []

    @property
    def requests(self) -> tuple[Request, ...]:
        """Every request so far, in the order of arrival."""
        with self._lock:
            return tuple(self._requests)

    def count(self, match: str) -> int:
        """How many requests so far match, as a fault would."""
        return sum(
            bool(re.search(match, _text(each.line, each.body), re.MULTILINE)) for each in self.requests
        )

    @property
    def unmet(self) -> tuple[Fault, ...]:
        """The faults that never happened: a test that ends with some did not test what it meant to."""
        with self._lock:
            return tuple(fault for fault, (_, hits) in self._rules if not hits)

    def clear(self) -> None:
        """Forget the faults; requests stay recorded."""
        with self._lock:
            self._rules.clear()

    def add(self, fault: Fault) -> None:
        """Append a rule. Raises re.error for a `match` that is no regular expression."""
        re.compile(fault.match)
        with self._lock:
            self._rules.append((fault, [0, 0]))

    def answer(
        self,
        match: str,
        status: int,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        times: int | None = 1,
        skip: int = 0,
    ) -> None:
        """Answer with a status (and a body, and headers such as Retry-After); pass nothing on."""
        self.add(Fault(match, Act.ANSWER, times, skip, status=status, headers=dict(headers or {}), body=body))

    def delay(self, match: str, seconds: float, *, times: int | None = 1, skip: int = 0) -> None:
        """Pass requests on later."""
        self.add(Fault(match, Act.DELAY, times, skip, seconds=seconds))

    def drop(self, match: str, *, times: int | None = 1, skip: int = 0) -> None:
        """Close the connection, with nothing passed on."""
        self.add(Fault(match, Act.DROP, times, skip))

    def lose_reply(self, match: str, *, times: int | None = 1, skip: int = 0) -> None:
        """Let the server act, then close the connection without its answer."""
        self.add(Fault(match, Act.LOSE_REPLY, times, skip))

    def cut_reply(self, match: str, after_bytes: int, *, times: int | None = 1, skip: int = 0) -> None:
        """Close the connection after some bytes of the reply's body."""
        self.add(Fault(match, Act.CUT_REPLY, times, skip, after_bytes=after_bytes))

    def cut_request(self, match: str, after_bytes: int, *, times: int | None = 1, skip: int = 0) -> None:
        """Break off after some bytes of the request's body have been passed on."""
        self.add(Fault(match, Act.CUT_REQUEST, times, skip, after_bytes=after_bytes))

    def silence(
        self, match: str, seconds: float, *, after_bytes: int = 0, times: int | None = 1, skip: int = 0
    ) -> None:
        """Send nothing, or nothing more after some bytes of the reply's body, with the connection open.

        It is closed after `seconds`.
        """
        self.add(Fault(match, Act.SILENCE, times, skip, seconds=seconds, after_bytes=after_bytes))

    def take(self, method: str, path: str, body: bytes) -> Fault | None:
        """Record a request; the fault that happens to it, if any."""
        line, start = f"{method} {unquote(path)}", body[:_BODY_SHOWN]
        text = _text(line, start)
        with self._lock:
            fault = next((fault for fault, seen in self._rules if _applies(fault, seen, text)), None)
            self._requests.append(Request(line, start, fault))
            return fault


def _applies(fault: Fault, seen: list[int], text: str) -> bool:
    """Whether a rule is due for a request; `seen` counts its matches and its hits."""
    if not re.search(fault.match, text, re.MULTILINE):
        return False
    seen[0] += 1
    due = seen[0] > fault.skip and (fault.times is None or seen[1] < fault.times)
    seen[1] += due
    return due


def _text(line: str, body: bytes) -> str:
    return f"{line}\n{body.decode(errors='replace')}"


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
        _shut(self._listener.socket)  # which wakes the thread that listens
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
