"""What our cluster access relies on, checked on the fake cluster and, marked `cluster`, on a real one."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_core.backends.kubernetes.chunks import Chunk, chunk_job
from kinetic_core.backends.kubernetes.indexed_jobs import index_view
from kinetic_core.backends.kubernetes.names import CANCELLED, CHUNK, FAILED_COUNT, HOST_INDEX, IGNORED_COUNT
from kinetic_core.backends.kubernetes.objects import Pod
from kinetic_core.backends.kubernetes.verdict import observe
from kinetic_core.job import JobStatus
from kinetic_core.testing import kubelet as behaviours
from tests.conftest import wait_for
from tests.kubernetes.contract import (
    AT_SECOND_TRY,
    FAILS,
    GREEDY,
    NEVER_RETRY,
    NO_IMAGE,
    NO_NODE,
    PATIENCE,
    STOPPED_ONCE,
    STOPS,
    SUCCEEDS,
    UNPUBLISHED_ONCE,
    Case,
    Make,
)


@pytest.mark.promise(
    "gke: `kinetic_core.testing`: store, fake cluster with the real one's contract",
    "and all of this file",
)
def test_a_job_that_succeeds(world: Make) -> None:
    here = world(SUCCEEDS)
    name = here.create()
    conditions = here.ended(name)
    assert conditions == {"SuccessCriteriaMet": "CompletionsReached", "Complete": "CompletionsReached"}
    job, (pod,) = here.job(name), here.pods(name)
    assert job["status"]["completedIndexes"] == "0"
    assert (job["status"]["succeeded"], job["status"].get("active", 0)) == (1, 0)
    assert {"startTime", "completionTime"} <= job["status"].keys()
    assert pod["metadata"]["name"].startswith(f"{name}-0-")
    assert pod["metadata"]["annotations"][FAILED_COUNT] == "0"
    assert IGNORED_COUNT not in pod["metadata"]["annotations"]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert pod["status"]["phase"] == "Succeeded"
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert observe(job, [pod]).status is JobStatus.SUCCEEDED
    assert here.api.pod_log(here.namespace, pod["metadata"]["name"], "kinetic-worker") == b"said\n"
    followed = here.api.follow_pod_log(here.namespace, pod["metadata"]["name"], "kinetic-worker", 60.0)
    assert b"".join(followed) == b"said\n"


@pytest.mark.promise("gke: The verdict is a pure function of objects")
def test_a_failure_without_retries_fails_the_job(world: Make) -> None:
    here = world(FAILS)
    name = here.create()
    reason = "MaxFailedIndexesExceeded"
    assert here.ended(name) == {"FailureTarget": reason, "Failed": reason}
    status = here.job(name)["status"]
    assert (status["failedIndexes"], status["failed"], status.get("succeeded", 0)) == ("0", 1, 0)
    assert [pod["status"]["phase"] for pod in here.pods(name)] == ["Failed"]


@pytest.mark.promise("gke: Pure function; Indexed Job with two attempt counts")
def test_a_retry_is_another_pod_that_knows_its_number(world: Make) -> None:
    here = world(AT_SECOND_TRY)
    name = here.create(retries=1)
    assert "Complete" in here.ended(name)
    assert [pod["metadata"]["annotations"][FAILED_COUNT] for pod in here.pods(name)] == ["0", "1"]
    assert here.job(name)["status"]["failed"] == 1


MIXED = Case(
    'case "$JOB_COMPLETION_INDEX" in 1) exit 65;; 2) exit 1;; *) exit 0;; esac',
    lambda pod: behaviours.exits({"1": 65, "2": 1}.get(pod["metadata"]["labels"][HOST_INDEX], 0)),
)


@pytest.mark.promise("batches: Observing by `completedIndexes`/`failedIndexes`")
def test_indexes_end_each_for_itself(world: Make) -> None:
    here = world(MIXED)
    job = chunk_job(here.manifest(), Chunk("grp-a", 0, "4-8", 3))
    name = job["metadata"]["name"]
    here.api.create("Job", here.namespace, job)
    assert here.ended(name)["Failed"] == "FailedIndexes"
    status = here.job(name)["status"]
    assert (status["completedIndexes"], status["failedIndexes"]) == ("0,3,4", "1,2")
    own = {"labelSelector": f"job-name={name},{HOST_INDEX}=2,{CHUNK}"}
    assert [Pod(pod).attempt for pod in here.api.list("Pod", here.namespace, own)["items"]] == [0]
    assert here.api.list("Pod", here.namespace, {"labelSelector": f"job-name={name},!{CHUNK}"})["items"] == []
    limited = here.api.list("Pod", here.namespace, {"labelSelector": f"job-name={name}", "limit": "2"})
    assert len(limited["items"]) == 2
    views = [observe(*index_view(here.job(name), [], ("grp-a", own + 4), own)) for own in range(5)]
    assert [seen.status is JobStatus.SUCCEEDED for seen in views] == [True, False, False, True, True]


def test_one_failed_index_may_end_all(world: Make) -> None:
    here = world(MIXED)
    job = chunk_job(here.manifest(), Chunk("grp-a", 0, "0-4", 1, True, True))
    here.api.create("Job", here.namespace, job)
    name = job["metadata"]["name"]
    assert here.ended(name)["Failed"] == "MaxFailedIndexesExceeded"
    assert here.job(name)["status"]["failedIndexes"] == "1"
    view, _ = index_view(here.job(name), [], ("grp-a", 4), 4)
    assert (observe(view, []).status, observe(view, []).reason) == (JobStatus.CANCELLED, "Cancelled")


def test_an_exit_code_may_forbid_retries(world: Make) -> None:
    here = world(NEVER_RETRY)
    name = here.create(retries=3)
    assert here.ended(name)["Failed"] == "MaxFailedIndexesExceeded"
    assert len(here.pods(name)) == 1


def test_an_exit_code_may_cost_nothing(world: Make) -> None:
    here = world(UNPUBLISHED_ONCE)
    name = here.create()
    assert "Complete" in here.ended(name)
    first, second = here.pods(name)
    assert second["metadata"]["annotations"][IGNORED_COUNT] == "1"
    assert second["metadata"]["annotations"][FAILED_COUNT] == "0"
    assert first["status"]["phase"] == "Failed"
    assert here.job(name)["status"].get("failed", 0) == 0


@pytest.mark.parametrize("evict", [False, True], ids=["deleted", "evicted"])
def test_a_pod_that_is_taken_away_is_replaced_when_it_has_ended(world: Make, evict: bool) -> None:
    here = world(STOPPED_ONCE)
    name = here.create()
    pod = here.running(name)["metadata"]["name"]
    assert observe(here.job(name), here.pods(name)).status is JobStatus.RUNNING
    if evict:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        here.api.call("POST", f"/api/v1/namespaces/{here.namespace}/pods/{pod}/eviction", body)
    else:
        assert here.api.delete("Pod", here.namespace, pod) is True
    assert "Complete" in here.ended(name)
    (left,) = here.pods(name)
    assert left["metadata"]["annotations"][IGNORED_COUNT] == "1"
    assert here.job(name)["status"].get("failed", 0) == 0


def test_memory_that_runs_out_is_told(world: Make) -> None:
    here = world(GREEDY)
    name = here.create(memory=64 << 20)
    ends: list[dict[str, Any]] = []
    wait_for(lambda: ends.extend(pod for pod in here.pods(name) if Pod(pod).termination) or ends, PATIENCE)
    told = Pod(ends[0]).termination
    assert told is not None
    assert (told.reason, told.exit_code) == ("OOMKilled", 137)
    failure = observe(here.job(name), ends[:1]).failure  # a job that goes on, and must not
    assert failure is not None
    assert failure.failure_class == "out of memory"


def test_a_deadline_ends_the_pod_and_then_the_job(world: Make) -> None:
    here = world(STOPS)
    name = here.create(timeout=1 if here.is_fake else 6)
    here.running(name)
    assert here.ended(name) == {"FailureTarget": "DeadlineExceeded", "Failed": "DeadlineExceeded"}
    wait_for(lambda: here.pods(name) == [], PATIENCE)


def test_a_cancelled_job_is_one_whose_deadline_is_now(world: Make) -> None:
    here = world(STOPS)
    name = here.create()
    here.running(name)
    body = {"metadata": {"annotations": {CANCELLED: "true"}}, "spec": {"activeDeadlineSeconds": 1}}
    assert here.api.patch("Job", here.namespace, name, body) is not None
    assert here.ended(name)["Failed"] == "DeadlineExceeded"
    assert observe(here.job(name), []).reason == "Cancelled"


def test_a_suspended_job_waits(world: Make) -> None:
    here = world(SUCCEEDS)
    job = here.manifest()
    job["spec"]["suspend"] = True
    here.api.create("Job", here.namespace, job)
    name = job["metadata"]["name"]
    wait_for(lambda: "Suspended" in here.conditions(name))
    assert here.pods(name) == []
    here.api.patch("Job", here.namespace, name, {"spec": {"suspend": False}})
    assert "Complete" in here.ended(name)


def test_a_pod_that_fits_nowhere_says_so(world: Make) -> None:
    here = world(NO_NODE)
    job = here.manifest()
    job["spec"]["template"]["spec"]["nodeSelector"] = {"no-such": "label"}
    here.api.create("Job", here.namespace, job)
    name = job["metadata"]["name"]
    wait_for(lambda: observe(here.job(name), here.pods(name)).reason == "Unschedulable", PATIENCE)
    assert "nodes are available" in observe(here.job(name), here.pods(name)).message
    assert here.api.delete("Job", here.namespace, name) is True


def test_an_image_that_cannot_be_had_is_told(world: Make) -> None:
    here = world(NO_IMAGE)
    job = here.manifest()
    job["spec"]["template"]["spec"]["containers"][0]["image"] = "10.88.0.1:5000/no/such/image:1"
    here.api.create("Job", here.namespace, job)
    name = job["metadata"]["name"]

    def failure() -> object:
        return observe(here.job(name), here.pods(name)).failure

    wait_for(failure, PATIENCE)
    assert "image cannot be pulled" in str(failure())
    pod = here.pods(name)[0]["metadata"]["name"]
    assert here.api.pod_log(here.namespace, pod, "kinetic-worker") is None
    assert here.api.delete("Job", here.namespace, name) is True


def test_a_quota_is_told_by_an_event_and_holds_pods_back(world: Make) -> None:
    here = world(SUCCEEDS)
    here.api.create(
        "ResourceQuota", here.namespace, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    )
    query = {"fieldSelector": "involvedObject.kind=Job,reason=FailedCreate"}

    def told(name: str) -> list[str]:
        events = here.api.list("Event", here.namespace, query)["items"]
        return [each["message"] for each in events if each["involvedObject"]["name"] == name]

    def refused() -> str:
        """Name of a job without a pod; just after the quota is made the API server may still admit one."""
        name = here.create()
        wait_for(lambda: told(name) or here.pods(name), PATIENCE)
        if not here.pods(name):
            return name
        here.api.delete("Job", here.namespace, name)
        return ""

    name = ""
    try:
        while not name:
            name = refused()
        assert "exceeded quota: none" in told(name)[0]
        assert here.pods(name) == []
    finally:
        here.api.delete("ResourceQuota", here.namespace, "none")
    here.api.delete("Job", here.namespace, name)
