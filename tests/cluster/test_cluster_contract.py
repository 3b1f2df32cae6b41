"""What our cluster access relies on, checked on the fake cluster and, marked `cluster`, on a real one."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.cluster.access import ClusterApi, Expired
from kinetic_core.cluster.connecting import Target
from kinetic_core.cluster.index_view import index_view
from kinetic_core.cluster.informer import Informer
from kinetic_core.cluster.manifest import Delivery, Surroundings, job_manifest
from kinetic_core.cluster.names import CANCELLED, FAILED_COUNT, HOST_INDEX, IGNORED_COUNT, PART
from kinetic_core.cluster.parts import Part, part_job
from kinetic_core.cluster.pods import terminated
from kinetic_core.cluster.verdict import attempt_of, observe
from kinetic_core.errors import ClusterError
from kinetic_core.model.accelerators import parse_accelerator
from kinetic_core.model.job import JobReference, JobSpec
from kinetic_core.model.states import JobStatus
from kinetic_core.testing import pod_behaviour as behaviours
from kinetic_core.testing.fake_cluster import FakeCluster
from kinetic_core.testing.pod_behaviour import Behave
from tests.conftest import wait_for

Object = dict[str, Any]
PATIENCE = 90.0
KUBECONFIG = os.environ.get("KUBECONFIG", "")
IMAGE = os.environ.get("KINETIC_TEST_IMAGE", "")


@dataclass(frozen=True)
class Case:
    """What pods do: the shell command of a real one, the behaviour of a fake one."""

    command: str
    behave: Behave


SUCCEEDS = Case("echo said", lambda _pod: behaviours.succeeds(log="said\n"))
FAILS = Case("exit 1", lambda _pod: behaviours.exits(1))
NEVER_RETRY = Case("exit 65", lambda _pod: behaviours.exits(65))
STOPS = Case(
    "trap 'exit 143' TERM; sleep 600 & wait", lambda _pod: behaviours.runs_until_stopped(log="never")
)
AT_SECOND_TRY = Case(
    '[ "$KINETIC_FAILED_COUNT" -ge 1 ] || exit 1',
    lambda pod: behaviours.succeeds() if attempt_of(pod) else behaviours.exits(1),
)
UNPUBLISHED_ONCE = Case(
    '[ "${KINETIC_IGNORED_COUNT:-0}" -ge 1 ] || exit 67',
    lambda pod: behaviours.succeeds() if attempt_of(pod) else behaviours.exits(67),
)
STOPPED_ONCE = Case(
    '[ "${KINETIC_IGNORED_COUNT:-0}" -ge 1 ] && exit 0; ' + STOPS.command,
    lambda pod: behaviours.succeeds() if attempt_of(pod) else behaviours.runs_until_stopped(),
)
GREEDY = Case("exec python3 -c 'bytearray(1 << 30)'", lambda _pod: behaviours.runs_out_of_memory(0.5))
NO_NODE = Case("true", lambda _pod: behaviours.cannot_be_scheduled())
NO_IMAGE = Case("true", lambda _pod: behaviours.cannot_be_pulled())


class World:
    """A cluster, a namespace of the test's own in it, and jobs of ours."""

    def __init__(self, api: ClusterApi, namespace: str, case: Case, is_fake: bool) -> None:
        self.api, self.namespace, self.case, self.is_fake = api, namespace, case, is_fake

    def manifest(self, **options: Any) -> Object:
        """Our own manifest, with the case's command."""
        job_id = f"job-{secrets.token_hex(8)}"
        values = dict.fromkeys(JobReference.__dataclass_fields__, "x")
        values |= {"job_id": job_id, "k8s_name": f"kinetic-{job_id}", "namespace": self.namespace}
        values["image_uri"] = IMAGE or "python:3.11"
        spec = JobSpec("f", parse_accelerator("cpu"), "gke", **options)
        delivery = Delivery("a" * 64, "b" * 64, "c" * 64, Surroundings("default"))
        job = job_manifest(spec, JobReference(**values), delivery)
        container = job["spec"]["template"]["spec"]["containers"][0]
        container["command"] = ["sh", "-c", self.case.command]
        container["resources"]["requests"] = {"cpu": "10m", "memory": "16Mi"}
        return job

    def create(self, **options: Any) -> str:
        job = self.manifest(**options)
        self.api.create("Job", self.namespace, job)
        return str(job["metadata"]["name"])

    def job(self, name: str) -> Object:
        found = self.api.get("Job", self.namespace, name)
        assert found is not None
        return found

    def pods(self, name: str) -> list[Object]:
        query = {"labelSelector": f"app=kinetic,batch.kubernetes.io/job-name={name}"}
        found: list[Object] = self.api.list("Pod", self.namespace, query)["items"]
        return sorted(found, key=attempt_of)

    def conditions(self, name: str) -> dict[str, str]:
        """Type and reason of the conditions that hold."""
        conditions = self.job(name).get("status", {}).get("conditions", ())
        return {each["type"]: each["reason"] for each in conditions if each["status"] == "True"}

    def ended(self, name: str) -> dict[str, str]:
        wait_for(lambda: {"Complete", "Failed"} & self.conditions(name).keys(), PATIENCE)
        return self.conditions(name)

    def running(self, name: str) -> Object:
        wait_for(lambda: [p["status"].get("phase") for p in self.pods(name)][-1:] == ["Running"], PATIENCE)
        return self.pods(name)[-1]


