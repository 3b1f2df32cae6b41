"""Connections to pods' ports, against a server that speaks as the API server does, and stumbles."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.port_forward import PodConnection, PodPorts
from kinetic_core.connections import Connections
from kinetic_core.errors import ClusterError, ClusterUnreachable, ConfigurationError
from kinetic_core.settings import Settings
from tests.kubernetes.websockets import CLOSE, Speak, frame, refusing, unmasked, upgraded

_PORT = (5678).to_bytes(2, "little")


def forwarding(*frames: bytes) -> Speak:
    """Accept, greet on both channels, then send frames and drop the connection."""

    def speak(connection: socket.socket) -> None:
        request = connection.recv(1 << 16)
        assert b"/api/v1/namespaces/team/pods/pod-1/portforward?ports=5678" in request
        connection.sendall(upgraded(request, b"v4.channel.k8s.io"))
        connection.sendall(frame(b"\0" + _PORT) + frame(b"\1" + _PORT) + b"".join(frames))

    return speak


def everything(connection: PodConnection) -> bytes:
    arrived = b""
    while (piece := connection.receive()) is not None:
        arrived += piece
    return arrived


def dialled(target: Target) -> PodConnection:
    return PodPorts(target, Connections(Settings())).dial("team", "pod-1", 5678)


@pytest.mark.promise("batches: debugpy on the pod's loopback, port-forward in pure Python")
@pytest.mark.parametrize("end", [b"", frame(b"\x03\xe8", CLOSE)], ids=["dropped", "closed"])
def test_what_the_pod_says_arrives_without_the_greetings(
    server: Callable[[Speak], Target], end: bytes
) -> None:
    connection = dialled(server(forwarding(frame(b"\0one "), frame(b"\0two"), end)))
    assert everything(connection) == b"one two"
    connection.close()


def test_what_is_said_to_the_pod_goes_to_the_data_channel(server: Callable[[Speak], Target]) -> None:
    heard: list[bytes] = []

    def speak(connection: socket.socket) -> None:
        forwarding()(connection)
        heard.append(unmasked(connection)[1])

    connection = dialled(server(speak))
    connection.send(b"initialize")
    everything(connection)
    connection.close()
    assert heard == [b"\0initialize"]


def test_a_port_on_which_nothing_listens_is_named(server: Callable[[Speak], Target]) -> None:
    connection = dialled(server(forwarding(frame(b"\1dial tcp4 127.0.0.1:5678: connection refused"))))
    with pytest.raises(ClusterError, match=r"port 5678 of pod pod-1: .*connection refused"):
        everything(connection)
    connection.close()


def test_a_connection_that_breaks_is_told_from_one_that_ends(server: Callable[[Speak], Target]) -> None:
    def speak(connection: socket.socket) -> None:
        forwarding()(connection)
        # Close with a reset, as a load balancer does that has forgotten the connection.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    connection = dialled(server(speak))
    with pytest.raises(ClusterUnreachable, match=r"port 5678 of pod pod-1: the connection broke"):
        everything(connection)
    connection.close()


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (
            ("403 Forbidden", '{"message": "pods is forbidden"}'),
            ConfigurationError,
            r"namespace team\. Add to the role: .*pods/portforward\], verbs: \[get, create\]",
        ),
        (("404 Not Found", '{"message": "pods \\"pod-1\\" not found"}'), ClusterError, "not found .HTTP 404"),
        (("401 Unauthorized", "no"), ClusterError, "HTTP 401"),
        (("nonsense", ""), ClusterUnreachable, "does not answer"),
    ],
)
def test_what_the_server_refuses_is_told(
    server: Callable[[Speak], Target], answer: tuple[str, str], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        dialled(server(refusing(*answer)))
