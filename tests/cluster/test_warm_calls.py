"""Calls on workers of a real cluster: the same pod, the same promises, and what is left of it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.errors import InstanceLost, JobCancelled
from tests.cluster.jobs import delete, own_lines, pods, running
from tests.conftest import Kinetic, wait_for

pytestmark = pytest.mark.usefixtures("gke")


def whoami(word: str) -> tuple[str, str, bool]:
    """Say where the call runs, and whether an earlier one has left a file."""
    print("this is", word)
    left = Path("left").exists() or (Path.home() / "left").exists()
    Path("left").touch()
    (Path.home() / "left").touch()
    return word, os.environ["KINETIC_POD_UID"], left


def nap(attempts: int) -> str:
    """Sleep in the first attempts."""
    if (
        int(os.environ.get("KINETIC_IGNORED_COUNT") or 0) + int("KINETIC_ON_WORKER" not in os.environ)
        < attempts
    ):
        time.sleep(600)
    return os.environ["KINETIC_POD_UID"]


def warm(**options: object) -> kinetic_core.decorator.Decorator:
    return kinetic_core.run(accelerator="cpu", warm="5m", cpu=0.1, **options)  # type: ignore[arg-type]


@pytest.mark.attack
def test_calls_run_in_one_pod_and_cancel_spares_it(api: ClusterApi, kinetic: Kinetic) -> None:
    first, second = (warm()(whoami).run_async(word) for word in ("one", "two"))
    assert first.worker != second.worker, "the first was busy"
    word, uid, _ = first.result(cleanup=False)
    assert second.result()[0] == "two"
    slow = warm()(nap).run_async(1)
    running(slow)
    assert slow.worker in (first.worker, second.worker)
    slow.cancel()
    with pytest.raises(JobCancelled):
        slow.result()
    third = warm()(whoami).run_async("three")
    assert third.worker in (first.worker, second.worker)
    assert third.result(cleanup=False)[2] is False
    assert own_lines(first.logs()) == ["this is one"]
    assert pods(api, first) == []
    assert word == "one"
    assert uid in {pod["metadata"]["uid"] for pod in pods(api, kinetic_core.attach(first.worker))}
    listed = kinetic("warm", "list", "--json").json["workers"]
    assert {first.worker, second.worker} <= {worker["job_id"] for worker in listed}
    assert kinetic("warm", "stop", first.worker, second.worker).code == 0
    wait_for(lambda: kinetic_core.attach(first.worker).status() is JobStatus.CANCELLED, 60)
    job = api.get("Job", first.namespace, first.k8s_name)
    assert job is not None
    assert any(each["type"] == "Complete" for each in job["status"]["conditions"]), "its TTL removes it"


@pytest.mark.attack
def test_a_call_whose_pod_is_deleted_gets_its_own(api: ClusterApi) -> None:
    handle = warm()(nap).run_async(1)
    running(handle)
    (pod,) = pods(api, kinetic_core.attach(handle.worker))
    delete(api, pod)
    assert handle.result(cleanup=False) not in ("", pod["metadata"]["uid"])
    assert len(pods(api, handle)) == 1
    assert handle.observe().attempt == 1


kept: list[bytes] = []


def keep(megabytes: int) -> tuple[int, str, int, bool]:
    """Take memory for good; say where the call runs, and how many calls were here before."""
    kept.append(os.urandom(megabytes << 20))
    is_there = "numpy" in sys.modules
    import numpy

    return os.getpid(), os.environ["KINETIC_POD_UID"], len(kept), is_there and bool(numpy.__version__)


def test_calls_share_a_process_until_memory_is_short(kinetic: Kinetic) -> None:
    def call(megabytes: int, reuse: str) -> tuple[int, str, int, bool]:
        return warm(reuse=reuse, memory="320Mi")(keep).run_async(megabytes).result()  # type: ignore[no-any-return]

    first, second, large, after = (call(size, "process") for size in (1, 1, 250, 1))
    assert (second[:2], second[2:], large[2:]) == (first[:2], (2, True), (3, True))
    assert (after[1], after[2:]) == (first[1], (1, False)), "another process of the same pod"
    forks = [call(1, "fork") for _ in range(2)]
    assert [fork[2:] for fork in forks] == [(1, False), (1, True)]
    assert forks[0][0] != forks[1][0]
    assert kinetic("warm", "stop", "--all").code == 0


class Counter:
    def __init__(self, start: int) -> None:
        self.count = start

    def add(self) -> tuple[str, int]:
        self.count += 1
        return os.environ["KINETIC_POD_UID"], self.count


def test_an_instance_lives_until_its_pod_ends(kinetic: Kinetic) -> None:
    counter = kinetic_core.cls(accelerator="cpu", warm="5m", cpu=0.1)(Counter)(5)
    uid, count = counter.add()
    assert (count, counter.add()) == (6, (uid, 7))
    assert kinetic("warm", "stop", "--all").code == 0
    with pytest.raises(InstanceLost, match="no worker that runs has it"):
        counter.add()
