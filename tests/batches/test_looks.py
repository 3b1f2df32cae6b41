"""Whoever waits for a batch waits through trouble that passes, and is told of trouble that does not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core import Client
from kinetic_core._runner import object_names
from kinetic_core.batches.indexed import attach_indexed
from kinetic_core.batches.progress import Board, Look
from kinetic_core.batches.single import read_board
from kinetic_core.errors import (
    ClusterError,
    InvalidRequest,
    MalformedObject,
    StoreError,
    StoreRefused,
    WaitTimeout,
)
from kinetic_core.jobs.watch import watch_for
from kinetic_core.testing import kubelet as behaviours
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.batches.places import PLAN, Place
from tests.conftest import wait_for


@kinetic_core.run(accelerator="cpu")
def stay(seconds: float) -> None:
    time.sleep(seconds)


def soon() -> float:
    """A deadline at which a thread that has died is told from one that waits."""
    return time.monotonic() + 30


def failing_once(error: Exception, what: str) -> tuple[Callable[[str, str], None], list[Exception]]:
    """A fault of a store that the first operation of this kind meets once there is one to come."""
    to_come: list[Exception] = []

    def fault(operation: str, name: str) -> None:
        if to_come and what in name and operation != "create":
            raise to_come.pop()

    to_come.append(error)
    return fault, to_come


def test_a_cluster_that_refuses_once_is_asked_again(place: Any) -> None:
    """How inputs have ended is asked of the cluster, too: which Jobs the batch has."""
    here: Place = place(lambda _: behaviours.exits(65))
    fault, to_come = failing_once(ClusterError("no rights", 403), "grp-a")
    here.store = here.backend.store = MemoryObjectStore("gs://bucket")  # type: ignore[assignment]
    plan = replace(PLAN, fail_fast=True)
    whole, _ = here.submit([1, 2], plan)
    here.store.fault = fault
    board = here.watched(2, whole, plan)
    board.wait_for(board.is_over, soon(), "")
    assert (to_come, board.failed()) == ([], [0, 1])


def test_whoever_waits_is_told_that_the_client_is_closed(place: Any) -> None:
    here: Place = place()
    whole, _ = here.submit([1, 2])
    board = here.watched(2, whole)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(board.wait_for, board.is_over, soon(), "")
        watch_for(here.backend, "default").close()
        with pytest.raises(InvalidRequest, match="was closed"):
            waiting.result()
    with pytest.raises(InvalidRequest, match="was closed"):
        board.wait_for(board.is_over, soon(), "")


@pytest.mark.usefixtures("local_jobs")
def test_a_batch_of_a_closed_client_is_waited_for_no_more(tmp_path: Path) -> None:
    client = Client(backend="local", local_store=tmp_path, package_root=str(Path(__file__).parent))
    batch = client.bind(stay).run_async_map([600])
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(batch.wait, timeout=30)
        wait_for(lambda: batch.progress().state is not None)
        client.close()
        with pytest.raises(InvalidRequest, match="was closed"):
            waiting.result()
    batch = Client(backend="local", local_store=tmp_path).attach_batch(batch.group_id)
    batch.cancel()


def attached(here: Place, size: int) -> tuple[Any, Callable[[], None]]:
    """A batch of two inputs whose Job does not exist yet, and what makes the Job."""
    here.submit([1, 2])
    (job,) = here.jobs()
    here.fake.objects.remove("Job", "default", job["metadata"]["name"])
    here.store.delete(object_names.finished("grp-a"))
    manifest = {**json.loads(here.store.read("batches/grp-a/manifest.json")), "total_expected": size}
    batch = attach_indexed(here.backend, "grp-a", manifest, 0.01, None)
    return batch, lambda: here.fake.objects.create("Job", "default", job)


def test_a_batch_is_found_after_a_store_was_away(place: Any) -> None:
    here: Place = place(lambda _: behaviours.exits(65))
    fault, to_come = failing_once(StoreError("away"), "finished")
    here.store = here.backend.store = MemoryObjectStore("gs://bucket")  # type: ignore[assignment]
    batch, make = attached(here, 2)
    here.store.fault = fault
    wait_for(lambda: not to_come)
    make()
    batch.wait(timeout=30)
    assert len(batch.failures()) == 2


@pytest.mark.attack
def test_a_manifest_of_too_few_inputs_is_told_who_waits(place: Any) -> None:
    batch, make = attached(place(), 1)
    make()
    with pytest.raises(MalformedObject, match="its Jobs have 2"):
        batch.wait(timeout=30)


def test_jobs_are_found_after_a_store_was_away(place: Any) -> None:
    here: Place = place()
    fault, to_come = failing_once(StoreError("away"), "grp-a")
    board = read_board(here.backend, "default", {"group_id": "grp-a", "total_expected": 1}, 0.01, None)
    here.store.fault = fault
    wait_for(lambda: not to_come)
    here.store.create_if_absent(object_names.finished("grp-a"), b'{"dropped": [0]}')
    board.wait_for(board.is_over, soon(), "")


def test_each_who_waits_is_told_of_one_trouble() -> None:
    """Also beside one who waits again at once, as the thread does that starts inputs."""
    board, waits = Board(1), [threading.Event() for _ in range(8)]

    def wait(begun: threading.Event) -> None:
        for _ in range(2):
            try:
                board.wait_for(begun.set, soon(), "")
            except StoreRefused:
                if begun is not waits[0]:
                    raise

    with ThreadPoolExecutor(len(waits)) as threads:
        waiting = [threads.submit(wait, begun) for begun in waits]
        assert all(begun.wait(30) for begun in waits)
        board.tell(StoreRefused("no rights"))
        for each in waiting[1:]:
            with pytest.raises(StoreRefused):
                each.result()
        wait_for(lambda: waiting[0].done() or board.tell(StoreRefused("again")))


@pytest.mark.parametrize("error", [StoreRefused("no rights"), ClusterError("no rights", 403)])
def test_what_goes_on_refusing_is_told_who_waits(error: Exception) -> None:
    now = [0.0]
    board = Board(1)
    look = Look(board, "grp-a", lambda: now[0])

    def wait(seconds: float) -> None:
        board.wait_for(board.is_over, time.monotonic() + seconds, "")

    assert look.goes_on_after(error)
    now[0] += 10
    look.went_well()
    assert look.goes_on_after(error)
    now[0] += 10
    assert look.goes_on_after(error)
    with pytest.raises(WaitTimeout):
        wait(0)
    now[0] += 10
    assert look.goes_on_after(error)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait, 30)
        wait_for(lambda: waiting.done() or not look.goes_on_after(error))
        with pytest.raises(type(error), match="no rights"):
            waiting.result()
    with pytest.raises(WaitTimeout):  # by now somebody may have granted it
        wait(0)


def test_trouble_that_passes_is_told_nobody() -> None:
    board, now = Board(1), [0.0]
    look = Look(board, "grp-a", lambda: now[0])
    for _ in range(3):
        assert look.goes_on_after(StoreError("away"))
        now[0] += 1000
    assert board.trouble is None
    assert not look.goes_on_after(RuntimeError("a mistake"))
    with pytest.raises(RuntimeError, match="a mistake"):
        board.wait_for(board.is_over, time.monotonic(), "")
