"""Jobs that are suspended and resumed while they run, as Kueue does to preempt them."""

from __future__ import annotations

import os
import secrets
import time
from typing import Any

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import GROUP_ID, JOB_ID
from tests.cluster.jobs import running
from tests.conftest import wait_for

pytestmark = [pytest.mark.usefixtures("gke"), pytest.mark.attack]


def nap(last: int, grace: float = 0.0) -> tuple[str, str]:
    """Sleep, until `last` attempts have been ended."""
    number = int(os.environ["KINETIC_IGNORED_COUNT"] or 0)
    try:
        print(f"nap {number}", flush=True)
        time.sleep(0 if number >= last else 600)
    finally:
        time.sleep(grace)
    return os.environ["KINETIC_IGNORED_COUNT"] or "0", os.environ["KINETIC_FAILED_COUNT"]


on_cpu = kinetic_core.run(accelerator="cpu", infrastructure_retries=0, cpu=0.1)(nap)
on_slice = kinetic_core.run(accelerator="tpu-v5p-8", backend="gke")(nap)


GONE_ON = [("1", "0"), ("2", "0")]
"""What `nap(1)` may return.

A pod that was killed before its outcome reached the store (the network of the test cluster gives some pods no
connection for a while) is followed by one that runs nothing; neither spends a retry.
"""


def suspend(api: ClusterApi, namespace: str, name: str, value: bool) -> None:
    api.patch("Job", namespace, name, {"spec": {"suspend": value}})


def live(api: ClusterApi, namespace: str, selector: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.list("Pod", namespace, {"labelSelector": selector})["items"]
    return found


def preempt(api: ClusterApi, handle: kinetic_core.JobHandle, selector: str = "") -> None:
    """Suspend the Job, wait until its pods are gone, and resume it."""
    selector = selector or f"{JOB_ID}={handle.job_id}"
    suspend(api, handle.namespace, handle.k8s_name, True)
    wait_for(lambda: not live(api, handle.namespace, selector), 60)


def test_a_resumed_job_goes_on(api: ClusterApi) -> None:
    handle = on_cpu.run_async(2)
    for number in range(2):
        wait_for(lambda n=number: (handle.logs() or "").endswith(f"nap {n}\n"), 60)
        assert (handle.status(), handle.observe().attempt) == (JobStatus.RUNNING, number)
        preempt(api, handle)
        seen = handle.observe()
        assert (seen.status, seen.reason) == (JobStatus.PENDING, "Suspended")
        suspend(api, handle.namespace, handle.k8s_name, False)
    assert handle.result(stream_logs=False, cleanup=False, timeout=120) == ("2", "0")
    assert handle.observe().attempt == 2
    assert handle.logs() == "nap 0\nnap 1\nnap 2\n"
    handle.cleanup()


def test_one_that_is_resumed_at_once_waits_for_the_pod_before(api: ClusterApi) -> None:
    """Which takes its time to end; its end shows in the store."""
    handle = on_cpu.run_async(1, 6.0)
    wait_for(lambda: (handle.logs() or "") == "nap 0\n", 60)
    (before,) = live(api, handle.namespace, f"{JOB_ID}={handle.job_id}")
    suspend(api, handle.namespace, handle.k8s_name, True)
    wait_for(lambda: "deletionTimestamp" in _pod(api, before)["metadata"], 30)
    suspend(api, handle.namespace, handle.k8s_name, False)
    together = 0
    while _pod(api, before):
        together = max(together, len(live(api, handle.namespace, f"{JOB_ID}={handle.job_id}")))
        time.sleep(0.1)
    assert together == 1, "Kubernetes made a pod beside one that lived"
    assert handle.result(stream_logs=False, timeout=120) in GONE_ON


def test_a_pod_that_was_killed_hard_is_proven_dead_first(api: ClusterApi, gke: dict[str, str]) -> None:
    """It leaves no word: the next one runs nothing, and is replaced once its controller has judged."""
    handle = kinetic_core.run(accelerator="cpu", cpu=0.1)(nap).run_async(1)
    wait_for(lambda: (handle.logs() or "") == "nap 0\n", 60)
    (before,) = live(api, handle.namespace, f"{JOB_ID}={handle.job_id}")
    suspend(api, handle.namespace, handle.k8s_name, True)
    api.delete("Pod", handle.namespace, before["metadata"]["name"], before["metadata"]["uid"], grace=0)
    wait_for(lambda: not live(api, handle.namespace, f"{JOB_ID}={handle.job_id}"), 60)
    suspend(api, handle.namespace, handle.k8s_name, False)
    ignored, failed = handle.result(stream_logs=False, timeout=180)
    assert int(ignored) in (1, 2)
    assert failed == "0"


def test_inputs_of_a_resumed_batch_go_on(api: ClusterApi, gke: dict[str, str]) -> None:
    batch = on_cpu.run_async_map([1, 1, 0], group_id=f"grp-nap-{secrets.token_hex(4)}")
    first = batch.jobs[0]
    assert first is not None
    (part,) = api.list("Job", first.namespace, {"labelSelector": f"{GROUP_ID}={batch.group_id}"})["items"]
    for job in batch.jobs[:2]:
        assert job is not None
        wait_for(lambda job=job: (job.logs() or "") == "nap 0\n", 60)
    name = part["metadata"]["name"]
    suspend(api, first.namespace, name, True)
    wait_for(lambda: not _unfinished(api, first.namespace, name), 60)
    suspend(api, first.namespace, name, False)
    *suspended, other = batch.results(timeout=180)
    assert all(value in GONE_ON for value in suspended)
    assert other == ("0", "0")


def test_a_resumed_slice_goes_on(api: ClusterApi) -> None:
    handle = on_slice.run_async(1)
    running(handle)
    wait_for(lambda: (handle.logs() or "").count("nap 0") == 2, 90)
    preempt(api, handle)
    suspend(api, handle.namespace, handle.k8s_name, False)
    assert handle.result(stream_logs=False, cleanup=False, timeout=180) == ("1", "0")
    assert handle.observe().attempt == 1
    handle.cleanup()


def _pod(api: ClusterApi, pod: dict[str, Any]) -> dict[str, Any]:
    found = api.get("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
    return found or {}


def _unfinished(api: ClusterApi, namespace: str, name: str) -> list[dict[str, Any]]:
    pods = live(api, namespace, f"job-name={name}")
    return [pod for pod in pods if pod["status"].get("phase") != "Succeeded"]
