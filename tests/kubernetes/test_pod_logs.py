"""Logs of pods that are about to go, or that have ended before the whole log was stored."""

from __future__ import annotations

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


@pytest.mark.attack
def test_what_a_pod_had_no_time_to_store_is_read_from_its_node(tmp_path: Path) -> None:
    """It was told to end, and the store did not answer until its time was over."""
    store = MemoryObjectStore()
    store.create_if_absent(object_names.log(JOB, 0, 0, 0), b"begun\n")
    ends = behaviours.exits(wire.EXIT_UNPUBLISHED, log="begun\nsaved\n")
    with FakeCluster(lambda _: ends) as cluster:
        api = ClusterApi(Target(str(cluster.write_kubeconfig(tmp_path / "kubeconfig"))))
        spec = {"containers": [{"name": CONTAINER, "image": "python"}]}
        api.create("Pod", "default", {"metadata": {"name": "told"}, "spec": spec})

        def pod() -> dict[str, Any]:
            (found,) = api.list("Pod", "default")["items"]
            return dict(found)

        wait_for(lambda: pod()["status"].get("phase") == "Failed")
        assert JobLogs(api, store).read("default", JOB, pod(), 0) == b"begun\nsaved\n"
