"""A forked child uses nothing of its parent's: no connection, no thread, no lock."""

from __future__ import annotations

import multiprocessing
import secrets
import threading
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core import process_state
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.observe import watch
from kinetic_core.jobs.watch import watch_for
from kinetic_core.store.gcs import GcsObjectStore
from tests.conftest import wait_for

pytestmark = pytest.mark.attack

FORK = multiprocessing.get_context("fork")
CHILDREN = 8


@kinetic_core.run(accelerator="cpu")
def numbered(number: int, folder: str) -> int:
    import time

    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return number


def result_of(handle: JobHandle) -> int:
    value: int = handle.result(timeout=60, cleanup=False)
    return value


def test_results_in_children_of_a_process_that_watches(local_jobs: object, tmp_path: Path) -> None:
    """The parent's hub has a thread, which is not in the children: they timed out."""
    handles = [numbered.run_async(number, str(tmp_path)) for number in range(CHILDREN)]
    subscription = watch(handles[0], lambda _observation: None)
    try:
        with FORK.Pool(CHILDREN) as pool:
            waiting = pool.map_async(result_of, handles)
            (tmp_path / "go").touch()
            assert waiting.get(90) == list(range(CHILDREN))
        assert [result_of(handle) for handle in handles] == list(range(CHILDREN))
    finally:
        subscription.close()
        for handle in handles:
            handle.cleanup()


class Kept:
    """What is made once for a process."""


made = process_state.PerProcess(Kept)


def test_what_is_kept_is_made_anew_in_a_child() -> None:
    before = made()
    assert made() is before
    with FORK.Pool(1) as pool:
        assert pool.apply(is_mine, (id(before),)) is False
    assert made() is before


def is_mine(identity: int) -> bool:
    return id(made()) == identity


def test_a_lock_that_is_held_while_forking_stops_no_child(local_jobs: object) -> None:
    from kinetic_core.jobs import watch

    with watch._hubs_lock, FORK.Pool(1) as pool:
        assert pool.apply_async(has_hub).get(20)


def has_hub() -> bool:
    class Backend:
        key = "none"

    return watch_for(Backend(), "n") is not None  # type: ignore[arg-type]


def read_many(location: str, number: int) -> set[bytes]:
    store = GcsObjectStore.at(location)
    return {store.read(f"object-{number}") for _ in range(40)}


@pytest.mark.cluster
def test_children_read_their_own_objects(emulator: str) -> None:
    """They shared the sockets of a parent that was in the middle of a request, and read its objects."""
    location = f"test-bucket/forks-{secrets.token_hex(4)}"
    store, over, wrong = GcsObjectStore.at(location), threading.Event(), []
    for number in range(CHILDREN + 1):
        store.create(f"object-{number}", b"%d" % number * 100_000)

    def go_on_reading() -> None:
        while not over.is_set():
            if set(store.read("object-8")) != {ord("8")}:
                wrong.append("the parent has read an object of a child")

    threads = [threading.Thread(target=go_on_reading) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: store.read("object-0"))
        with FORK.Pool(CHILDREN) as pool:
            found = pool.starmap_async(read_many, [(location, number) for number in range(CHILDREN)]).get(120)
    finally:
        over.set()
        for thread in threads:
            thread.join()
        for info in list(store.list("")):
            store.delete(info.name)
    assert found == [{b"%d" % number * 100_000} for number in range(CHILDREN)]
    assert wrong == []
