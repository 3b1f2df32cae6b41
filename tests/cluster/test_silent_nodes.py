"""Nodes that fall silent, for a while or for good, with what runs on them or without."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core._runner import object_names, wire
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import NODE_SILENT
from kinetic_core.testing.fault_proxy import FaultProxy
from tests.cluster.jobs import count, pods, running
from tests.cluster.machine import (
    NODES,
    PAIR,
    TPU_TAINT,
    add_to_pair,
    cluster_tool,
    give_up,
    is_ready,
    restored,
)
from tests.conftest import wait_for

pytestmark = [pytest.mark.usefixtures("gke"), pytest.mark.alone]
ANY_TAINT: list[dict[str, Any]] = [{"operator": "Exists"}]


def on_node(name: str) -> kinetic_core.RemoteCallable[[int], str]:
    """`count` on that node."""
    selector = {"kubernetes.io/hostname": name}
    return kinetic_core.run(accelerator="cpu", node_selector=selector, tolerations=ANY_TAINT)(count)


def slow_at_first(seconds: int) -> str:
    """Counts for so long if it is the first attempt, and for two seconds if it is another."""
    counts = (os.environ[f"KINETIC_{kind}_COUNT"] for kind in ("FAILED", "IGNORED"))
    again = sum(int(told or 0) for told in counts)
    for number in range(2 if again else seconds):
        print(f"second {number} of attempt {again}", flush=True)
        time.sleep(1)
    return os.environ["KINETIC_POD_UID"]


def on_pair(lease: int | None = None) -> kinetic_core.RemoteCallable[[int], str]:
    """`count` on the nodes added to the pair."""
    return kinetic_core.run(accelerator="cpu", node_selector=PAIR, tolerations=TPU_TAINT, lease=lease)(count)


def containers_of(pod_uid: str) -> list[str]:
    """Processes of this machine, which plays all nodes, that belong to a pod."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"KINETIC_POD_UID={pod_uid}\0".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:  # it has just ended
            continue
    return found


def falls_silent(node: str, handle: kinetic_core.JobHandle, how: str) -> None:
    """Its kubelet is stopped, or all of it is lost; returns when that is seen."""
    cluster_tool(how, node)
    wait_for(lambda: handle.observe().reason == NODE_SILENT, 60)


@pytest.fixture
def silent_node(api: ClusterApi) -> Iterator[str]:
    """A node to stop; it is back after the test."""
    with restored(api) as node:
        yield node


@pytest.mark.promise("gke: Node partitioned: for a minute, and until after the result")
def test_a_silent_node_is_named_and_its_outcome_counts(api: ClusterApi, silent_node: str) -> None:
    handle = on_node(silent_node).run_async(35)
    running(handle)
    (pod,) = pods(api, handle)
    falls_silent(silent_node, handle, "stop")
    assert f"node {silent_node} has stopped reporting" in handle.observe().message
    assert handle.result(timeout=180, stream_logs=False, cleanup=False) == pod["metadata"]["uid"]
    assert (handle.logs() or "").splitlines() == [f"second {number}" for number in range(35)]
    assert len(pods(api, handle)) == 1
    cluster_tool("start", silent_node)
    wait_for(lambda: pods(api, handle)[0]["status"]["phase"] == "Succeeded", 60)
    assert len(pods(api, handle)) == 1
    wait_for(lambda: handle.status().is_terminal)
    handle.cleanup()


@pytest.mark.promise("gke: Node partitioned: for a minute, and until after the result")
@pytest.mark.slow
def test_user_code_does_not_notice_a_partition_that_ends(api: ClusterApi, silent_node: str) -> None:
    handle = on_node(silent_node).run_async(100)
    running(handle)
    (pod,) = pods(api, handle)
    falls_silent(silent_node, handle, "stop")
    cluster_tool("start", silent_node)
    wait_for(lambda: handle.observe().reason != NODE_SILENT, 50)
    assert (handle.status(), handle.observe().attempt) == (JobStatus.RUNNING, 0)
    assert len((handle.logs() or "").splitlines()) < 100, "it was not over when the node was back"
    assert handle.result(timeout=180, stream_logs=False, cleanup=False) == pod["metadata"]["uid"]
    assert (handle.logs() or "").splitlines() == [f"second {number}" for number in range(100)]
    assert [each["metadata"]["uid"] for each in pods(api, handle)] == [pod["metadata"]["uid"]]
    handle.cleanup()


