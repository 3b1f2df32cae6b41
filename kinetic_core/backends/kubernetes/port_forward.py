"""Connection to a port on a pod's loopback: through the API server, without kubectl."""

from __future__ import annotations

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.streams import has_more, open_stream
from kinetic_core.connections import Connections
from kinetic_core.errors import ClusterError, ClusterUnreachable, ConfigurationError

_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
"""Channels of a port; the first byte of a message is the number of its channel."""
_RULE = '{apiGroups: [""], resources: [pods/portforward], verbs: [get, create]}'


class PodConnection:
    """Connection to a port of a pod. Not for several threads at once."""

    def __init__(self, target: Target, connections: Connections, namespace: str, pod: str, port: int) -> None:
        """Connect. Raises ClusterError if the server refuses, ClusterUnreachable if it does not answer."""
        self._name = f"port {port} of pod {pod}"
        self._websocket = open_stream(
            target,
            connections,
            f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward",
            [("ports", str(port))],
            _PROTOCOL,
            _not_permitted(namespace),
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
                if not has_more(self._websocket):
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