@pytest.fixture(scope="session")
def real_namespace() -> Iterator[tuple[ClusterApi, str]]:
    if not KUBECONFIG or not IMAGE:
        pytest.skip(
            "no KUBECONFIG and KINETIC_TEST_IMAGE: start ../shared/cluster/testcluster and eval its env"
        )
    api, name = ClusterApi(Target(KUBECONFIG)), f"kinetic-contract-{secrets.token_hex(4)}"
    api.create("Namespace", "", {"metadata": {"name": name}})
    wait_for(lambda: api.get("ServiceAccount", name, "default"))
    yield api, name
    api.delete("Namespace", "", name)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.cluster)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Case], World]]:
    """Makes a world in which all pods do the same."""
    opened: list[FakeCluster] = []

    def make(case: Case) -> World:
        if request.param == "real":
            api, namespace = request.getfixturevalue("real_namespace")
            return World(api, namespace, case, is_fake=False)
        cluster = FakeCluster(case.behave)
        opened.append(cluster)
        kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
        return World(ClusterApi(Target(str(kubeconfig))), "default", case, is_fake=True)

    yield make
    for each in opened:
        each.close()


Make = Callable[[Case], World]


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
    followed = here.api.follow_pod_log(here.namespace, pod["metadata"]["name"], "kinetic-worker")
    assert b"".join(followed) == b"said\n"


def test_a_failure_without_retries_fails_the_job(world: Make) -> None:
    here = world(FAILS)
    name = here.create()
    reason = "MaxFailedIndexesExceeded"
    assert here.ended(name) == {"FailureTarget": reason, "Failed": reason}
    status = here.job(name)["status"]
    assert (status["failedIndexes"], status["failed"], status.get("succeeded", 0)) == ("0", 1, 0)
    assert [pod["status"]["phase"] for pod in here.pods(name)] == ["Failed"]


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


def test_indexes_end_each_for_itself(world: Make) -> None:
    here = world(MIXED)
    job = part_job(here.manifest(), Part("grp-a", 0, "4-8", 3))
    name = job["metadata"]["name"]
    here.api.create("Job", here.namespace, job)
    assert here.ended(name)["Failed"] == "FailedIndexes"
    status = here.job(name)["status"]
    assert (status["completedIndexes"], status["failedIndexes"]) == ("0,3,4", "1,2")
    own = {"labelSelector": f"job-name={name},{HOST_INDEX}=2,{PART}"}
    assert [attempt_of(pod) for pod in here.api.list("Pod", here.namespace, own)["items"]] == [0]
    assert here.api.list("Pod", here.namespace, {"labelSelector": f"job-name={name},!{PART}"})["items"] == []
    limited = here.api.list("Pod", here.namespace, {"labelSelector": f"job-name={name}", "limit": "2"})
    assert len(limited["items"]) == 2
    views = [observe(*index_view(here.job(name), [], ("grp-a", own + 4), own)) for own in range(5)]
    assert [seen.status is JobStatus.SUCCEEDED for seen in views] == [True, False, False, True, True]


def test_one_failed_index_may_end_all(world: Make) -> None:
    here = world(MIXED)
    job = part_job(here.manifest(), Part("grp-a", 0, "0-4", 1, True, True))
    here.api.create("Job", here.namespace, job)
    name = job["metadata"]["name"]
    assert here.ended(name)["Failed"] == "MaxFailedIndexesExceeded"
    assert here.job(name)["status"]["failedIndexes"] == "1"
    view, _ = index_view(here.job(name), [], ("grp-a", 4), 4)
    assert (observe(view, []).status, observe(view, []).reason) == (JobStatus.FAILED, "Cancelled")


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
        here.api._call("POST", f"/api/v1/namespaces/{here.namespace}/pods/{pod}/eviction", body)
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
    wait_for(lambda: ends.extend(pod for pod in here.pods(name) if terminated(pod)) or ends, PATIENCE)
    told = terminated(ends[0]) or {}
    assert (told["reason"], told["exitCode"]) == ("OOMKilled", 137)
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
    try:
        name = here.create()
        query = {"fieldSelector": "involvedObject.kind=Job,reason=FailedCreate"}

        def told() -> list[str]:
            events = here.api.list("Event", here.namespace, query)["items"]
            return [each["message"] for each in events if each["involvedObject"]["name"] == name]

        wait_for(told, PATIENCE)
        assert "exceeded quota: none" in told()[0]
        assert here.pods(name) == []
    finally:
        here.api.delete("ResourceQuota", here.namespace, "none")
    here.api.delete("Job", here.namespace, name)


