"""Logs of pods that are about to go, or that have ended before the whole log was stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.logs import JobLogs
from kinetic_core.backends.kubernetes.names import CONTAINER
from kinetic_core.testing import FakeCluster, MemoryObjectStore
from kinetic_core.testing import kubelet as behaviours
from tests.conftest import wait_for

JOB = "job-00000000000000aa"
Silent = tuple[FakeCluster, Callable[[], bytes | None]]


def pod_that_ends(api: ClusterApi) -> dict[str, Any]:
    """Create a pod named `told`, and return it once its container has ended."""
    return pod_in(api, "Succeeded", "Failed")


def pod_in(api: ClusterApi, *phases: str) -> dict[str, Any]:
    """Create a pod named `told`, and return it once it is in one of these phases."""
    spec = {"containers": [{"name": CONTAINER, "image": "python"}]}
    api.create("Pod", "default", {"metadata": {"name": "told"}, "spec": spec})

    def found() -> dict[str, Any]:
        (pod,) = api.list("Pod", "default")["items"]
        return dict(pod)

    wait_for(lambda: found()["status"].get("phase") in phases)
    return found()


def counted(start: int, end: int) -> str:
    return "".join(f"{number}\n" for number in range(start, end))


def is_followed_by_nobody() -> bool:
    return not any(thread.name == "kinetic-log-told" for thread in threading.enumerate())


def test_what_the_node_serves_no_more_is_read_from_the_store(tmp_path: Path) -> None:
    """As for a pod that is being deleted: its evidence is read just then."""
    store = MemoryObjectStore()
    for number, text in enumerate((b"begun\n", b"saved\n")):
        store.create_if_absent(object_names.log(JOB, 0, number, 0), text)
    pod = {"metadata": {"name": "gone", "uid": "1", "annotations": {}}, "status": {"phase": "Running"}}
    with FakeCluster() as cluster:
        api = ClusterApi(Target(str(cluster.write_kubeconfig(tmp_path / "kubeconfig"))))
        logs = JobLogs(api, store)
        assert logs.read("default", JOB, pod, 0) == b"begun\nsaved\n"
        assert logs.read("default", JOB, pod, 6) == b"saved\n"


@pytest.mark.parametrize(("seconds", "requests"), [(60.0, 2), (0.0, 4)])
def test_a_log_that_has_ended_is_asked_for_again_only_later(
    tmp_path: Path, seconds: float, requests: int
) -> None:
    """Only a connection has ended, or the pod, which is seen some time after its log, which may be long."""
    with FakeCluster(lambda _: behaviours.exits(0, log="begun\nsaved\n")) as cluster:
        api = ClusterApi(Target(str(cluster.write_kubeconfig(tmp_path / "kubeconfig"))))
        ended = pod_that_ends(api)
        pod = {**ended, "status": {**ended["status"], "phase": "Running"}}
        logs = JobLogs(api, MemoryObjectStore(), seconds)
        assert logs.read("default", JOB, pod, 0, size=100) == b"begun\nsaved\n"
        wait_for(is_followed_by_nobody)
        assert logs.read("default", JOB, pod, 6, size=100) == b"saved\n"
        wait_for(is_followed_by_nobody)
        assert cluster.faults.count("GET .*/log") == requests, "each time what there was, and what came"


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Silent]:
    """A cluster with a running pod, whose log is silent after a line, and a function that reads the log."""
    with FakeCluster(lambda _: behaviours.runs_until_stopped(log="begun\nsaved\n")) as cluster:
        api = ClusterApi(Target(str(cluster.write_kubeconfig(tmp_path / "kubeconfig"))), patience=0.0)
        pod = pod_in(api, "Running")
        cluster.faults.answer("GET .*/log\\?container=[^&]*$", 200, body=b"begun\n")
        logs = JobLogs(api, MemoryObjectStore(), silent_seconds=0.05)
        yield cluster, lambda: logs.read("default", JOB, pod, 0)


@pytest.mark.parametrize("after_bytes", [0, 6, 8])
def test_a_log_goes_on_behind_a_dead_connection(silent: Silent, after_bytes: int) -> None:
    """Nobody has told this machine that it is dead. No line is lost, and none comes twice."""
    cluster, read = silent
    cluster.faults.silence("GET .*follow", 3600, after_bytes=after_bytes)
    assert (read() or b"").startswith(b"begun\n")
    wait_for(lambda: read() == b"begun\nsaved\n")


def test_a_pod_may_print_nothing_for_long(silent: Silent) -> None:
    cluster, read = silent
    cluster.faults.silence("GET .*follow", 3600, after_bytes=6, times=6)
    cluster.faults.silence("GET .*follow", 3600, times=1)
    assert read() == b"begun\n"
    wait_for(lambda: read() == b"begun\nsaved\n")
    assert cluster.faults.count("GET .*follow") >= 8


def test_nobody_follows_a_pod_that_went_silently(silent: Silent) -> None:
    cluster, read = silent
    cluster.faults.silence("GET .*follow", 3600, after_bytes=6, times=None)
    assert read() == b"begun\n"
    assert not is_followed_by_nobody()
    cluster.delete("Pod", "default", "told", {})
    wait_for(is_followed_by_nobody)


@pytest.mark.attack
def test_what_a_pod_had_no_time_to_store_is_read_from_its_node(tmp_path: Path) -> None:
    """It was told to end, and the store did not answer until its time was over."""
    store = MemoryObjectStore()
    store.create_if_absent(object_names.log(JOB, 0, 0, 0), b"begun\n")
    ends = behaviours.exits(wire.EXIT_UNPUBLISHED, log="begun\nsaved\n")
    with FakeCluster(lambda _: ends) as cluster:
        api = ClusterApi(Target(str(cluster.write_kubeconfig(tmp_path / "kubeconfig"))))
        assert JobLogs(api, store).read("default", JOB, pod_that_ends(api), 0) == b"begun\nsaved\n"


@pytest.mark.parametrize(
    ("stored", "printed", "shown"),
    [
        ("tick\n", "tick\n" * 3, "tick\n" * 3),
        ("a\n" + "tick\n" * 300, "a\n" + "tick\n" * 900, "a\n" + "tick\n" * 900),
        (counted(0, 800), counted(100, 900), counted(0, 900)),
    ],
    ids=["short", "long", "rotated"],
)
def test_equal_lines_at_a_logs_end_are_not_lost(
    tmp_path: Path, stored: str, printed: str, shown: str
) -> None:
    store = MemoryObjectStore()
    store.create_if_absent(object_names.log(JOB, 0, 0, 0), stored.encode())
    with FakeCluster(lambda _: behaviours.exits(137, log=printed)) as cluster:
        api = ClusterApi(Target(str(cluster.write_kubeconfig(tmp_path / "kubeconfig"))))
        assert JobLogs(api, store).read("default", JOB, pod_that_ends(api), 0) == shown.encode()
