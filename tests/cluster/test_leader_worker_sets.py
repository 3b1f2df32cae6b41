"""Slices as LeaderWorkerSets, on two real nodes: they end once, and give their nodes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core._runner import object_names, wire
from kinetic_core.backends.kubernetes.client import ClusterApi, path_of
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.names import WORKER_INDEX
from kinetic_core.backends.kubernetes.set_objects import API_VERSION
from kinetic_core.errors import ClusterError
from kinetic_core.provision.namespaces import LEADER, LEADER_RULES
from tests.cluster.jobs import own_lines, pods
from tests.conftest import wait_for

pytestmark = [pytest.mark.usefixtures("gke"), pytest.mark.alone, pytest.mark.slices]
on_slice = kinetic_core.run(accelerator="tpu-v5p-8")
PATIENCE = 90
WITHOUT_NAME = {"create": "POST", "list": "GET", "deletecollection": "DELETE"}
METHODS = {**WITHOUT_NAME, "get": "GET", "patch": "PATCH", "delete": "DELETE"}
REFUSED = [
    *((verb, "LeaderWorkerSet", "") for verb in METHODS if verb != "delete"),
    *(("delete", kind, "") for kind in ("Pod", "Job", "Secret")),
    *((verb, kind, "") for verb in ("create", "get", "list") for kind in ("Pod", "Job", "Secret")),
    ("delete", "LeaderWorkerSet", "default"),
]
"""What host 0 may not do: the verb, to what, and in which namespace if not in its own."""


@pytest.fixture
def no_leader() -> None:
    """Without the role of host 0."""


@pytest.fixture(autouse=True)
def leader(request: pytest.FixtureRequest, api: ClusterApi, namespace: str) -> Iterator[None]:
    """The role of host 0, for the account that the jobs run as."""
    if "no_leader" in request.fixturenames:
        yield
        return
    api.create("Role", namespace, {"metadata": {"name": LEADER}, "rules": LEADER_RULES})
    binding = {
        "metadata": {"name": LEADER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": LEADER},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    api.create("RoleBinding", namespace, binding)
    yield
    api.delete("RoleBinding", namespace, LEADER)
    api.delete("Role", namespace, LEADER)


@pytest.fixture(autouse=True)
def no_sets_left(api: ClusterApi, namespace: str) -> Iterator[None]:
    """What a test leaves would keep the nodes from the next."""
    yield
    api.delete_all("LeaderWorkerSet", namespace, "app=kinetic")


def has_set(api: ClusterApi, handle: kinetic_core.JobHandle) -> bool:
    return api.get("LeaderWorkerSet", handle.namespace, handle.k8s_name) is not None


def is_committed(handle: kinetic_core.JobHandle) -> bool:
    """Whether the runner has stored the outcome: asked of the store, so that nobody observes the job."""
    return listed_state(handle) is not None


def listed_state(handle: kinetic_core.JobHandle) -> str | None:
    """What a list of all outcomes says of the job's, without reading it; its signature is left out."""
    found = handle.place.store.find(object_names.result(handle.job_id))
    return None if found is None else found.metadata[wire.STATE].split()[0]


def delete_pod(api: ClusterApi, handle: kinetic_core.JobHandle, host: int) -> None:
    (pod,) = (pod for pod in pods(api, handle) if pod["metadata"]["labels"][WORKER_INDEX] == str(host))
    assert api.delete("Pod", handle.namespace, pod["metadata"]["name"], pod["metadata"]["uid"])


def count_starts(seconds: float) -> tuple[str, str]:
    """How many starts ended before this one, by the user's fault and not."""
    import os
    import time

    told = os.environ["KINETIC_FAILED_COUNT"], os.environ["KINETIC_IGNORED_COUNT"]
    print(f"start {told}", flush=True)
    time.sleep(seconds)
    return told


starts = on_slice(count_starts)
starts_in_time = kinetic_core.run(accelerator="tpu-v5p-8", timeout=5)(count_starts)


