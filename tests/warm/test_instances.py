"""Instances of classes in warm workers: their state, their turns, and what is said when they are gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core.errors import InstanceLost, InvalidFunction, InvalidRequest
from kinetic_core.jobs.warm import WorkerSummary
from tests.conftest import wait_for
from tests.warm.places import Here


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Here]:
    here = Here(tmp_path)
    yield here
    here.close()


class Counter:
    def __init__(self, start: int = 0) -> None:
        print("counts from", start)
        self.count = start

    def add(self, number: int = 1, seconds: float = 0.0) -> tuple[int, int]:
        """Return the process and the sum."""
        time.sleep(seconds)
        self.count += number
        return os.getpid(), self.count

    def fail(self, kind: str) -> None:
        self.count += 100
        raise {"ValueError": ValueError, "RuntimeError": RuntimeError}[kind]("no")

    async def later(self) -> int:
        return self.count


def made(place: Here, *args: Any, kind: type = Counter, **options: Any) -> tuple[Any, Any]:
    """The class, decorated for this place, and an instance of it."""
    client = kinetic_core.Client(replace(place.settings(), backend="local"))
    remote = client.cls("cpu", **options)(kind)
    return remote, remote(*args)


def only_worker(place: Here) -> WorkerSummary:
    (worker,) = place.workers()
    return worker


def test_an_instance_keeps_its_state(place: Here) -> None:
    _, counter = made(place, 5)
    process, first = counter.add(2)
    handle = counter.add.run_async(number=3)
    assert (first, handle.result(cleanup=False)) == (7, (process, 10))
    with pytest.raises(ValueError, match="no"):
        counter.fail("ValueError")
    assert counter.later() == 110
    worker = only_worker(place)
    assert (worker.calls, worker.reuse, worker.instance) == (5, "process", counter.instance_id)


def test_each_instance_has_a_process_of_its_own(place: Here) -> None:
    remote, one = made(place)
    other = remote(10)
    assert one.add()[0] != other.add()[0]
    assert (one.add()[1], other.add()[1]) == (2, 12)
    again = remote.attach(one.instance_id)
    assert again.add()[1] == 3


def test_calls_of_an_instance_take_turns(place: Here) -> None:
    _, counter = made(place)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(counter.add(1, 0.2)[1])) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [1, 2, 3]
    assert only_worker(place).calls == 4


def test_what_the_class_raises_comes_back(place: Here) -> None:
    with pytest.raises(TypeError, match="too many"):
        made(place, 1, 2)
    with pytest.raises(ZeroDivisionError):
        made(place, kind=Broken)


class Broken:
    def __init__(self) -> None:
        _ = 1 / 0


def test_a_lost_process_is_said(place: Here) -> None:
    _, counter = made(place)
    with pytest.raises(RuntimeError, match="no"):
        counter.fail("RuntimeError")
    with pytest.raises(InstanceLost, match="the process that had it has ended"):
        counter.add()


def test_a_lost_worker_is_said(place: Here) -> None:
    _, counter = made(place)
    os.kill(place.runner_of(only_worker(place).job_id), signal.SIGKILL)
    wait_for(lambda: not place.workers())
    with pytest.raises(InstanceLost, match="no worker that runs has it"):
        counter.add()


def test_a_class_may_make_it_anew(place: Here) -> None:
    _, counter = made(place, 5, recreate=True)
    assert counter.add()[1] == 6
    with pytest.raises(RuntimeError, match="no"):
        counter.fail("RuntimeError")
    handle = counter.add.run_async()
    assert handle.result(cleanup=False)[1] == 6
    assert "is made anew, without its state" in handle.logs()
    os.kill(place.runner_of(only_worker(place).job_id), signal.SIGKILL)
    wait_for(lambda: not place.workers())
    assert counter.add()[1] == 6
    assert counter.add()[1] == 7


def test_what_cannot_be_an_instance_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="leave reuse= out"):
        kinetic_core.cls("cpu", reuse="fork")
    with pytest.raises(InvalidFunction, match="cls decorates a class"):
        kinetic_core.cls("cpu")(print)  # type: ignore[arg-type]
    counter = kinetic_core.cls("cpu")(Counter).attach("0123456789ab")
    with pytest.raises(AttributeError, match="only methods can be used"):
        _ = counter.count
    with pytest.raises(InvalidRequest, match="map"):
        counter.add.run_async_map([1])
    with pytest.raises(TypeError, match="wrong"):
        counter.add(wrong=1)


def test_in_a_job_an_instance_is_made_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_JOB_ID", "job-0123456789abcdef")
    counter = kinetic_core.cls("cpu")(Counter)(3)
    assert isinstance(counter, Counter)
    assert counter.add()[1] == 4
