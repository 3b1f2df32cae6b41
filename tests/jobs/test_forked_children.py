"""A forked child uses nothing of its parent's: no connection, no thread, no lock."""

from __future__ import annotations

import gc
import multiprocessing
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import pytest

import kinetic_core
from kinetic_core._runner.gcs import GcsStore
from kinetic_core.connections import Connections
from kinetic_core.imports import importing
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.observe import watch
from kinetic_core.settings import Settings
from kinetic_core.store.gcs import GcsObjectStore
from tests.conftest import wait_for

pytestmark = pytest.mark.attack

FORK = multiprocessing.get_context("fork")
CHILDREN = 8
T = TypeVar("T")


@kinetic_core.run(accelerator="cpu")
def numbered(number: int, folder: str) -> int:
    import time

    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return number


def in_forks(function: Callable[..., T], calls: Sequence[tuple[object, ...]], seconds: float = 60) -> list[T]:
    """What a function returns in a forked child for each call; children that hang are killed in the end.

    No pool: its threads fork as well, and it waits for children that hang.
    """
    children = []
    try:
        for arguments in calls:
            receiving, sending = FORK.Pipe(duplex=False)
            child = FORK.Process(target=send_result, args=(sending, function, arguments))
            child.start()
            sending.close()
            children.append((child, receiving))
        deadline = time.monotonic() + seconds
        found = []
        for _, receiving in children:
            assert receiving.poll(max(0.0, deadline - time.monotonic())), "a forked child hangs"
            found.append(receiving.recv())
        return found
    finally:
        for child, receiving in children:
            child.kill()
            child.join(90)
            receiving.close()


def send_result(sending: Connection, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    with sending:
        sending.send(function(*arguments))


def result_of(handle: JobHandle) -> int:
    value: int = handle.result(timeout=60, cleanup=False)
    return value


def test_results_in_children_of_a_process_that_watches(local_jobs: object, tmp_path: Path) -> None:
    """The thread of the parent's watch is not in the children."""
    handles = [numbered.run_async(number, str(tmp_path)) for number in range(CHILDREN)]
    subscription = watch(handles[0].place, handles[0], lambda _observation: None)
    try:
        (tmp_path / "go").touch()
        assert in_forks(result_of, [(handle,) for handle in handles], 90) == list(range(CHILDREN))
        assert [result_of(handle) for handle in handles] == list(range(CHILDREN))
    finally:
        subscription.close()
        for handle in handles:
            handle.cleanup()


CLIENT = Connections(Settings())


def test_what_a_client_holds_is_made_anew_in_a_child() -> None:
    before = CLIENT.get("lock", threading.Lock)
    assert CLIENT.get("lock", threading.Lock) is before
    assert in_forks(is_mine, [(id(before),)]) == [False]
    assert CLIENT.get("lock", threading.Lock) is before


def is_mine(identity: int) -> bool:
    return id(CLIENT.get("lock", threading.Lock)) == identity


def test_a_lock_that_is_held_while_forking_stops_no_child() -> None:
    """The child's is another, and free; the parent's still exists."""
    with CLIENT.get("lock", threading.Lock):
        assert in_forks(is_free, [()], 20) == [True]


def is_free() -> bool:
    return CLIENT.get("lock", threading.Lock).acquire(timeout=5)


def test_a_child_imports_while_a_thread_of_its_parent_does() -> None:
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with importing:
            held.set()
            free.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert in_forks(imports, [()], 20) == [True]
    finally:
        free.set()
        thread.join()


def imports() -> bool:
    with importing:
        return True


class Shared:
    """Something that a parent holds: tells when it is closed or released."""

    def __init__(self, told: Path) -> None:
        self.told = told

    def close(self) -> None:
        self.told.touch()

    def __del__(self) -> None:
        self.told.touch()


def test_a_child_neither_closes_nor_releases_its_parents(tmp_path: Path) -> None:
    """Closing would say goodbye in the parent's name; releasing could wait for a lock for ever."""
    connections = Connections(Settings())
    kept = [connections.get("shared", lambda: Shared(tmp_path / "told"))]
    told = in_forks(is_untouched, [(kept.pop().told,)])  # nothing but the connections holds it
    assert told == [True]
    assert not (tmp_path / "told").exists()
    connections.close()
    assert (tmp_path / "told").exists()


def is_untouched(told: Path) -> bool:
    gc.collect()
    return not told.exists()


class Ports(BaseHTTPRequestHandler):
    """Answers every request with the port of the connection on which it came."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = str(self.client_address[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_a_runners_child_has_a_connection_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner has asked its store before it forks user code, whose process asks the same store."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Ports) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
            store = GcsStore("gs://bucket")
            own = store.read_range("object", 0, 10)
            assert in_forks(store.read_range, [("object", 0, 10)], 20) != [own]
            assert store.read_range("object", 0, 10) == own
            store.close()
        finally:
            server.shutdown()
            serving.join()


def read_many(location: str, number: int) -> set[bytes]:
    store = GcsObjectStore.at(location)
    return {store.read(f"object-{number}") for _ in range(40)}


@pytest.mark.cluster
def test_children_read_their_own_objects(emulator: str) -> None:
    """They shared the sockets of a parent that was in the middle of a request, and read its objects."""
    location = f"test-bucket/forks-{secrets.token_hex(4)}"
    store, over, wrong = GcsObjectStore.at(location), threading.Event(), []
    for number in range(CHILDREN + 1):
        store.create_if_absent(f"object-{number}", b"%d" % number * 100_000)

    def go_on_reading() -> None:
        while not over.is_set():
            if set(store.read("object-8")) != {ord("8")}:
                wrong.append("the parent has read an object of a child")

    threads = [threading.Thread(target=go_on_reading) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: store.read("object-0"))
        found = in_forks(read_many, [(location, number) for number in range(CHILDREN)], 120)
    finally:
        over.set()
        for thread in threads:
            thread.join()
        for info in list(store.list("")):
            store.delete(info.name)
    assert found == [{b"%d" % number * 100_000} for number in range(CHILDREN)]
    assert wrong == []
