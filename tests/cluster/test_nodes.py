"""Nodes that run out of memory or disk, or do not exist. Those that fall silent: test_silent_nodes.py."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

import kinetic_core
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import CONTAINER
from kinetic_core.errors import JobMisconfigured, JobOutOfDisk, JobOutOfMemory
from tests.cluster.images import GOOGLE
from tests.cluster.jobs import count, pods
from tests.cluster.machine import kill_everything_of
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("gke")
ANY_TAINT: list[dict[str, Any]] = [{"operator": "Exists"}]


@pytest.mark.promise("gke: OOM says limit and peak, child and whole container")
def test_a_process_out_of_memory_says_limit_and_peak() -> None:
    @kinetic_core.run(accelerator="cpu", memory="128Mi")
    def greedy() -> int:
        return len(b"x" * (1 << 30))

    with pytest.raises(JobOutOfMemory, match=r"limit was 128 MiB, it had used 1[12]\d MiB.*memory="):
        greedy.run_async().result(stream_logs=False)


@pytest.mark.promise("gke: OOM says limit and peak, child and whole container")
@pytest.mark.promise("gke: Every failure: class, exit code, reason, last lines, before deletion")
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
    used = r"the container .*limit was 256 MiB, it had used 2[345]\d MiB"
    with pytest.raises(JobOutOfMemory, match=used) as first:
        handle.result(timeout=180, stream_logs=False)
    api.delete("Job", handle.namespace, handle.k8s_name)
    wait_for(lambda: not pods(api, handle), 60)
    with pytest.raises(JobOutOfMemory, match=used) as later:
        kinetic_core.attach(handle.job_id).result(timeout=90, stream_logs=False)
    for caught in (first, later):
        failure = caught.value.failure
        assert failure is not None
        assert (failure.failure_class, failure.last_lines) == ("out of memory", ("full",))


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


@pytest.mark.promise(
    "gke: Evictions for own disk or memory are the user's",
    "the test writes the kubelet's status",
)
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
    api.call("PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status})


@pytest.mark.promise("gke: What can never run is refused within 30 s")
@pytest.mark.promise("gke: No such image; impossible accelerator; no service account")
@pytest.mark.promise("batches: DWS flex-start in the manifest; refusal", "stand-in for Google's APIs")
@pytest.mark.promise("batches: Reservation in the manifest; refusal")
@pytest.mark.alone
@pytest.mark.google
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
        handle.result(timeout=90, stream_logs=False)
