"""Logs of pods whose container the node serves no more, while the cluster still calls the pod running."""

from __future__ import annotations

from pathlib import Path

from kinetic_core._runner import wire
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.logs import JobLogs
from kinetic_core.testing import FakeCluster, MemoryObjectStore

JOB = "job-00000000000000aa"


def test_what_the_node_serves_no_more_is_read_from_the_store(tmp_path: Path) -> None:
    """As for a pod that is being deleted: its evidence is read just then."""
    store = MemoryObjectStore()
    for number, text in enumerate((b"begun\n", b"saved\n")):
        store.create(wire.log_object(JOB, 0, number, 0), text)
    pod = {"metadata": {"name": "gone", "uid": "1", "annotations": {}}, "status": {"phase": "Running"}}
    with FakeCluster() as cluster:
        api = ClusterApi(Target(str(cluster.write_kubeconfig(tmp_path / "kubeconfig"))))
        logs = JobLogs(api, store)
        assert logs.read("default", JOB, pod, 0) == b"begun\nsaved\n"
        assert logs.read("default", JOB, pod, 6) == b"saved\n"
