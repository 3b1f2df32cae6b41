"""Programs in pods, against a server that speaks as the API server does, and stumbles."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from itertools import count
from urllib.parse import parse_qsl, urlsplit

import pytest

from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.names import CONTAINER, OUTCOME_KEY
from kinetic_core.backends.kubernetes.pod_exec import PodProcess, PodShells
from kinetic_core.connections import Connections
from kinetic_core.errors import ClusterError, ClusterUnreachable, ConfigurationError
from kinetic_core.settings import Settings
from tests.conftest import wait_for
from tests.kubernetes.websockets import CLOSE, PING, PONG, Speak, frame, refusing, unmasked, upgraded

SUCCESS = b'\3{"status": "Success"}'
CLOSED = frame(b"\x03\xe8", CLOSE)


def failure(reason: str, message: str) -> bytes:
    causes = [{"reason": reason, "message": message}]
    told = {"status": "Failure", "message": f"it failed: {message}", "details": {"causes": causes}}
    return b"\3" + json.dumps(told).encode()


def running(*frames: bytes, asked: list[bytes] | None = None) -> Speak:
    """Accept, send frames and drop the connection."""

    def speak(connection: socket.socket) -> None:
        request = connection.recv(1 << 16)
        if asked is not None:
            asked.append(request)
        connection.sendall(upgraded(request, b"v5.channel.k8s.io") + b"".join(frames))

    return speak


def started(target: Target, clock: Callable[[], float] = time.monotonic) -> PodProcess:
    return PodProcess(target, Connections(Settings()), "team", "pod-1", ["sh"], clock)


def everything(process: PodProcess) -> dict[int, bytes]:
    arrived = {1: b"", 2: b""}
    while (pieces := process.receive()) is not None:
        for place, piece in pieces:
            arrived[place] += piece
    return arrived


def test_what_a_program_prints_arrives_by_stream(server: Callable[[Speak], Target]) -> None:
    spoken = [frame(b"\1one "), frame(b"\2oops"), frame(b"\1two"), frame(SUCCESS), CLOSED]
    process = started(server(running(*spoken)))
    assert everything(process) == {1: b"one two", 2: b"oops"}
    assert process.exit_code == 0
    process.close()


def test_its_exit_code_is_that_of_its_status(server: Callable[[Speak], Target]) -> None:
    process = started(server(running(frame(failure("ExitCode", "42")), CLOSED)))
    assert everything(process) == {1: b"", 2: b""}
    assert process.exit_code == 42
    process.close()


def test_a_program_that_cannot_start_says_why(server: Callable[[Speak], Target]) -> None:
    process = started(server(running(frame(failure("InternalError", "env: not found")), CLOSED)))
    with pytest.raises(ClusterError, match="pod pod-1: it failed: env: not found"):
        everything(process)
    process.close()


@pytest.mark.parametrize("end", [b"", CLOSED], ids=["dropped", "closed"])
def test_an_end_without_a_status_is_a_loss(server: Callable[[Speak], Target], end: bytes) -> None:
    process = started(server(running(frame(b"\1one"), end)))
    with pytest.raises(ClusterUnreachable, match=r"pod pod-1: the connection (broke|was closed)"):
        everything(process)
    assert process.exit_code is None
    process.close()


def test_what_is_typed_goes_to_stdin(server: Callable[[Speak], Target]) -> None:
    heard: list[tuple[int, bytes]] = []

    def speak(connection: socket.socket) -> None:
        running()(connection)
        heard.append(unmasked(connection))
        connection.sendall(frame(SUCCESS) + CLOSED)

    process = started(server(speak))
    process.send(b"ls\n")
    everything(process)
    process.close()
    assert heard == [(0x82, b"\0ls\n")]


def test_a_server_that_says_nothing_is_given_up(server: Callable[[Speak], Target]) -> None:
    heard: list[tuple[int, bytes]] = []

    def speak(connection: socket.socket) -> None:
        running()(connection)
        heard.append(unmasked(connection))
        connection.sendall(frame(b"", PONG))
        heard.append(unmasked(connection))
        connection.recv(1)  # until the client has closed it

    times = count(0, 20)
    process = started(server(speak), clock=lambda: next(times))
    process.tick(reads=True)
    assert process.receive() == []
    process.tick(reads=True)
    with pytest.raises(ClusterUnreachable, match=r"pod pod-1: no answer for 40 s"):
        process.tick(reads=True)
    wait_for(lambda: len(heard) == 2)
    process.close()
    assert [kind for kind, _ in heard] == [PING, PING]


def test_who_does_not_read_waits_for_no_answer(server: Callable[[Speak], Target]) -> None:
    def speak(connection: socket.socket) -> None:
        running()(connection)
        while connection.recv(1 << 10):
            pass

    times = count(0, 20)
    process = started(server(speak), clock=lambda: next(times))
    for _ in range(5):
        process.tick(reads=False)
    process.close()


@pytest.mark.attack
def test_the_program_never_has_the_key(server: Callable[[Speak], Target]) -> None:
    """The container's variables have it: they lose it before any program of Python starts."""
    asked: list[bytes] = []

    def speak(connection: socket.socket) -> None:
        running(asked=asked)(connection)
        unmasked(connection)
        connection.sendall(frame(SUCCESS) + CLOSED)

    process = PodShells(server(speak), Connections(Settings())).start("team", "pod-1", "{}")
    everything(process)
    process.close()
    url = urlsplit(asked[0].split()[1].decode())
    assert url.path == "/api/v1/namespaces/team/pods/pod-1/exec"
    query = parse_qsl(url.query)
    assert ("container", CONTAINER) in query
    words = [value for name, value in query if name == "command"]
    assert words[:4] == ["env", "-u", OUTCOME_KEY, "python3"]
    assert len(url.query) < 2000  # proxies refuse long ones


def test_without_the_right_to_run_programs_names_the_rule(server: Callable[[Speak], Target]) -> None:
    target = server(refusing("403 Forbidden", '{"message": "pods is forbidden"}'))
    told = r"namespace team\. Add to the role: .*resources: \[pods/exec\], verbs: \[get, create\]"
    with pytest.raises(ConfigurationError, match=told):
        started(target)