def test_a_deleted_job_takes_its_pods_with_it(world: Make) -> None:
    here = world(STOPS)
    name = here.create()
    here.running(name)
    assert here.api.delete("Job", here.namespace, name, uid="another") is False
    assert here.api.delete("Job", here.namespace, name) is True
    assert here.api.get("Job", here.namespace, name) is None
    wait_for(lambda: here.pods(name) == [], PATIENCE)
    assert here.api.delete("Job", here.namespace, name) is False


def test_names_are_unique_and_refusals_have_their_status(world: Make) -> None:
    here = world(SUCCEEDS)
    job = here.manifest()
    made = here.api.create("Job", here.namespace, job)
    assert {"uid", "resourceVersion", "creationTimestamp"} <= made["metadata"].keys()
    assert made["status"] == {}
    for body, namespace, status in (
        (job, here.namespace, 409),
        ({**job, "metadata": {**job["metadata"], "namespace": "nowhere"}}, "nowhere", 404),
        ({**job, "metadata": {"labels": {}}}, here.namespace, 422),
    ):
        with pytest.raises(ClusterError) as caught:
            here.api.create("Job", namespace, body)
        assert caught.value.status == status
    assert here.api.get("Job", here.namespace, "nothing") is None
    assert here.api.patch("Job", here.namespace, "nothing", {}) is None
    assert here.api.list("Job", "nowhere")["items"] == []
    assert here.api.pod_log(here.namespace, "nothing", "c") is None


def test_a_patch_merges_and_makes_a_new_version(world: Make) -> None:
    here = world(STOPS)
    name = here.create()
    before = here.job(name)
    after = here.api.patch("Job", here.namespace, name, {"metadata": {"annotations": {"a": "1", "b": "2"}}})
    assert after is not None
    assert after["metadata"]["annotations"].items() >= {**before["metadata"]["annotations"], "a": "1"}.items()
    after = here.api.patch("Job", here.namespace, name, {"metadata": {"annotations": {"a": None}}})
    assert after is not None
    assert "a" not in after["metadata"]["annotations"]
    assert after["metadata"]["annotations"]["b"] == "2"
    assert after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
    here.api.delete("Job", here.namespace, name)


def test_a_watch_tells_what_happens_after_a_list(world: Make) -> None:
    here = world(SUCCEEDS)
    query = {"labelSelector": "app=kinetic"}
    version = here.api.list("Job", here.namespace, query)["metadata"]["resourceVersion"]
    name = here.create()
    here.ended(name)
    there = here.api.watch("Job", here.namespace, query, "", 1)
    assert [item["metadata"]["name"] for event, item in there if event == "ADDED"].count(name) == 1
    here.api.delete("Job", here.namespace, name)
    seen: list[tuple[str, Object]] = []
    for event, item in here.api.watch("Job", here.namespace, query, version, 10):
        if event == "BOOKMARK" or item["metadata"]["name"] == name:
            seen.append((event, item))
        if event == "DELETED" and item["metadata"]["name"] == name:
            break
    events = [event for event, _ in seen if event != "BOOKMARK"]
    assert events[0] == "ADDED"
    assert events[-1] == "DELETED"
    assert set(events[1:-1]) == {"MODIFIED"}
    middle = seen[len(seen) // 2][1]["metadata"]["resourceVersion"]
    again = here.api.watch("Job", here.namespace, query, middle, 1)
    assert [event for event, item in again if event == "ADDED" and item["metadata"]["name"] == name] == []


def test_a_watch_ends_by_itself_and_an_old_one_is_refused(world: Make) -> None:
    here = world(SUCCEEDS)
    version = here.api.list("Pod", here.namespace)["metadata"]["resourceVersion"]
    began = time.monotonic()
    list(here.api.watch("Pod", here.namespace, {}, version, 1))
    assert 0.5 < time.monotonic() - began < 10
    with pytest.raises(Expired):
        list(here.api.watch("Pod", here.namespace, {}, "1", 1))


def test_the_informer_follows_a_job_to_its_end(world: Make) -> None:
    here = world(SUCCEEDS)
    informer = Informer(here.api, here.namespace)
    token, _ = informer.changes(None)
    name = here.create()
    job_id = name.removeprefix("kinetic-")

    def has_succeeded() -> bool:
        informer.changes(token)
        found = informer.get(job_id)
        return found is not None and observe(*found).status is JobStatus.SUCCEEDED

    wait_for(has_succeeded, PATIENCE)
    changed = informer.changes(token)[1]
    informer.close()
    assert changed is not None
    assert job_id in changed
