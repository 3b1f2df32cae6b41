"""What a LeaderWorkerSet's pods say of the Job that has none itself."""

from __future__ import annotations

from typing import Any

from kinetic_core._runner import wire
from kinetic_core._runner.wire import FailureClass
from kinetic_core.backends.kubernetes.names import CANCELLED, CONTAINER, WORKER_INDEX
from kinetic_core.backends.kubernetes.objects import Pod
from kinetic_core.backends.kubernetes.set_objects import as_job_pod, set_view, without_set
from kinetic_core.backends.kubernetes.verdict import observe
from kinetic_core.job import JobStatus

JOB: dict[str, Any] = {"metadata": {"annotations": {}}, "spec": {"completions": 2, "parallelism": 0}}


def pod(host: int, **state: Any) -> dict[str, Any]:
    status = {"containerStatuses": [{"name": CONTAINER, **state}]}
    made = {"metadata": {"name": f"set-{host}", "labels": {WORKER_INDEX: str(host)}}, "status": status}
    return as_job_pod(made, 3)


RUNNING = {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}


def test_a_pod_says_which_host_and_which_attempt_it_is() -> None:
    assert (Pod(pod(1)).host, Pod(pod(1)).attempt) == (1, 3)


def test_a_job_runs_when_all_its_hosts_do() -> None:
    assert observe(*set_view(JOB, [pod(0, **RUNNING), pod(1, **RUNNING)], 0)).status is JobStatus.RUNNING
    seen = observe(*set_view(JOB, [pod(0, **RUNNING)], 0))
    assert (seen.status, seen.reason, seen.attempt) == (JobStatus.PENDING, "WaitingForHosts", 3)


def test_without_pods_the_job_knows_the_last_attempt() -> None:
    assert observe(*set_view(JOB, [], 2)).attempt == 2


def test_a_container_that_no_runner_came_up_in_fails_the_job() -> None:
    ended = {"terminated": {"exitCode": wire.EXIT_NEVER_RETRY, "finishedAt": "2026-01-01T00:00:09Z"}}
    seen = observe(*set_view(JOB, [pod(0, state={"running": {}}, lastState=ended)], 0))
    assert (seen.status, seen.reason) == (JobStatus.FAILED, "RunnerFailed")
    assert seen.failure is not None
    assert seen.failure.failure_class == FailureClass.CONFIGURATION
    other = {"terminated": {"exitCode": wire.EXIT_REGROUP}}
    assert not observe(*set_view(JOB, [pod(0, state=other)], 0)).is_terminal


def test_a_job_without_its_set_has_failed() -> None:
    view, pods = set_view(JOB, [], 0)
    seen = observe(without_set(view), pods)
    assert (seen.status, seen.reason) == (JobStatus.FAILED, "SetDeleted")
    assert "deleted by hand" in seen.message


def test_a_cancelled_jobs_pods_may_end_in_any_way() -> None:
    job = {**JOB, "metadata": {"annotations": {CANCELLED: "true"}}}
    ended = {"terminated": {"exitCode": wire.EXIT_NEVER_RETRY}}
    assert not observe(*set_view(job, [pod(0, state=ended)], 0)).is_terminal