@kinetic_core.run(accelerator="tpu-v5p-8", retries=1)
def fails_on_one(times: int) -> str:
    import os
    import time

    if os.environ["TPU_WORKER_ID"] == "1" and int(os.environ["KINETIC_FAILED_COUNT"]) < times:
        raise KeyError(f"failure {os.environ['KINETIC_FAILED_COUNT']}")
    time.sleep(0 if times == 1 and os.environ["KINETIC_FAILED_COUNT"] == "1" else 600)
    return "done"


@pytest.mark.promise('batches: `backend="pathways"` and automatic: LeaderWorkerSet')
@pytest.mark.promise("batches: All hosts' logs with the rank before each line")
@pytest.mark.promise("batches: Self-cleanup by a narrow role; ADR of its risk")
@pytest.mark.promise("batches: No finished slice burns TPU time")
def test_a_slice_is_a_set_by_itself_and_gives_its_nodes_back(api: ClusterApi) -> None:
    handle = starts.run_async(0)
    assert handle.backend == "pathways"
    wait_for(lambda: is_committed(handle), PATIENCE)
    wait_for(lambda: not has_set(api, handle) and not pods(api, handle), PATIENCE)
    assert (handle.status(), listed_state(handle)) == (JobStatus.SUCCEEDED, "succeeded")
    (listed,) = (job for job in kinetic_core.list_jobs() if job.job_id == handle.job_id)
    assert listed.backend == "pathways"
    assert handle.result(stream_logs=False) == ("0", "0")
    assert own_lines(handle.logs()) == [f"[host {host}] start ('0', '0')" for host in (0, 1)]
    assert api.get("Job", handle.namespace, handle.k8s_name) is None


@pytest.mark.promise("batches: Run-once guard: the runner parks, the function never runs twice")
@pytest.mark.promise(
    "batches: No finished slice burns TPU time",
    "without the role; there only once somebody waits",
)
@pytest.mark.usefixtures("no_leader")
def test_nothing_runs_after_the_end_and_who_waits_ends_the_set(api: ClusterApi) -> None:
    handle = starts.run_async(0)
    wait_for(lambda: is_committed(handle), PATIENCE)
    delete_pod(api, handle, 1)
    claim = object_names.claim(handle.job_id, 1, 1)
    wait_for(lambda: handle.place.store.find(claim) is not None, PATIENCE)
    assert handle.status() is JobStatus.SUCCEEDED
    assert has_set(api, handle)  # a question changes nothing
    handle.result(stream_logs=False, cleanup=False)
    wait_for(lambda: not has_set(api, handle) and not pods(api, handle), PATIENCE)
    assert (handle.logs() or "").count("start") == 2
    assert handle.result(stream_logs=False) == ("0", "0")


@pytest.mark.promise("batches: … in the middle")
def test_a_deleted_pod_makes_all_start_anew(api: ClusterApi) -> None:
    handle = starts.run_async(10)
    wait_for(lambda: "start" in (handle.logs(host=1) or ""), PATIENCE)
    delete_pod(api, handle, 1)
    assert handle.result(stream_logs=False, cleanup=False) == ("0", "1")
    told = [line for line in (handle.logs() or "").splitlines() if line.startswith("[host 1] start")]
    assert told[-1] == "[host 1] start ('0', '1')"  # a pod that is still there says that it stays, below
    assert "hosts" in {phase.name for phase in handle.explain().phases}
    handle.cleanup()


def test_a_retry_of_the_users_is_a_new_group() -> None:
    assert fails_on_one.run_async(1).result(stream_logs=False) == "done"


@pytest.mark.promise("batches: One rank's failure ends all: its traceback, the others' stacks", "set")
def test_the_last_failure_is_the_jobs_with_the_others_stacks(api: ClusterApi) -> None:
    handle = fails_on_one.run_async(2)
    with pytest.raises(KeyError, match="failure 1") as caught:
        handle.result(stream_logs=False)
    told = "".join(caught.value.__notes__)
    assert "in fails_on_one" in told.partition("Meanwhile on host 0")[2]
    assert listed_state(handle) == "failed"
    wait_for(lambda: not has_set(api, handle), PATIENCE)
    handle.cleanup()


