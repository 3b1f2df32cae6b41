"""A proxy between a client and a real server that plays a script of faults, and records what passes.

With Cloud Storage: set `STORAGE_EMULATOR_HOST` to its `url`. With a Kubernetes cluster: point the client at
the kubeconfig it writes; the proxy speaks TLS, with the real kubeconfig's credentials, to the API server, and
plain HTTP to the client. Connections that are upgraded (exec, port-forward) do not pass.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self, cast
from urllib.parse import urlsplit

from kinetic_core.backends.kubernetes.connection import Target, connection
from kinetic_core.connections import Connections
from kinetic_core.settings import Settings
from kinetic_core.testing.faulty_server import ConnectionDropped, FaultyHandler, FaultyServer


def write_kubeconfig(path: Path, url: str) -> Path:
    """One that leads to a server over plain HTTP; it holds no credentials. Returns `path`."""
    name = "test"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url}}],
        "users": [{"name": name, "user": {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    path.write_text(json.dumps(content))
    return path


_PIECE = 1 << 16
_OF_ONE_CONNECTION = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "proxy-connection",
    "te",
}
"""Headers that say something about a connection, not about the message (RFC 9110, 7.6.1)."""


class Relay(FaultyHandler):
    """Passes requests on, and replies back as they come: watches and logs are streams."""

    def serve(self, body: bytes, passed: int) -> None:
        proxy = cast("FaultProxy", self.owner)
        with proxy.upstream() as server:
            server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in _end_to_end(self.headers.items()):
                server.putheader(name, value)
            proxy.authorise(server)
            if body or self.command in ("POST", "PUT", "PATCH"):
                server.putheader("Content-Length", str(len(body)))
            server.endheaders(body[:passed])
            if passed < len(body):
                raise ConnectionDropped
            self._pass_back(server.getresponse())

    def _pass_back(self, response: http.client.HTTPResponse) -> None:
        length = response.length
        self.reply(response.status, list(_end_to_end(response.getheaders())), length)
        while piece := response.read1(_PIECE):
            self.write(piece)
        if length is None:
            self.write(b"")
        elif response.length:
            raise ConnectionDropped  # it was cut on the other side: so it is on this one


class FaultProxy(FaultyServer):
    """Listens on `host`, passes requests on to `upstream` (`http://…` or `https://…`), plays `faults`.

    `context`: how to speak TLS to the server. `credentials` gives headers to add to a request; it is asked
    each time, so that a token may be renewed.
    """

    handler = Relay

    def __init__(
        self,
        upstream: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        context: ssl.SSLContext | None = None,
        credentials: Callable[[], dict[str, str]] = dict,
    ) -> None:
        self._upstream, self._context, self._credentials = urlsplit(upstream), context, credentials
        super().__init__(host=host, port=port)

    @classmethod
    def to_cluster(cls, target: Target, *, host: str = "127.0.0.1", port: int = 0) -> Self:
        """Before a cluster's API server, with the credentials of `target`. Raises ConfigurationError.

        Whoever reaches the proxy has these credentials: keep `host` to this machine.
        """
        server = connection(target, Connections(Settings()))
        return cls(server.host, host=host, port=port, context=server.tls(), credentials=server.headers)

    def write_kubeconfig(self, path: Path) -> Path:
        """A kubeconfig that leads through this proxy; it holds no credentials."""
        return write_kubeconfig(path, self.url)

    def authorise(self, server: http.client.HTTPConnection) -> None:
        """Add the proxy's own credentials to a request that is being written."""
        for name, value in self._credentials().items():
            server.putheader(name, value)

    @contextmanager
    def upstream(self) -> Iterator[http.client.HTTPConnection]:
        """A connection to the server for one request; broken when the proxy is closed."""
        place = self._upstream.netloc
        server = (
            http.client.HTTPSConnection(place, context=self._context)
            if self._upstream.scheme == "https"
            else http.client.HTTPConnection(place)
        )
        try:
            server.connect()
            connected = server.sock  # the server's own is None as soon as the last answer has begun
            self.hold(connected)
            try:
                yield server
            finally:
                self.release(connected)
        except http.client.HTTPException as exc:
            raise ConnectionDropped from exc
        finally:
            server.close()


def _end_to_end(headers: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in headers if name.lower() not in _OF_ONE_CONNECTION)
