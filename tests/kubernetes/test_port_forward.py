"""Connections to pods' ports, against a server that speaks as the API server does, and stumbles."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.port_forward import PodConnection, PodPorts
from kinetic_core.connections import Connections
from kinetic_core.errors import ClusterError, ClusterUnreachable, ConfigurationError
from kinetic_core.settings import Settings
from kinetic_core.testing.fault_proxy import write_kubeconfig

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_BINARY, _CLOSE = 0x82, 0x88
_PORT = (5678).to_bytes(2, "little")
Speak = Callable[[socket.socket], None]


def frame(content: bytes, kind: int = _BINARY) -> bytes:
    return bytes([kind, len(content)]) + content


def upgraded(request: bytes) -> bytes:
    key = re.search(rb"(?i)sec-websocket-key: (\S+)", request)
    assert key
    assert b"/api/v1/namespaces/team/pods/pod-1/portforward?ports=5678" in request
    assert b"v4.channel.k8s.io" in request
    accept = base64.b64encode(hashlib.sha1(key[1] + _GUID).digest())
    lines = [b"HTTP/1.1 101 Switching Protocols", b"Upgrade: websocket", b"Connection: Upgrade"]
    lines += [b"Sec-WebSocket-Protocol: v4.channel.k8s.io", b"Sec-WebSocket-Accept: " + accept]
    return b"\r\n".join([*lines, b"", b""])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[[Speak], Target]]:
    """`server(speak)`: a cluster whose API server serves one connection with `speak`."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(speak: Speak) -> None:
        connection, _ = listener.accept()
        with connection:
            speak(connection)

    def start(speak: Speak) -> Target:
        threads.append(threading.Thread(target=serve, args=(speak,), daemon=True))
        threads[-1].start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        return Target(str(write_kubeconfig(tmp_path / "kubeconfig", address)))

    yield start
    for thread in threads:
        thread.join(5)
    listener.close()


def forwarding(*frames: bytes) -> Speak:
    """Accept, greet on both channels, then send frames and drop the connection."""

    def speak(connection: socket.socket) -> None:
        connection.sendall(upgraded(connection.recv(1 << 16)))
        connection.sendall(frame(b"\0" + _PORT) + frame(b"\1" + _PORT) + b"".join(frames))

    return speak


def refusing(status: str, body: str) -> Speak:
    def speak(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())

    return speak


def everything(connection: PodConnection) -> bytes:
    arrived = b""
    while (piece := connection.receive()) is not None:
        arrived += piece
    return arrived


def dialled(target: Target) -> PodConnection:
    return PodPorts(target, Connections(Settings())).dial("team", "pod-1", 5678)


@pytest.mark.promise("batches: debugpy on the pod's loopback, port-forward in pure Python")
@pytest.mark.parametrize("end", [b"", frame(b"\x03\xe8", _CLOSE)], ids=["dropped", "closed"])
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
        head = connection.recv(6)
        masked = connection.recv(head[1] & 0x7F)
        heard.append(bytes(byte ^ head[2 + index % 4] for index, byte in enumerate(masked)))

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
