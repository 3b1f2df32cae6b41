"""Logs of pods that are about to go, or that have ended before the whole log was stored."""

from __future__ import annotations

import threading
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


def pod_that_ends(api: ClusterApi) -> dict[str, Any]:
    """Create a pod named `told`, and return it once its container has ended."""
    spec = {"containers": [{"name": CONTAINER, "image": "python"}]}
    api.create("Pod", "default", {"metadata": {"name": "told"}, "spec": spec})

    def found() -> dict[str, Any]:
        (pod,) = api.list("Pod", "default")["items"]
        return dict(pod)

    wait_for(lambda: found()["status"].get("phase") in ("Succeeded", "Failed"))
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
