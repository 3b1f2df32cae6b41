"""Small HTTP servers, for the length of a test."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR


class Answering(BaseHTTPRequestHandler):
    """Quiet, and with one way to answer."""

    def answer(self, status: int, body: object = b"", headers: Mapping[str, str] | None = None) -> None:
        """Bytes as they are, anything else as JSON; to HEAD without a body."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler], host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Its host and port."""
    with ThreadingHTTPServer((host, 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"{host}:{server.server_port}"
        finally:
            server.socket.shutdown(SHUT_RDWR)  # which wakes the thread
            server.shutdown()
            thread.join()
