"""Every way a Job can look, and what it means."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_core._runner import wire
from kinetic_core._runner.wire import FailureClass
from kinetic_core.backends.kubernetes.names import CANCELLED, NODE_SILENT
from kinetic_core.backends.kubernetes.verdict import observe
from kinetic_core.job import JobStatus
from tests.kubernetes.looks import AT, FAILED, ended, job, pod


def test_nothing_yet_is_pending() -> None:
    seen = observe(job(), [])
    assert (seen.status, seen.reason, seen.attempt) == (JobStatus.PENDING, "Created", 0)


def test_a_sidecar_that_runs_is_not_the_job_running() -> None:
    assert observe(job(), [pod()]).status is JobStatus.PENDING


def test_running_since() -> None:
    seen = observe(job(), [pod({"running": {"startedAt": AT}}, failed=1, ignored=2)])
    assert (seen.status, seen.attempt) == (JobStatus.RUNNING, 3)
    assert seen.started_at == seen.created_at == 1767225600.0


def test_between_attempts_is_pending() -> None:
    assert observe(job(), [pod(ended(1))]).reason == "Restarting"


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        (pod({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}), "ImagePullBackOff"),
        (
            pod(
                conditions=[
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/5"}
                ]
            ),
            "Unschedulable",
        ),
    ],
)
def test_why_it_waits(described: dict[str, Any], reason: str) -> None:
    seen = observe(job(), [described])
    assert (seen.status, seen.reason) == (JobStatus.PENDING, reason)
    assert seen.message


def test_failure_target_is_failing_not_failed() -> None:
    seen = observe(job(("FailureTarget", "FailedIndexes", "")), [pod({"running": {"startedAt": AT}})])
    assert seen.status is JobStatus.RUNNING


def test_complete_is_succeeded() -> None:
    seen = observe(job(("Complete", "CompletionsReached", "")), [pod(ended(0, "Completed"))])
    assert (seen.status, seen.finished_at) == (JobStatus.SUCCEEDED, 1767225600.0)


@pytest.mark.promise("gke: The verdict is a pure function of objects")
@pytest.mark.parametrize(
    ("condition", "state", "expected"),
    [
        (FAILED, ended(wire.EXIT_USER_ERROR), FailureClass.USER_ERROR),
        (FAILED, ended(wire.EXIT_NEVER_RETRY), FailureClass.CONFIGURATION),
        (FAILED, ended(wire.EXIT_UNPUBLISHED), FailureClass.CONTROL_PLANE),
        (FAILED, ended(137, "OOMKilled"), FailureClass.OUT_OF_MEMORY),
        (FAILED, ended(137), FailureClass.PREEMPTED),
        (FAILED, ended(127), FailureClass.CONFIGURATION),
        (FAILED, None, FailureClass.CONTROL_PLANE),
        (("Failed", "DeadlineExceeded", "was active longer"), ended(143), FailureClass.DEADLINE),
        (("Failed", "Cancelled", "cancelled by a user"), ended(143), FailureClass.CANCELLED),
        (("Failed", "NodeLost", "nothing is alive"), {"running": {"startedAt": AT}}, FailureClass.PREEMPTED),
    ],
)
def test_how_it_failed(condition: tuple[str, str, str], state: dict[str, Any] | None, expected: str) -> None:
    seen = observe(job(condition), [pod(ended(1)), pod(state, failed=1)])
    assert seen.status.value == ("CANCELLED" if expected == "cancelled" else "FAILED")
    assert seen.failure is not None
    assert seen.failure.failure_class == expected
    assert seen.message == seen.failure.message


def test_the_signal_is_told() -> None:
    seen = observe(job(FAILED), [pod(ended(137))])
    assert seen.failure is not None
    assert (seen.failure.signal, seen.failure.exit_code) == (9, 137)


@pytest.mark.promise("gke: What can never run is refused within 30 s", "an image that is *denied* only here")
@pytest.mark.parametrize(
    ("reason", "message", "hopeless"),
    [
        ("ErrImagePull", "failed to resolve reference x: not found", FailureClass.IMAGE),
        ("ImagePullBackOff", "pull access denied, repository does not exist", FailureClass.IMAGE),
        ("InvalidImageName", "couldn't parse", FailureClass.IMAGE),
        ("CreateContainerConfigError", 'secret "x" not found', FailureClass.CONFIGURATION),
        (
            "CreateContainerConfigError",
            "failed to sync secret cache: timed out waiting for the condition",
            None,
        ),
        ("ErrImagePull", "dial tcp: i/o timeout", None),
        ("ImagePullBackOff", "Back-off pulling image", None),
        ("ContainerCreating", "", None),
    ],
)
def test_what_can_never_start_is_told_from_what_may(
    reason: str, message: str, hopeless: FailureClass | None
) -> None:
    seen = observe(job(), [pod({"waiting": {"reason": reason, "message": message}})])
    assert seen.status is JobStatus.PENDING
    assert (seen.failure.failure_class if seen.failure else None) == hopeless


@pytest.mark.parametrize("kind", ["WaitingForSlot", "FailedCreate"])
def test_a_job_without_pods_says_why(kind: str) -> None:
    seen = observe(job((kind, "", "exceeded quota: gpus")), [])
    assert (seen.status, seen.reason, seen.message) == (JobStatus.PENDING, kind, "exceeded quota: gpus")


@pytest.mark.parametrize("pods", [[], [pod(ended(143))]], ids=["pods gone", "pod ended"])
def test_a_job_that_is_being_cancelled_does_not_wait_to_begin(pods: list[dict[str, Any]]) -> None:
    cancelled = job()
    cancelled["metadata"]["annotations"] = {CANCELLED: "true"}
    seen = observe(cancelled, pods)
    assert (seen.status, seen.reason) == (JobStatus.RUNNING, "Cancelling")


def test_a_cancelled_jobs_deadline_is_not_a_deadline() -> None:
    cancelled = job(("Failed", "DeadlineExceeded", "Job was active longer than specified deadline"))
    cancelled["metadata"]["annotations"] = {CANCELLED: "true"}
    seen = observe(cancelled, [pod(ended(143))])
    assert seen.failure is not None
    assert seen.failure.failure_class == FailureClass.CANCELLED


def test_a_container_that_could_not_start_says_why() -> None:
    state = ended(128, "StartError")
    state["terminated"]["message"] = 'exec: "python3": executable file not found in $PATH'
    seen = observe(job(FAILED), [pod(state)])
    assert seen.failure is not None
    assert "executable file not found" in seen.failure.message


READY = {"type": "Ready", "status": "True"}
NOT_READY = {"type": "Ready", "status": "False"}
CONTAINERS_READY = {"type": "ContainersReady", "status": "True"}
CONTAINERS_NOT_READY = {"type": "ContainersReady", "status": "False"}


@pytest.mark.parametrize(
    ("told", "silent"),
    [
        ([READY, CONTAINERS_READY], False),
        ([NOT_READY, CONTAINERS_NOT_READY], False),  # the kubelet says so itself
        ([NOT_READY, CONTAINERS_READY], True),
        ([], False),
    ],
)
def test_a_silent_node_is_told_from_a_pod_that_is_not_ready(told: list[Any], silent: bool) -> None:
    seen = observe(job(), [pod({"running": {"startedAt": AT}}, conditions=told)])
    assert seen.status is JobStatus.RUNNING
    assert (seen.reason == NODE_SILENT) is silent


@pytest.mark.parametrize(
    ("state", "reason", "silent"),
    [
        ({"waiting": {"reason": "ContainerCreating"}}, "DeletionByTaintManager", True),
        ({}, "DeletionByTaintManager", True),
        ({"waiting": {"reason": "ContainerCreating"}}, "EvictionByEvictionAPI", False),
        ({"terminated": {"exitCode": 143}}, "DeletionByTaintManager", False),
    ],
)
def test_a_node_that_falls_silent_before_it_reported_the_pod(
    state: dict[str, Any], reason: str, silent: bool
) -> None:
    told = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    silent_pod = pod(state, conditions=[told])
    silent_pod["metadata"]["deletionTimestamp"] = AT
    seen = observe(job(), [silent_pod])
    assert seen.status is JobStatus.PENDING
    assert (seen.reason == NODE_SILENT) is silent


LOW = "The node was low on resource: {}. Threshold quantity: 1Gi, available: 1Mi. "
OWN = "Container kinetic-worker was using 9Gi, request is 1Gi, has larger consumption of {}. "


@pytest.mark.promise("gke: Evictions for own disk or memory are the user's", "memory only here")
@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (LOW.format("memory"), None),
        (LOW.format("memory") + OWN.format("memory"), FailureClass.OUT_OF_MEMORY),
        (LOW.format("ephemeral-storage") + OWN.format("ephemeral-storage"), FailureClass.OUT_OF_DISK),
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
            FailureClass.OUT_OF_DISK,
        ),
        ('Usage of EmptyDir volume "work" exceeds the limit "1Gi". ', FailureClass.OUT_OF_DISK),
    ],
)
def test_an_eviction_is_the_users_if_its_own_use_was_the_reason(message: str, kind: str | None) -> None:
    evicted = pod(ended(137), reason="Evicted", message=message)
    seen = observe(job(), [evicted])
    assert (seen.failure.failure_class if seen.failure else None) == kind
    with_retries = {**job(), "spec": {"backoffLimitPerIndex": 1}}
    assert observe(with_retries, [evicted]).failure is None
    failure = observe(job(FAILED), [evicted]).failure
    assert failure is not None
    assert failure.failure_class == (kind or FailureClass.PREEMPTED)


NOTE = '{"memory_limit": 1000000, "memory_peak": %d}'


@pytest.mark.parametrize(
    ("reason", "peak", "kind"),
    [
        ("OOMKilled", 500_000, FailureClass.OUT_OF_MEMORY),
        ("Error", 950_000, FailureClass.OUT_OF_MEMORY),
        ("Error", 500_000, FailureClass.PREEMPTED),
    ],
)
def test_a_container_killed_at_its_limit_was_out_of_memory(reason: str, peak: int, kind: str) -> None:
    state = ended(137, reason)
    state["terminated"]["message"] = NOTE % peak
    failure = observe(job(FAILED), [pod(state)]).failure
    assert failure is not None
    assert failure.failure_class == kind
    if kind == FailureClass.OUT_OF_MEMORY:
        assert "the limit was 977 KiB" in failure.message


def test_a_function_that_has_returned_is_not_waiting_again() -> None:
    seen = observe(job(), [pod(ended(0, "Completed"))])
    assert (seen.status, seen.reason) == (JobStatus.RUNNING, "Finishing")
    assert observe(job(), [pod(ended(1))]).reason == "Restarting"


KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "startedAt": AT, "finishedAt": AT}}


@pytest.mark.parametrize(
    ("retries", "pods", "gives_up"),
    [
        (0, [pod(KILLED)], True),
        (1, [pod(KILLED)], False),
        (1, [pod(KILLED), pod(KILLED, ignored=1)], True),
        (1, [pod(ended(1)), pod(KILLED, failed=1)], True),
        (0, [pod(ended(137))], False),  # perhaps its machine died and came back
    ],
)
def test_a_container_out_of_memory_spends_a_retry(
    retries: int, pods: list[dict[str, Any]], gives_up: bool
) -> None:
    seen = observe({**job(), "spec": {"backoffLimitPerIndex": retries}}, pods)
    assert not seen.is_terminal
    assert (seen.failure is not None) is gives_up
    if seen.failure is not None:
        assert seen.failure.failure_class is FailureClass.OUT_OF_MEMORY
