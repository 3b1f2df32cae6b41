"""Jobs with several accelerators on the real thing: where they run, and that they run once."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.fallbacks import accelerator_of
from kinetic_core.backends.kubernetes.names import JOB_ID
from kinetic_core.errors import JobCancelled
from kinetic_core.job import JobObservation
from kinetic_core.jobs.fallback import MOVED_ON, accelerator_now, passed_over
from kinetic_core.jobs.observe import watch
from kinetic_core.store.gcs import GcsObjectStore
from tests.cluster import dying
from tests.cluster.jobs import PREPARATION, greet, sleep
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("gke")

NOWHERE = "tpu-v6e-8"
"""No node of the test cluster is one."""


def accelerators(api: ClusterApi, handle: kinetic_core.JobHandle) -> list[str]:
    """What there are Jobs for."""
    query = {"labelSelector": f"{JOB_ID}={handle.job_id}"}
    return [accelerator_of(job) for job in api.list("Job", handle.namespace, query)["items"]]


def runs(handle: kinetic_core.JobHandle) -> int:
    """How often a function that leaves traces has run."""
    store = GcsObjectStore.at(handle.store_uri.removeprefix("gs://"))
    return sum(1 for _ in store.list(f"outputs/{handle.job_id}/"))


@pytest.mark.promise("batches: Ordered fallback with a time limit per choice")
def test_the_second_runs_what_the_first_has_no_node_for(api: ClusterApi, location: str) -> None:
    run = kinetic_core.run(accelerator=[NOWHERE, "cpu"], capacity_timeout=15, timeout=600)
    handle = run(sleep.__wrapped__).run_async(1)
    seen: list[JobObservation] = []
    subscription = watch(handle.place, handle, seen.append)
    try:
        assert handle.result(timeout=180, stream_logs=False, cleanup=False) == "awake"
    finally:
        subscription.close()
    reasons = [each.reason for each in seen]
    assert reasons.index("Unschedulable") < reasons.index(MOVED_ON) < reasons.index("Running")
    running = next(each for each in seen if each.status is JobStatus.RUNNING)
    assert running.message.endswith("on cpu")
    (passed,) = passed_over(handle.place, handle)
    assert "available" in passed.why
    assert (accelerator_now(handle.place, handle), accelerators(api, handle)) == ("cpu", ["cpu"])
    told = handle.explain()
    waited = next(phase for phase in told.phases if phase.name not in PREPARATION)
    assert waited.name == "capacity"
    assert waited.seconds >= 1
    assert f"no capacity for {NOWHERE}" in str(told)
    handle.cleanup()
    assert accelerators(api, handle) == []


@pytest.mark.promise("gke: Kill -9 of the client between any two steps, then again")
@pytest.mark.promise("batches: Exactly one ever runs")
def test_the_same_call_follows_a_caller_killed_at_any_request() -> None:
    first = f"job-{secrets.token_hex(8)}"
    program = f"from tests.cluster.dying import main; main({first!r})"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2], timeout=120)
    handles = [dying.start(dying.job_id(first, number)) for number in range(len(dying.POINTS))]
    subscriptions = [watch(handle.place, handle, lambda _: None) for handle in handles]  # all move on at once
    for handle in handles:
        assert handle.result(timeout=180, stream_logs=False, cleanup=False) == "once"
    assert [runs(handle) for handle in handles] == [1] * len(handles)
    for subscription, handle in zip(subscriptions, handles, strict=True):
        subscription.close()
        handle.cleanup()


@pytest.mark.promise("gke: Kill -9 of the client between any two steps, then again")
def test_the_same_call_follows_a_caller_killed_collecting(api: ClusterApi) -> None:
    """Whatever of the job is left, its value is there, and the function has run once."""
    first = f"job-{secrets.token_hex(8)}"
    program = f"from tests.cluster.dying import main; main({first!r}, collecting=True)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2], timeout=120)
    for number in range(len(dying.COLLECTING)):
        handle = dying.start(dying.job_id(first, number), choose=False)
        assert handle.result(timeout=180, stream_logs=False) == "once"
        assert (runs(handle), accelerators(api, handle)) == (1, [])
        handle.cleanup()


@pytest.fixture
def late_node(api: ClusterApi) -> Iterator[tuple[str, str, str]]:
    """A label that node-0 has from the start, and the node with GPUs, which has not got it yet."""
    label, others = f"kinetic-test/{secrets.token_hex(4)}", ("node-0", "node-1")
    if any(api.get("Node", "", name) is None for name in others):
        pytest.skip("the test cluster has other nodes")
    api.patch("Node", "", "node-0", {"metadata": {"labels": {label: "yes"}}})
    yield (label, *others)
    for name in others:
        api.patch("Node", "", name, {"metadata": {"labels": {label: None}}})


@pytest.mark.promise("batches: Exactly one ever runs")
def test_capacity_that_comes_at_the_very_moment(api: ClusterApi, late_node: tuple[str, str, str]) -> None:
    label, _, gpus = late_node
    run = kinetic_core.run(
        accelerator=["gpu-l4-1:spot", "cpu"], capacity_timeout=4, node_selector={label: "yes"}
    )
    function = run(dying.leave_a_trace)
    handles = []
    begun = time.monotonic()
    for _ in range(6):  # the last has waited for half of its time when the first moves on
        handles.append(function.run_async("once"))
        time.sleep(0.4)
    others = [threading.Thread(target=handle.result, args=(60, False)) for handle in handles]
    for other in others:
        other.start()
    wait_for(lambda: time.monotonic() - begun > 4.6)
    api.patch("Node", "", gpus, {"metadata": {"labels": {label: "yes"}}})
    for other, handle in zip(others, handles, strict=True):
        assert handle.result(timeout=180, stream_logs=False, cleanup=False) == "once"
        other.join()
    assert [runs(handle) for handle in handles] == [1] * len(handles)


def test_cancelled_while_it_waits_for_the_second(api: ClusterApi) -> None:
    run = kinetic_core.run(accelerator=[NOWHERE, "gpu-h100", "cpu"], capacity_timeout=10)
    handle = run(greet.__wrapped__).run_async("nobody")
    following = watch(handle.place, handle, lambda _: None)
    wait_for(lambda: accelerators(api, handle) == ["gpu-h100-1"], 30)
    following.close()
    handle.cancel()
    assert handle.status() is JobStatus.CANCELLED
    with pytest.raises(JobCancelled):
        handle.result(stream_logs=False)
    assert accelerators(api, handle) == ["gpu-h100-1"]
    handle.cleanup()


@pytest.mark.promise("batches: Kueue queue name; refusal without it")
def test_a_missing_queue_is_refused_before_anything_is_stored(location: str) -> None:
    store = GcsObjectStore.at(location)
    before = sum(1 for _ in store.list("jobs/"))
    with pytest.raises(kinetic_core.errors.ConfigurationError, match="no LocalQueue"):
        kinetic_core.run(accelerator="cpu", queue="typo")(greet.__wrapped__).run_async("x")
    assert sum(1 for _ in store.list("jobs/")) == before
