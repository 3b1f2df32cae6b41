"""Connection to a port on a pod's loopback: through the API server, without kubectl.

The client's own `stream.portforward` is not used: its work runs in a thread whose errors are lost, it has
no time-outs, and it takes certificates only from files, which GKE's are not.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from kinetic_core.backends.kubernetes.client import ClusterApi, refusal
from kinetic_core.backends.kubernetes.connection import Target, connection, renew
from kinetic_core.connections import Connections
from kinetic_core.errors import ClusterError, ClusterUnreachable, ConfigurationError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient
    from websocket import WebSocket

_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
"""Channels of a port; the first byte of a message is the number of its channel."""
_SECONDS = 20.0
"""Seconds for which the API server may be silent in the middle of an exchange."""
_RULE = '{apiGroups: [""], resources: [pods/portforward], verbs: [get, create]}'


class PodConnection:
    """Connection to a port of a pod. Not for several threads at once."""

    def __init__(self, target: Target, connections: Connections, namespace: str, pod: str, port: int) -> None:
        """Connect. Raises ClusterError if the server refuses, ClusterUnreachable if it does not answer."""
        self._name = f"port {port} of pod {pod}"
        self._websocket = _opened(
            target, connections, f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward", port
        )
        self._descriptor = int(self._websocket.fileno())
        self._greetings = {_DATA, _ERROR}
        """Channels whose first message, the number of the port, has not come."""

    def fileno(self) -> int:
        """Return the descriptor, always the same, that is readable when `receive` has something to do."""
        return self._descriptor

    def receive(self) -> bytes | None:
        """Return the bytes that have arrived, b"" for none yet; None once the pod's side is closed.

        Raises ClusterError if nothing listens on the port, or the connection breaks.
        """
        from websocket import ABNF, WebSocketConnectionClosedException, WebSocketException

        arrived = bytearray()
        try:
            while True:
                kind, message = self._websocket.recv_data(control_frame=True)
                if kind == ABNF.OPCODE_CLOSE:
                    return bytes(arrived) or None
                if kind == ABNF.OPCODE_BINARY:
                    arrived += self._content(message)
                if not self._has_more():
                    return bytes(arrived)
        except WebSocketConnectionClosedException:
            return bytes(arrived) or None
        except (WebSocketException, OSError) as exc:
            raise ClusterUnreachable(f"{self._name}: the connection broke: {exc}") from exc

    def send(self, data: bytes) -> None:
        """Send the data. Raises ClusterUnreachable if the connection is broken."""
        from websocket import WebSocketException

        try:
            self._websocket.send_binary(bytes([_DATA]) + data)
        except (WebSocketException, OSError) as exc:
            raise ClusterUnreachable(f"{self._name}: the connection broke: {exc}") from exc

    def close(self) -> None:
        """Close at once, without waiting for data under way."""
        self._websocket.shutdown()

    def _content(self, message: bytes) -> bytes:
        channel, content = message[0], message[1:]
        if channel in self._greetings:
            self._greetings.discard(channel)
            return b""
        if channel == _ERROR and content:
            raise ClusterError(f"{self._name}: {content.decode(errors='replace').strip()}")
        return content

    def _has_more(self) -> bool:
        """Return whether TLS has decrypted more than was read: the socket would not be readable for it."""
        sock = self._websocket.sock
        return isinstance(sock, ssl.SSLSocket) and sock.pending() > 0


class PodPorts:
    """Ports of a cluster's pods."""

    def __init__(self, target: Target, connections: Connections) -> None:
        self._target, self._connections = target, connections

    def check(self, namespace: str) -> None:
        """Raise ConfigurationError, naming the rule to add, unless this user may forward ports of pods."""
        if not ClusterApi(self._target, self._connections).may("get", "", "pods/portforward", namespace):
            raise _not_permitted(namespace)

    def dial(self, namespace: str, pod: str, port: int) -> PodConnection:
        """Connect to a port of a pod through the API server.

        Raises ClusterError, ConfigurationError without the permission.
        """
        return PodConnection(self._target, self._connections, namespace, pod, port)


def _not_permitted(namespace: str) -> ConfigurationError:
    return ConfigurationError(
        f"debug=True forwards a port, and pods/portforward is not permitted in namespace {namespace}. Add to "
        f"the role: {_RULE}"
    )


def _opened(target: Target, connections: Connections, path: str, port: int) -> WebSocket:
    """Open the connection, renewing an expired token once."""
    from websocket import WebSocketBadStatusException, WebSocketException

    try:
        try:
            return _connected(target, connections, path, port)
        except WebSocketBadStatusException as exc:
            if exc.status_code != 401 or not renew(target, connections):
                raise
            return _connected(target, connections, path, port)
    except WebSocketBadStatusException as exc:
        if exc.status_code == 403:
            raise _not_permitted(path.split("/")[4]) from exc
        raise refusal(exc.status_code, exc.resp_body or b"", f"GET {path}") from exc
    except (WebSocketException, OSError, ValueError, IndexError) as exc:  # the last two: no HTTP, before 1.9
        raise ClusterUnreachable(f"GET {path}: the API server does not answer: {exc}") from exc


def _connected(target: Target, connections: Connections, path: str, port: int) -> WebSocket:
    import websocket

    client = connection(target, connections)
    configuration = client.configuration
    address = f"{configuration.host}{quote(path)}?ports={port}".replace("http", "ws", 1)
    signs = {way["key"]: way["value"] for way in configuration.auth_settings().values()}
    opened: WebSocket = websocket.create_connection(
        address,
        timeout=_SECONDS,
        header=signs,
        subprotocols=[_PROTOCOL],
        sslopt=_trust(client),
        **_proxy(configuration),
    )
    return opened


def _trust(client: ApiClient) -> dict[str, Any]:
    """Return the certificates that the client's other connections trust and use."""
    told, configuration = client.rest_client.pool_manager.connection_pool_kw, client.configuration
    context = ssl.create_default_context(cafile=told.get("ca_certs"), cadata=told.get("ca_cert_data"))
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif configuration.assert_hostname is False:
        context.check_hostname = False
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return {"context": context, "server_hostname": configuration.tls_server_name}


def _proxy(configuration: Any) -> dict[str, Any]:
    """Return a kubeconfig's own proxy; the library finds those of the environment."""
    if not configuration.proxy:
        return {}
    parts = urlsplit(configuration.proxy)
    none_for = [each for each in (configuration.no_proxy or "").split(",") if each]
    return {
        "http_proxy_host": parts.hostname,
        "http_proxy_port": parts.port,
        "http_no_proxy": none_for,
        "proxy_type": "http",
    }