@pytest.mark.promise("gke: A late duplicate neither overwrites nor deletes")
@pytest.mark.promise("gke: Node partitioned and given up; with a lease")
@pytest.mark.slow
def test_an_attempt_given_up_changes_nothing_at_its_end(api: ClusterApi, silent_node: str) -> None:
    """Its node was only cut off. The second attempt has committed the job's outcome when the first returns,
    and the node comes back with what it still has of the job.
    """
    add_to_pair(api, silent_node)
    options = {"node_selector": PAIR, "tolerations": TPU_TAINT}
    handle = kinetic_core.run(accelerator="cpu", **options)(slow_at_first).run_async(90)
    running(handle)
    (first,) = pods(api, handle)
    store = handle.place.store
    add_to_pair(api, NODES[0])
    falls_silent(silent_node, handle, "stop")
    give_up(api, silent_node)
    second = handle.result(timeout=120, stream_logs=False, cleanup=False)
    assert second not in (None, first["metadata"]["uid"])
    assert containers_of(first["metadata"]["uid"]), "the first attempt is still at it"
    of_second = object_names.log(handle.job_id, 1, 0).rpartition("/")[0]
    kept = {
        info.name: (info.created, store.read(info.name))
        for info in store.list(f"jobs/{handle.job_id}/")
        if "/attempts/" not in info.name or info.name.startswith(of_second.rpartition("/")[0])
    }
    assert object_names.result(handle.job_id) in kept
    wait_for(lambda: not containers_of(first["metadata"]["uid"]), 120)
    late, _ = wire.decode_frame(store.read(object_names.attempt_outcome(handle.job_id, 0)))
    assert late["state"] == "succeeded"
    cluster_tool("start", silent_node)
    wait_for(lambda: is_ready(api, silent_node), 60)
    now = {info.name: (info.created, store.read(info.name)) for info in store.list(f"jobs/{handle.job_id}/")}
    assert {name: now.get(name) for name in kept} == kept
    again = kinetic_core.attach(handle.job_id)
    assert again.result(timeout=90, stream_logs=False, cleanup=False) == second
    assert (again.observe().attempt, again.status()) == (1, JobStatus.SUCCEEDED)
    lines = [
        f"second {number} of attempt {attempt}"
        for attempt, most in ((0, 90), (1, 2))
        for number in range(most)
    ]
    assert (again.logs() or "").splitlines() == lines
    assert [pod["metadata"]["uid"] for pod in pods(api, handle)] == [second]
    again.cleanup()


@pytest.mark.promise("gke: Node dead, for good and for a minute")
@pytest.mark.promise("batches: Restart within the same job, no user retry spent")
def test_the_job_of_a_node_given_up_starts_again(api: ClusterApi, silent_node: str) -> None:
    add_to_pair(api, silent_node)
    handle = on_pair().run_async(15)
    running(handle)
    (first,) = pods(api, handle)
    assert first["spec"]["nodeName"] == silent_node
    add_to_pair(api, NODES[0])
    falls_silent(silent_node, handle, "lose")
    assert [pod["metadata"]["uid"] for pod in pods(api, handle)] == [first["metadata"]["uid"]]
    give_up(api, silent_node)
    again = handle.result(timeout=120, stream_logs=False, cleanup=False)
    assert again != first["metadata"]["uid"]
    assert handle.observe().attempt == 1
    handle.cleanup()


@pytest.mark.promise("gke: Preempted, evicted, lost node: free of charge")
@pytest.mark.promise("gke: Node dead, for good and for a minute")
def test_the_job_of_a_node_dead_for_a_minute_starts_again(api: ClusterApi, silent_node: str) -> None:
    handle = on_node(silent_node).run_async(12)
    running(handle)
    (first,) = pods(api, handle)
    falls_silent(silent_node, handle, "lose")
    cluster_tool("start", silent_node)
    again = handle.result(timeout=150, stream_logs=False, cleanup=False)
    assert again not in (None, first["metadata"]["uid"])
    assert handle.observe().attempt == 1
    handle.cleanup()


@pytest.mark.promise("gke: Node partitioned and given up; with a lease")
@pytest.mark.slow
def test_a_lease_ends_the_doubt_about_a_silent_node(
    api: ClusterApi, silent_node: str, emulator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node reaches neither the API server nor the store: its runner ends, then another begins."""
    add_to_pair(api, silent_node)
    with FaultProxy(emulator, host=str(urlsplit(emulator).hostname)) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        handle = on_pair(lease=15).run_async(18)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
        running(handle)  # a node that has not said so yet is not known to be silent about it
        wait_for(lambda: handle.place.store.find(object_names.lease(handle.job_id, 0)) is not None, 60)
        (first,) = pods(api, handle)
        add_to_pair(api, NODES[0])
        cluster_tool("stop", silent_node)
        proxy.faults.drop(".", times=None)
        proxy.disconnect()
        wait_for(lambda: not containers_of(first["metadata"]["uid"]), 30)
        proxy.faults.clear()
        again = handle.result(timeout=150, stream_logs=False, cleanup=False)
    assert again not in (None, first["metadata"]["uid"])
    assert handle.observe().attempt == 1
    handle.cleanup()
