"""Nudges: hints in both directions, on which nothing depends."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_core._runner import nudge as worker_side
from kinetic_core._runner import object_names
from kinetic_core._runner.notes import encode_note
from kinetic_core.backends.local.ports import SocketConnection
from kinetic_core.jobs.nudge import Nudge
from kinetic_core.store.directory import DirectoryObjectStore
from tests.conftest import wait_for

WORKER = "job-00000000000000bb"
KEY = b"the key of a worker"


@pytest.fixture
def listening() -> Iterator[worker_side.Nudge]:
    made = worker_side.Nudge()
    yield made
    made.close()


def test_a_worker_is_woken_and_tells_all_its_clients(listening: worker_side.Nudge) -> None:
    clients = [socket.create_connection(("127.0.0.1", listening.port)) for _ in range(2)]
    clients[0].sendall(worker_side.LOOK)
    assert select.select(listening.sources(), [], [], 60)[0]
    wait_for(lambda: listening.take() or len(listening.sources()) == 3)
    listening.tell()
    assert [client.recv(10) for client in clients] == [worker_side.LOOK] * 2
    clients[0].close()
    wait_for(lambda: listening.take() or len(listening.sources()) == 2)
    listening.tell()
    assert clients[1].recv(10) == worker_side.LOOK
    clients[1].close()


@pytest.mark.attack
def test_many_clients_leave_room_for_the_next(listening: worker_side.Nudge) -> None:
    clients = []
    for _ in range(70):
        clients.append(socket.create_connection(("127.0.0.1", listening.port)))
        listening.take()
    wait_for(lambda: listening.take() or len(listening.sources()) == 65)
    listening.tell()
    assert clients[-1].recv(10) == worker_side.LOOK
    for client in clients:
        client.close()


class Place:
    """A backend with one worker, whose port leads to a socket of the test."""

    key = "here"

    def __init__(self, folder: Path) -> None:
        self.store = DirectoryObjectStore(folder)
        self.ports = self
        self.dialled: list[tuple[str, int]] = []
        self.far, self.near = socket.socketpair()
        self.refuses = False

    def dial(self, namespace: str, pod: str, port: int) -> SocketConnection:
        del namespace
        self.dialled.append((pod, port))
        if self.refuses:
            raise ConnectionRefusedError
        return SocketConnection(self.near)

    def note(self, key: bytes = KEY) -> None:
        name = object_names.nudge(WORKER)
        self.store.create_if_absent(name, encode_note(key, name, {"port": 4711, "pod": "its-pod"}))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    made.far.settimeout(60)
    yield made
    made.far.close()
    made.near.close()


def ended() -> bool:
    return not any(each.name.startswith("kinetic-nudge") for each in threading.enumerate())


def test_a_client_nudges_and_is_told(place: Place) -> None:
    place.note()
    looked = threading.Event()
    nudge = Nudge(place, "default", WORKER, KEY, looked.set)  # type: ignore[arg-type]
    nudge.open()
    nudge.send()
    assert place.far.recv(10) == worker_side.LOOK
    place.far.sendall(worker_side.LOOK)
    assert looked.wait(60)
    nudge.open()
    assert place.dialled == [("its-pod", 4711)], "one connection"
    nudge.close()
    assert place.far.recv(10) == b""
    wait_for(ended)
    nudge.open()
    nudge.send()
    assert ended()


def test_a_connection_that_fails_is_not_tried_again_at_once(place: Place) -> None:
    place.note()
    place.refuses = True
    now = [100.0]
    nudge = Nudge(place, "default", WORKER, KEY, lambda: None, lambda: now[0])  # type: ignore[arg-type]
    for seconds, times in ((0, 1), (59, 1), (2, 2)):
        now[0] += seconds
        nudge.open()
        nudge.send()
        wait_for(ended)
        assert len(place.dialled) == times


def test_a_worker_that_ends_ends_the_connection(place: Place) -> None:
    place.note()
    nudge = Nudge(place, "default", WORKER, KEY, lambda: None)  # type: ignore[arg-type]
    nudge.open()
    wait_for(lambda: place.dialled)
    place.far.shutdown(socket.SHUT_RDWR)
    wait_for(ended)


@pytest.mark.attack
def test_a_planted_port_is_not_dialled(place: Place) -> None:
    place.note(b"another key")
    nudge = Nudge(place, "default", WORKER, KEY, lambda: None)  # type: ignore[arg-type]
    nudge.open()
    wait_for(ended)
    assert place.dialled == []
