"""`timeout=` ends every wait, whatever a job waits for; it is known then what that was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core._runner.wire import FailureClass
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import QUEUED
from kinetic_core.errors import JobDeadlineExceeded, WaitTimeout
from tests.cluster.jobs import greet, pods, running, sleep
from tests.cluster.machine import stopped
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("gke")


def limited(seconds: float, **options: Any) -> kinetic_core.JobHandle:
    """A job that will not be started within its time."""
    return kinetic_core.run(accelerator="cpu", timeout=seconds, **options)(greet.__wrapped__).run_async("x")


def over(handle: kinetic_core.JobHandle) -> str:
    """The deadline has ended the wait; what is told of it."""
    with pytest.raises(JobDeadlineExceeded) as caught:
        handle.result(timeout=180, stream_logs=False, cleanup=False)
    failure = handle.observe().failure
    assert failure is not None
    assert failure.failure_class == FailureClass.DEADLINE
    assert handle.logs() in (None, "")
    handle.cleanup()
    return str(caught.value)


@pytest.mark.promise("gke: Waits for capacity, quota, queue, registry: named, bounded by `timeout`")
def test_in_a_queue() -> None:
    """Where Kubernetes counts no deadline: a queue has suspended the Job."""
    handle = limited(3, queue="nobody")
    seen = handle.observe()
    assert (seen.reason, seen.failure) == (QUEUED, None)
    assert seen.moves_on_at == (seen.created_at or 0) + 3
    assert "it waited 3 seconds in vain" in over(handle)


@pytest.mark.promise("gke: Waits for capacity, quota, queue, registry: named, bounded by `timeout`")
def test_while_the_quota_is_used_up(api: ClusterApi) -> None:
    name = f"kinetic-no-pods-{os.getpid()}"
    api.create("Namespace", "", {"metadata": {"name": name}})
    try:
        api.create("ResourceQuota", name, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
        over(limited(6, namespace=name))
    finally:
        api.delete("Namespace", "", name)


@contextmanager
def taken(node: str) -> Iterator[dict[str, Any]]:
    """Most of a node's processors are taken; what to ask for to have more than is left."""
    options = {"cpu": 1.1, "node_selector": {"kubernetes.io/hostname": node}}
    holder = kinetic_core.run(accelerator="cpu", **options)(sleep.__wrapped__).run_async(600)
    try:
        running(holder)
        yield options
    finally:
        holder.cancel()
        holder.cleanup()


@pytest.mark.promise("gke: Waits for capacity, quota, queue, registry: named, bounded by `timeout`")
def test_while_others_have_what_it_needs() -> None:
    with taken("node-0") as options:
        handle = limited(8, **options)
        wait_for(lambda: handle.observe().reason == "Unschedulable", 8)
        over(handle)


@pytest.mark.promise("gke: Waits for capacity, quota, queue, registry: named, bounded by `timeout`")
@pytest.mark.promise("data: Registry down: at push, at pull, its API")
@pytest.mark.alone
def test_while_the_registry_does_not_answer() -> None:
    with stopped("docker-registry"):
        handle = limited(12, container_image=f"example.com/not-pulled-yet:{os.getpid()}")
        wait_for(lambda: handle.observe().reason in ("ErrImagePull", "ImagePullBackOff"), 12)
        assert "refused" in handle.observe().message
        over(handle)


@pytest.mark.alone
def test_while_a_node_is_silent_the_wait_ends_and_not_the_doubt(api: ClusterApi) -> None:
    """Nothing replaces what may go on there, and its outcome would count."""
    tolerations = [{"operator": "Exists"}]
    selector = {"kubernetes.io/hostname": "node-4"}
    limited = kinetic_core.run(accelerator="cpu", node_selector=selector, tolerations=tolerations, timeout=25)
    handle = limited(sleep.__wrapped__).run_async(600)
    running(handle)
    with stopped("node-4"):
        with pytest.raises(WaitTimeout, match="node node-4 has stopped reporting"):
            handle.result(timeout=150, stream_logs=False)
        assert (handle.observe().overdue, handle.status()) == (True, JobStatus.RUNNING)
        assert len(pods(api, handle)) == 1
    wait_for(lambda: handle.status().is_terminal, 120)
    with pytest.raises(JobDeadlineExceeded):
        handle.result(stream_logs=False)
    handle.cleanup()
