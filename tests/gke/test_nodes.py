"""Nodes that fall silent, die, run out of memory or disk, or do not exist."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import kinetic_core
from kinetic_core._runner import wire
from kinetic_core.cluster.access import ClusterApi
from kinetic_core.cluster.names import CONTAINER, NODE_SILENT
from kinetic_core.errors import JobMisconfigured, JobOutOfDisk, JobOutOfMemory
from kinetic_core.lifecycle.backends import backend_of
from kinetic_core.testing.fault_proxy import FaultProxy
from tests.conftest import wait_for
from tests.gke.images import GOOGLE
from tests.gke.jobs import pods, running
from tests.gke.machine import NODES, PAIR, TPU_TAINT, add_to_pair, cluster_tool, give_up, restored

pytestmark = pytest.mark.usefixtures("gke")
ANY_TAINT: list[dict[str, Any]] = [{"operator": "Exists"}]


def count(seconds: int) -> str:
    import os
    import time

    for number in range(seconds):
        print(f"second {number}", flush=True)
        time.sleep(1)
    return os.environ["KINETIC_POD_UID"]


def on_node(name: str) -> kinetic_core.RemoteCallable[[int], str]:
    """`count` on that node."""
    selector = {"kubernetes.io/hostname": name}
    return kinetic_core.run(accelerator="cpu", node_selector=selector, tolerations=ANY_TAINT)(count)


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


@pytest.fixture
def silent_node(api: ClusterApi) -> Iterator[str]:
    """A node to stop; it is back after the test."""
    with restored(api) as node:
        yield node


@pytest.mark.alone
def test_a_node_that_falls_silent_is_named_and_its_outcome_counts(api: ClusterApi, silent_node: str) -> None:
    handle = on_node(silent_node).run_async(35)
    running(handle)
    (pod,) = pods(api, handle)
    cluster_tool("stop", silent_node)
    wait_for(lambda: handle.observe().reason == NODE_SILENT, 50)
    assert f"node {silent_node} has stopped reporting" in handle.observe().message
    assert handle.result(timeout=180, stream_logs=False, cleanup=False) == pod["metadata"]["uid"]
    assert (handle.logs() or "").splitlines() == [f"second {number}" for number in range(35)]
    assert len(pods(api, handle)) == 1
    cluster_tool("start", silent_node)
    wait_for(lambda: pods(api, handle)[0]["status"]["phase"] == "Succeeded", 60)
    assert len(pods(api, handle)) == 1
    wait_for(lambda: handle.status().is_terminal)
    handle.cleanup()


@pytest.mark.alone
def test_the_job_of_a_dead_node_starts_again_once_the_node_is_given_up(
    api: ClusterApi, silent_node: str
) -> None:
    add_to_pair(api, silent_node)
    handle = on_pair().run_async(15)
    running(handle)
    (first,) = pods(api, handle)
    assert first["spec"]["nodeName"] == silent_node
    add_to_pair(api, NODES[0])
    cluster_tool("lose", silent_node)
    wait_for(lambda: handle.observe().reason == NODE_SILENT, 60)
    assert [pod["metadata"]["uid"] for pod in pods(api, handle)] == [first["metadata"]["uid"]]
    give_up(api, silent_node)
    again = handle.result(timeout=120, stream_logs=False, cleanup=False)
    assert again != first["metadata"]["uid"]
    assert handle.observe().attempt == 1
    handle.cleanup()


@pytest.mark.alone
def test_the_job_of_a_node_that_was_dead_for_a_minute_starts_again_at_no_cost(
    api: ClusterApi, silent_node: str
) -> None:
    handle = on_node(silent_node).run_async(12)
    running(handle)
    (first,) = pods(api, handle)
    cluster_tool("lose", silent_node)
    wait_for(lambda: handle.observe().reason == NODE_SILENT, 60)
    cluster_tool("start", silent_node)
    again = handle.result(timeout=150, stream_logs=False, cleanup=False)
    assert again not in (None, first["metadata"]["uid"])
    assert handle.observe().attempt == 1
    handle.cleanup()


@pytest.mark.alone
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
        wait_for(lambda: backend_of(handle).store.find(wire.lease_object(handle.job_id, 0)) is not None, 60)
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


def test_a_process_out_of_memory_says_limit_and_peak() -> None:
    @kinetic_core.run(accelerator="cpu", memory="128Mi")
    def greedy() -> int:
        return len(b"x" * (1 << 30))

    with pytest.raises(JobOutOfMemory, match=r"limit was 128 MiB, it had used 1[12]\d MiB.*memory="):
        greedy.run_async().result(stream_logs=False)


def test_a_container_killed_as_a_whole_says_limit_and_peak(api: ClusterApi) -> None:
    """As cgroup v2 does it on GKE: the runner dies with user code."""

    @kinetic_core.run(accelerator="cpu", memory="256Mi")
    def nearly_full() -> None:
        import time

        kept = b"x" * (225 << 20)
        print("full", flush=True)
        time.sleep(600)
        print(len(kept))

    handle = nearly_full.run_async()
    wait_for(lambda: "full" in (handle.logs() or ""), 60)
    kill_everything_of(handle.job_id)
    used = r"the container .*limit was 256 MiB, it had used 2[34]\d MiB"
    with pytest.raises(JobOutOfMemory, match=used) as first:
        handle.result(timeout=180, stream_logs=False)
    api.delete("Job", handle.namespace, handle.k8s_name)
    wait_for(lambda: not pods(api, handle), 60)
    with pytest.raises(JobOutOfMemory, match=used) as later:
        kinetic_core.attach(handle.job_id).result(timeout=30, stream_logs=False)
    for caught in (first, later):
        failure = caught.value.failure
        assert failure is not None
        assert (failure.failure_class, failure.last_lines) == ("out of memory", ("full",))


def kill_everything_of(job_id: str) -> None:
    """Kill, at once, every process of a job on this machine, once the runner's note is written."""
    import time

    time.sleep(1.5)  # the runner looks once a second when nothing is printed
    mine = f"KINETIC_JOB_ID={job_id}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mine in process.read_bytes().split(b"\0"):
                found.append(int(process.parent.name))
        except OSError:
            continue  # it has ended, or is the kernel's
    assert found
    for pid in sorted(found):
        os.kill(pid, signal.SIGSTOP)
    for pid in sorted(found):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def fake_node(api: ClusterApi) -> Iterator[dict[str, str]]:
    """The label of a node whose pods run no code: what the kubelet would say of them, a test says."""
    pool = f"fake-{secrets.token_hex(3)}"
    label = {"cloud.google.com/gke-nodepool": pool}
    name = f"{pool}-0"
    resources = {"cpu": "64", "memory": "256Gi", "pods": "100", "ephemeral-storage": "100Gi"}
    node = {
        "metadata": {
            "name": name,
            "labels": {**label, "type": "kwok"},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": resources, "capacity": resources},
    }
    api.create("Node", "", node)
    yield label
    api.delete("Node", "", name)


def test_evictions_for_its_own_disk_use_spend_the_users_retries(
    api: ClusterApi, fake_node: dict[str, str]
) -> None:
    function = kinetic_core.run(
        accelerator="cpu",
        retries=1,
        disk="1Gi",
        node_selector=fake_node,
        tolerations=ANY_TAINT,
        queue="nobody",
    )(count)
    told = f'Container {CONTAINER} exceeded its local ephemeral storage limit "1Gi". '
    handle = function.run_async(1)
    stays = {"metadata": {"annotations": {"kinetic.test/outcome": "run"}}}  # until this test ends it
    api.patch("Job", handle.namespace, handle.k8s_name, {"spec": {"template": stays}})
    api.patch("Job", handle.namespace, handle.k8s_name, {"spec": {"suspend": False}})
    for attempt in range(2):
        wait_for(lambda n=attempt: len(pods(api, handle)) == n + 1, 30)
        pod = max(pods(api, handle), key=lambda each: str(each["metadata"]["creationTimestamp"]))
        end_as_evicted(api, handle.namespace, pod, told)
    with pytest.raises(JobOutOfDisk, match=r"exceeded its local ephemeral storage limit.*disk="):
        handle.result(timeout=180, stream_logs=False, cleanup=False)
    assert len(pods(api, handle)) <= 3
    handle.cleanup()


def end_as_evicted(api: ClusterApi, namespace: str, pod: dict[str, Any], told: str) -> None:
    """Give a pod the status that the kubelet gives one it evicted."""
    name = pod["metadata"]["name"]
    now = "2026-01-01T00:00:00Z"
    ended = {"exitCode": 137, "reason": "Error", "startedAt": now, "finishedAt": now}
    status = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": told,
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}],
        "containerStatuses": [{"name": CONTAINER, "state": {"terminated": ended}}],
    }
    api._call("PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status})


@pytest.mark.alone
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"accelerator": "tpu-v6e-8"}, "tpu-v6e-slice"),
        ({"accelerator": "tpu-v5e-4", "reservation": "ours"}, "reservation-name=ours"),
        ({"accelerator": "tpu-v5e-4", "flex_start": True}, "gke-flex-start=true"),
    ],
    ids=["accelerator", "reservation", "flex-start"],
)
def test_what_no_pool_has_is_refused(
    asked: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in GOOGLE.items():
        monkeypatch.setenv(name, value)
    handle = kinetic_core.run(**asked)(count).run_async(1)
    with pytest.raises(JobMisconfigured, match=rf"no node pool .*{told}.*pools are default-pool"):
        handle.result(timeout=30, stream_logs=False)
