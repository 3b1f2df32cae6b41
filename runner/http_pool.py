"""Connections to one HTTP service, kept open and shared by threads, in standard Python."""

from __future__ import annotations

import http.client
import os
import select
import ssl
from collections.abc import Callable, Iterator, Mapping
from email.message import Message
from typing import NamedTuple
from urllib.parse import urlsplit

_CONNECT_SECONDS = 10.0

Body = bytes | memoryview | Iterator[bytes]
Reader = Callable[[http.client.HTTPResponse], bytes]
"""Function that reads all of an answer's body, and returns what is to be kept of it."""


class Answer(NamedTuple):
    """Answer of the service to a request."""

    status: int
    headers: Message
    body: bytes


class HttpPool:
    """Connections to the service at `endpoint`: one for each request under way, used again afterwards.

    A connection from before a fork belongs to the other process. `HTTPS_PROXY` and `NO_PROXY` are honoured.
    """

    def __init__(self, endpoint: str, context: ssl.SSLContext | None = None) -> None:
        self._endpoint, self._context = urlsplit(endpoint), context
        self._idle: list[tuple[int, http.client.HTTPConnection]] = []

    def send(
        self,
        method: str,
        path: str,
        body: Body | None,
        headers: Mapping[str, str],
        read: Reader | None,
        silence: float,
    ) -> Answer:
        """Send one request; `read` gets an answer of success. `silence`: seconds a connection may be silent.

        Raises OSError, http.client.HTTPException, and what `read` raises.
        """
        connection = self._taken(silence)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read() if response.status >= 300 or read is None else read(response)
        except BaseException:
            connection.close()
            raise
        self._idle.append((os.getpid(), connection))
        return Answer(response.status, response.headers, content)

    def close(self) -> None:
        """Close the connections that are idle; the next request opens another."""
        while self._idle:
            owner, connection = self._idle.pop()
            if owner == os.getpid():
                connection.close()

    __del__ = close

    def _taken(self, silence: float) -> http.client.HTTPConnection:
        try:
            owner, connection = self._idle.pop()
            while owner != os.getpid() or _is_over(connection):
                owner, connection = self._idle.pop()
        except IndexError:
            connection = self._made()
        if connection.sock is None:
            connection.timeout = min(_CONNECT_SECONDS, silence)
            connection.connect()
        connection.sock.settimeout(silence)
        return connection

    def _made(self) -> http.client.HTTPConnection:
        if self._endpoint.scheme != "https":
            return http.client.HTTPConnection(self._endpoint.netloc)
        from urllib.request import getproxies, proxy_bypass

        proxy = urlsplit(getproxies().get("https", ""))
        if not proxy.hostname or proxy_bypass(self._endpoint.hostname or ""):
            return http.client.HTTPSConnection(self._endpoint.netloc, context=self._context)
        connection = http.client.HTTPSConnection(proxy.hostname, proxy.port, context=self._context)
        connection.set_tunnel(self._endpoint.netloc, headers=_authorization(proxy.username, proxy.password))
        return connection


def _is_over(connection: http.client.HTTPConnection) -> bool:
    """Return whether the service has closed an idle connection, which can be read then, as it has ended."""
    if connection.sock is None:
        return False  # it opens anew
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    if not poll.poll(0):
        return False
    connection.close()
    return True


def _authorization(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    from base64 import b64encode
    from urllib.parse import unquote

    return {"Proxy-Authorization": f"Basic {b64encode(unquote(f'{user}:{password}').encode()).decode()}"}