@pytest.mark.promise("batches: Cancel during each: slice")
def test_cancelling_stops_every_host(api: ClusterApi) -> None:
    handle = starts.run_async(600)
    wait_for(lambda: handle.status() is JobStatus.RUNNING, PATIENCE)
    handle.cancel()
    assert not has_set(api, handle)
    assert pods(api, handle) == []
    with pytest.raises(kinetic_core.errors.JobCancelled):
        handle.result(stream_logs=False)
    handle.cleanup()


@pytest.mark.promise("batches: No `activeDeadlineSeconds` in its pods; the runner keeps the deadline")
def test_the_deadline_holds_with_nobody_looking(api: ClusterApi) -> None:
    handle = starts_in_time.run_async(600)
    wait_for(lambda: is_committed(handle), PATIENCE)
    wait_for(lambda: not has_set(api, handle), PATIENCE)
    with pytest.raises(kinetic_core.errors.JobDeadlineExceeded):
        handle.result(stream_logs=False)
    handle.cleanup()


@pytest.fixture
def host_0(api: ClusterApi, namespace: str, gke: dict[str, str], tmp_path: Path) -> ClusterApi:
    """The cluster with a token of the account that has the role."""
    path = f"{path_of('ServiceAccount', namespace, 'default')}/token"
    token = api.call("POST", path, {"spec": {"expirationSeconds": 600}})["status"]["token"]
    kubeconfig = yaml.safe_load(Path(gke["KINETIC_KUBECONFIG"]).read_text())
    for each in kubeconfig["users"]:
        each["user"] = {"token": token}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    its = ClusterApi(Target(str(tmp_path / "kubeconfig")))
    # The server hears of a role a moment after it was made.
    wait_for(lambda: its.may("delete", "leaderworkerset.x-k8s.io", "leaderworkersets", namespace))
    return its


def rules(its: ClusterApi, namespace: str) -> list[dict[str, Any]]:
    """What an account may do there, as the API server lists it."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    told = its.call("POST", path, {"spec": {"namespace": namespace}})["status"]
    assert not told["incomplete"]
    found: list[dict[str, Any]] = told["resourceRules"]
    return found


@pytest.mark.promise("batches: Self-cleanup by a narrow role; ADR of its risk")
def test_the_role_of_host_0_is_to_delete_sets_of_its_namespace(
    api: ClusterApi, host_0: ClusterApi, namespace: str
) -> None:
    """And, as everybody may, to ask who it is and what it may do."""
    template = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
    spec = {"replicas": 0, "leaderWorkerTemplate": {"size": 1, "workerTemplate": template}}
    body = {"apiVersion": API_VERSION, "kind": "LeaderWorkerSet", "metadata": {"name": "any"}, "spec": spec}
    api.create("LeaderWorkerSet", namespace, body)
    assert host_0.delete("LeaderWorkerSet", namespace, "any")
    wait_for(lambda: api.get("LeaderWorkerSet", namespace, "any") is None)
    everybodys = rules(host_0, "default")
    groups = {group for rule in everybodys for group in rule["apiGroups"]}
    assert groups <= {"authentication.k8s.io", "authorization.k8s.io"}
    assert [rule for rule in rules(host_0, namespace) if rule not in everybodys] == LEADER_RULES


@pytest.mark.promise("batches: Self-cleanup by a narrow role; ADR of its risk")
def test_the_server_refuses_host_0_everything_else(host_0: ClusterApi, namespace: str) -> None:
    user = f'User "system:serviceaccount:{namespace}:default"'
    for verb, kind, place in REFUSED:
        path = path_of(kind, place or namespace, "" if verb in WITHOUT_NAME else "any")
        body: dict[str, Any] | None = {} if METHODS[verb] in ("POST", "PATCH") else None
        with pytest.raises(ClusterError) as caught:
            host_0.call(METHODS[verb], path, body)
        assert caught.value.status == 403
        assert f'{user} cannot {verb} resource "{kind.lower()}s"' in str(caught.value)
