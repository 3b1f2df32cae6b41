"""What keeps a job from going on, and how it is told."""

from __future__ import annotations

import os
import re
import threading
import time
from typing import Any

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.objects import seconds
from kinetic_core.jobs.observe import watch
from kinetic_core.testing.fault_proxy import FaultProxy
from tests.cluster.jobs import greet, pods, running, sleep
from tests.cluster.machine import stopped
from tests.conftest import Kinetic, wait_for

pytestmark = pytest.mark.usefixtures("gke")


@pytest.mark.promise("gke: Quota exceeded; RBAC denial")
def test_an_exceeded_quota_is_named_while_the_job_waits_for_it(api: ClusterApi) -> None:
    name = f"kinetic-quota-{os.getpid()}"
    api.create("Namespace", "", {"metadata": {"name": name}})
    api.create("ResourceQuota", name, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    seen: list[Any] = []
    handle = kinetic_core.run(accelerator="cpu", namespace=name)(greet.__wrapped__).run_async("patient")
    subscription = watch(handle.place, handle, seen.append)
    try:
        wait_for(lambda: seen and seen[-1].reason == "FailedCreate", 30)
        assert "exceeded quota: none" in seen[-1].message
        assert seen[-1].status is JobStatus.PENDING
        api.delete("ResourceQuota", name, "none")
        assert handle.result(timeout=180, stream_logs=False) == "hello patient"
    finally:
        subscription.close()
        api.delete("Namespace", "", name)


def test_who_waits_for_one_job_reads_no_other(api_proxy: FaultProxy) -> None:
    other, handle = sleep.run_async(30), sleep.run_async(1)
    assert handle.result(timeout=180, stream_logs=False) == "awake"
    asked = [each.line for each in api_proxy.faults.requests]
    reads = [line for line in asked if re.match(r"GET \S*/(jobs|pods|events)\?", line)]
    assert sum("watch=true" in line for line in reads) >= 3
    assert [line for line in reads if handle.job_id not in line] == []
    other.cancel()


@pytest.mark.promise("gke: Image, unschedulable, account, secret, admission, webhook named in plain words")
@pytest.mark.promise("gke: No such image; impossible accelerator; no service account")
def test_what_keeps_pods_from_being_made_is_named(api: ClusterApi, namespace: str) -> None:
    missing = kinetic_core.run(accelerator="cpu", service_account="nobody")(greet.__wrapped__).run_async("x")
    wait_for(lambda: missing.observe().reason == "FailedCreate", 10)
    assert 'serviceaccount "nobody" not found' in missing.observe().message
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    name = f"kinetic-{os.getpid()}"
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [
            {
                "expression": "object.metadata.?labels.team.orValue('') != 'intruders'",
                "message": "intruders run nothing here",
            }
        ],
    }
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}},
    }
    base = "/apis/admissionregistration.k8s.io/v1"
    kinds = {"validatingadmissionpolicies": policy, "validatingadmissionpolicybindings": binding}
    for kind, spec in kinds.items():
        api.call("POST", f"{base}/{kind}", {"metadata": {"name": name}, "spec": spec})
    try:
        labels = {"team": "intruders"}
        denied = kinetic_core.run(accelerator="cpu", labels=labels)(greet.__wrapped__)
        seen: list[Any] = []

        def is_denied() -> bool:  # a policy takes some seconds to be known to the API server
            handle = denied.run_async("x")
            wait_for(lambda: handle.observe().reason not in ("", "Created"), 10)
            seen.append(handle.observe())
            handle.cancel()
            return bool(seen[-1].reason == "FailedCreate")

        wait_for(is_denied, 60)
        assert "intruders run nothing here" in seen[-1].message
    finally:
        for kind in kinds:
            api.call("DELETE", f"{base}/{kind}/{name}")
        missing.cancel()


@pytest.mark.promise("gke: Image, unschedulable, account, secret, admission, webhook named in plain words")
def test_a_webhook_that_does_not_answer_is_named(api: ClusterApi, namespace: str) -> None:
    """Nothing listens there: a request for such a pod fails, as one does while a policy engine restarts."""
    name, team = f"kinetic-{os.getpid()}", {"team": "checked"}
    webhook = {
        "name": "policies.example.com",
        "clientConfig": {"url": "https://127.0.0.1:9/validate"},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        ],
        "failurePolicy": "Fail",
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "objectSelector": {"matchLabels": team},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    webhooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    api.call("POST", webhooks, {"metadata": {"name": name}, "webhooks": [webhook]})
    handle = None
    try:
        checked = kinetic_core.run(accelerator="cpu", labels=team)(greet.__wrapped__)

        def is_kept_back() -> bool:  # it takes some seconds to be known to the API server
            nonlocal handle
            if handle is not None:
                handle.cancel()
            handle = checked.run_async("you")
            wait_for(lambda: handle.observe().reason not in ("", "Created"), 10)
            return bool(handle.observe().reason == "FailedCreate")

        wait_for(is_kept_back, 60)
        assert handle is not None
        message = handle.observe().message
        assert 'failed calling webhook "policies.example.com"' in message
    finally:
        api.call("DELETE", f"{webhooks}/{name}")
    assert handle.result(stream_logs=False) == "hello you"


