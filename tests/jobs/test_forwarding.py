"""A forwarded port leads to what it is told, and leaves nothing open."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from kinetic_core.backends.local.ports import LocalPorts
from kinetic_core.errors import ClusterError
from kinetic_core.jobs.forward import Connection, Forward, listening
from tests.conftest import wait_for


@pytest.fixture
def echo() -> Iterator[int]:
    """A port that gives back what it gets, capitalised, until it gets `bye`."""

    def answer(connection: socket.socket) -> None:
        with connection:
            while (text := connection.recv(1 << 16)) and text != b"bye":
                connection.sendall(text.upper())

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def forward_to(port: int, patience: float = 30.0) -> Forward:
    return Forward(listening(0), lambda: LocalPorts().dial("default", "pod", port), patience)


def connected(forward: Forward) -> socket.socket:
    return socket.create_connection(("127.0.0.1", forward.port), 5)


def test_several_connections_at_once(echo: int) -> None:
    with forward_to(echo) as forward, connected(forward) as one, connected(forward) as other:
        other.sendall(b"other")
        one.sendall(b"one")
        assert (one.recv(10), other.recv(10)) == (b"ONE", b"OTHER")


def test_an_end_on_either_side_is_one_on_the_other(echo: int) -> None:
    with forward_to(echo) as forward:
        with connected(forward) as one, connected(forward) as other:
            one.sendall(b"bye")
            assert one.recv(10) == b""
            other.sendall(b"still")
            assert other.recv(10) == b"STILL"
        with connected(forward) as another:
            another.sendall(b"again")
            assert another.recv(10) == b"AGAIN"


def test_closing_ends_connections_and_frees_the_port(echo: int) -> None:
    forward = forward_to(echo)
    with connected(forward) as one:
        one.sendall(b"one")
        assert one.recv(10) == b"ONE"
        forward.close()
        forward.close()
        assert one.recv(10) == b""
    listening(forward.port).close()


def test_draining_lets_connections_end_and_takes_no_more(echo: int) -> None:
    forward = forward_to(echo)
    with connected(forward) as one:
        one.sendall(b"one")
        assert one.recv(10) == b"ONE"
        forward.drain()
        wait_for(lambda: _is_refused(forward))
        one.sendall(b"one more")
        assert one.recv(10) == b"ONE MORE"
    forward.join()
    assert not [each.name for each in threading.enumerate() if each.name.startswith("kinetic-forward")]


def test_draining_does_not_take_for_ever(echo: int) -> None:
    forward = forward_to(echo, patience=0.1)
    with connected(forward) as one:
        one.sendall(b"one")
        assert one.recv(10) == b"ONE"
        forward.drain()
        forward.drain()
        assert one.recv(10) == b""
    forward.close()


def _is_refused(forward: Forward) -> bool:
    try:
        connected(forward).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # the port is being closed at this moment
        return False
    return False


def test_a_connection_that_leads_nowhere_is_closed_and_told(caplog: pytest.LogCaptureFixture) -> None:
    def refused() -> Connection:
        raise ClusterError("GET /portforward: not today (HTTP 500)", 500)

    with caplog.at_level(logging.WARNING), Forward(listening(0), refused) as forward:
        with connected(forward) as one:
            assert one.recv(10) == b""
        wait_for(lambda: "not today" in caplog.text)
        with connected(forward) as again:
            assert again.recv(10) == b""
