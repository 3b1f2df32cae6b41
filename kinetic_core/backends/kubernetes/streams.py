"""WebSockets to pods through the API server, with the certificates, token and proxy of its other connections.

The client's own `stream` module is not used: its work runs in a thread whose errors are lost, it has no
time-outs, and it takes certificates only from files, which GKE's are not.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from kinetic_core.backends.kubernetes.client import refusal
from kinetic_core.backends.kubernetes.connection import ApiServer, Target, connection, renew
from kinetic_core.connections import Connections
from kinetic_core.errors import ClusterUnreachable, ConfigurationError

if TYPE_CHECKING:
    from websocket import WebSocket

_SECONDS = 20.0
"""Seconds for which the API server may be silent in the middle of an exchange."""
Query = Sequence[tuple[str, str]]


def open_stream(
    target: Target,
    connections: Connections,
    path: str,
    query: Query,
    protocol: str,
    not_permitted: ConfigurationError,
) -> WebSocket:
    """Open a WebSocket to a subresource of a pod, renewing an expired token once.

    Raises `not_permitted` without the permission, ClusterError for any other refusal, ClusterUnreachable if
    the server does not answer.
    """
    from websocket import WebSocketBadStatusException, WebSocketException

    try:
        try:
            return _connected(target, connections, path, query, protocol)
        except WebSocketBadStatusException as exc:
            if exc.status_code != 401 or not renew(target, connections):
                raise
            return _connected(target, connections, path, query, protocol)
    except WebSocketBadStatusException as exc:
        if exc.status_code == 403:
            raise not_permitted from exc
        raise refusal(exc.status_code, exc.resp_body or b"", f"GET {path}") from exc
    except (WebSocketException, OSError, ValueError, IndexError) as exc:  # the last two: no HTTP, before 1.9
        raise ClusterUnreachable(f"GET {path}: the API server does not answer: {exc}") from exc


def has_more(stream: WebSocket) -> bool:
    """Return whether TLS has decrypted more than was read: the socket would not be readable for it."""
    sock = stream.sock
    return isinstance(sock, ssl.SSLSocket) and sock.pending() > 0


def _connected(target: Target, connections: Connections, path: str, query: Query, protocol: str) -> WebSocket:
    import websocket

    server = connection(target, connections)
    address = f"{server.host}{quote(path)}?{urlencode(query)}".replace("http", "ws", 1)
    opened: WebSocket = websocket.create_connection(
        address,
        timeout=_SECONDS,
        header=server.headers(),
        subprotocols=[protocol],
        sslopt={"context": server.tls(), "server_hostname": server.server_name},
        **_proxy(server),
    )
    return opened


def _proxy(server: ApiServer) -> dict[str, Any]:
    """Return a kubeconfig's own proxy; the library finds those of the environment."""
    if not server.proxy:
        return {}
    parts = urlsplit(server.proxy)
    none_for = [each for each in (server.no_proxy or "").split(",") if each]
    return {
        "http_proxy_host": parts.hostname,
        "http_proxy_port": parts.port,
        "http_no_proxy": none_for,
        "proxy_type": "http",
    }