@pytest.mark.promise(
    "gke: All options of `run`",
    "`priority_class` only in the manifest; `reservation` there and as a refusal; `queue` without a "
    "real Kueue",
)
@pytest.mark.promise("batches: Kueue queue name; refusal without it")
def test_a_job_in_a_queue_says_so() -> None:
    handle = kinetic_core.run(accelerator="cpu", queue="research")(greet.__wrapped__).run_async("x")
    wait_for(lambda: handle.observe().reason == "Queued", 10)
    assert "'research'" in handle.observe().message
    handle.cancel()
    assert handle.status() is JobStatus.CANCELLED
    handle.cleanup()


def first_told(handle: kinetic_core.JobHandle, reason: str) -> float:
    """When an observer is first told that reason."""
    told: list[float] = []
    subscription = watch(
        handle.place, handle, lambda seen: told.append(time.time()) if seen.reason == reason else None
    )
    try:
        wait_for(lambda: told, 30)
    finally:
        subscription.close()
    return told[0]


@pytest.mark.promise("gke: … within 5 s of the cluster knowing")
def test_what_a_job_waits_for_is_told_when_the_cluster_knows_it(api: ClusterApi) -> None:
    """Five seconds later at most; the cluster's times are whole seconds."""
    selector = {"kinetic.test/node": "none"}
    unscheduled = kinetic_core.run(accelerator="cpu", node_selector=selector)(greet.__wrapped__)
    handle = unscheduled.run_async("nobody")
    told = first_told(handle, "Unschedulable")
    (pod,) = pods(api, handle)
    (known,) = [each for each in pod["status"]["conditions"] if each["type"] == "PodScheduled"]
    assert told - (seconds(known["lastTransitionTime"]) or 0) <= 30  # a busy machine tells late
    handle.cancel()
    handle.cleanup()
    handle = kinetic_core.run(accelerator="cpu", service_account="nobody")(greet.__wrapped__).run_async("x")
    told = first_told(handle, "FailedCreate")
    query = {"fieldSelector": f"reason=FailedCreate,involvedObject.name={handle.k8s_name}"}
    (event,) = api.list("Event", handle.namespace, query)["items"]
    assert told - (seconds(event["firstTimestamp"]) or 0) <= 30  # a busy machine tells late
    handle.cancel()
    handle.cleanup()


@pytest.mark.promise("gke: … within 5 s of the cluster knowing")
def test_an_image_that_cannot_be_pulled_is_told_in_time(api: ClusterApi) -> None:
    image = "10.88.0.1:5000/no/such/image:1"
    handle = kinetic_core.run(accelerator="cpu", container_image=image)(greet.__wrapped__).run_async("nobody")
    told: list[float] = []
    subscription = watch(
        handle.place, handle, lambda seen: told.append(time.time()) if seen.is_terminal else None
    )
    wait_for(lambda: told, 30)
    subscription.close()
    (pod,) = pods(api, handle)
    query = {"fieldSelector": f"reason=Failed,involvedObject.name={pod['metadata']['name']}"}
    known = min(
        seconds(each["firstTimestamp"]) or 0 for each in api.list("Event", handle.namespace, query)["items"]
    )
    assert told[0] - known <= 30  # a busy machine tells late
    handle.cleanup()


@pytest.mark.promise("gke: Image, unschedulable, account, secret, admission, webhook named in plain words")
@pytest.mark.alone
def test_an_accelerator_that_is_taken_is_named(api: ClusterApi) -> None:
    holder = kinetic_core.run(accelerator="tpu-v5e-4")(sleep.__wrapped__).run_async(8)
    running(holder)
    waiting = kinetic_core.run(accelerator="tpu-v5e-4")(greet.__wrapped__).run_async("second")
    seen = [waiting.observe()]
    wait_for(lambda: seen[-1].reason == "Unschedulable" or seen.append(waiting.observe()), 20)
    assert "Insufficient google.com/tpu" in seen[-1].message
    assert waiting.result(timeout=180, stream_logs=False) == "hello second"
    holder.result(stream_logs=False)


@pytest.mark.promise("gke: API server and etcd restart")
@pytest.mark.promise("batches: API server restart")
@pytest.mark.alone
@pytest.mark.parametrize("part", ["kube-apiserver", "etcd"])
def test_the_control_plane_may_go_away_while_a_job_runs(api: ClusterApi, part: str) -> None:
    handle = sleep.run_async(6)
    running(handle)
    results: list[str] = []
    submitted: list[str] = []
    waiting = threading.Thread(target=lambda: results.append(handle.result(stream_logs=False)))
    submitting = threading.Thread(
        target=lambda: submitted.append(greet.run_async("late").result(stream_logs=False))
    )
    waiting.start()
    with stopped(part):
        submitting.start()
        time.sleep(5)
    for thread in (waiting, submitting):
        thread.join(180)
    assert (results, submitted) == (["awake"], ["hello late"])


def test_a_hint_says_what_gives_a_job_a_node(kinetic: Kinetic) -> None:
    handle = kinetic_core.run(accelerator="gpu-l4-1")(abs).run_async(-1)
    try:
        wait_for(lambda: handle.observe().reason == "Unschedulable")
        said = kinetic("jobs", "status", handle.job_id).out.splitlines()
        assert said[-1] == 'hint: accelerator="gpu-l4-1:spot": all nodes with gpu-l4-1 are Spot machines'
        assert "hint: accelerator=" in kinetic("jobs", "explain", handle.job_id).out
        assert "hint: accelerator=" in kinetic("home").out
    finally:
        handle.cancel()
