"""Provisioning against the stand-in for Google's APIs, in a project of the test's own, and a real cluster."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.connections import default_connections
from kinetic_core.errors import CloudError
from kinetic_core.google_cloud import GoogleService, ask_google
from kinetic_core.store.gcs import GcsObjectStore
from tests.cluster.commands import KINETIC, typed, well
from tests.cluster.jobs import PREPARATION
from tests.conftest import Kinetic, wait_for
from tests.google_project import FakeProject

pytestmark = [pytest.mark.alone, pytest.mark.google]

Control = Callable[..., None]


@kinetic_core.run(accelerator="tpu-v6e-8", container_image="python:3.11")
def never_ends() -> None:
    time.sleep(3600)


@pytest.mark.promise("command: … of verbs that need a cloud or a debugger")
@pytest.mark.promise("provisioning: All verbs without Pulumi, gcloud, kubectl or any binary")
@pytest.mark.promise("provisioning: `up --plan`: create, change, keep, cost per hour where known")
@pytest.mark.promise("provisioning: Lifecycle that never removes cached content under a live marker")
@pytest.mark.promise("provisioning: lists jobs, pools, outputs and what is lost")
@pytest.mark.promise("provisioning: End to end: `up`, a job on its pool, `down`, nothing left")
def test_up_a_job_on_its_pool_and_down(
    place: dict[str, str],
    kinetic: Kinetic,
    api: ClusterApi,
    emulator: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project, cluster, namespace = place["PROJECT"], place["CLUSTER"], place["NAMESPACE"]
    (tmp_path / "prices.toml").write_text('currency = "EUR"\n[on_demand]\ntpu-v6e = 2.5\n')
    monkeypatch.setenv("KINETIC_PRICES", str(tmp_path / "prices.toml"))
    planned = well(kinetic("up", "-a", "tpu-v6e-8", "--plan", "--json"))
    assert not planned["done"]
    costs = {step["name"]: step["cost"] for step in planned["steps"]}
    assert "20.00 EUR/hour for each ct6e-standard-8t" in costs["tpu-v6e-8"]
    assert api.get("Namespace", "", namespace) is None
    made = well(kinetic("up", "-a", "tpu-v6e-8", "--yes", "--json"))
    assert made["profile"] == cluster
    again = well(kinetic("up", "-a", "tpu-v6e-8", "--yes", "--json"))
    assert {step["action"] for step in again["steps"] if step["kind"] != "add-on"} == {"keep"}
    (sets,) = [step for step in again["steps"] if step["kind"] == "add-on"]
    assert (sets["action"], sets["details"]) == ("leave", ["installed by somebody else, left as it is"])
    assert api.get("Namespace", "", "lws-system") is None  # the cluster's own sets stay all there is
    (pool,) = [pool for pool in well(kinetic("pool", "list", "--json"))["pools"] if pool["accelerator"]]
    assert (pool["name"], pool["accelerator"]) == ("tpu-v6e-8", "tpu-v6e-8")
    check_ageing(f"{project}-kn-{cluster}-jobs", namespace, emulator)
    job = never_ends.run_async()
    wait_for(lambda: node_of(api, namespace).startswith(f"gke-{cluster}-tpu-v6e-8"))
    down = well(kinetic("down", "--yes", "--json", "--remove-profiles"))
    assert "running jobs end: " in down["lost"][0]  # also those of others: all clusters here are one
    assert f"{namespace}/{job.job_id}" in down["lost"][0]
    assert "pools: default-pool, tpu-v6e-8" in down["lost"]
    assert f"outputs of {namespace} are deleted, objects: 1" in down["lost"]
    assert down["profiles_removed"] == [cluster]
    assert well(kinetic("status", "--json"))["status"] == ""
    assert api.get("Namespace", "", namespace) is None
    nodes = api.list("Node", "", {"labelSelector": "type=kwok"})["items"]
    assert [node for node in nodes if node["metadata"]["name"].startswith(f"gke-{cluster}-")] == []
    assert buckets(project, emulator) == []
    left = [step for step in well(kinetic("up", "--plan", "--json"))["steps"] if step["action"] == "keep"]
    assert {step["kind"] for step in left} <= {"APIs", "grants on"}  # the stand-in keeps a registry's policy


def buckets(project: str, emulator: str) -> list[Any]:
    with urllib.request.urlopen(f"{emulator}/storage/v1/b?project={project}&prefix={project}") as answer:
        found: list[Any] = json.load(answer).get("items", [])
        return found


@pytest.mark.promise("command: Verbs that look create nothing (W64)")
@pytest.mark.promise("provisioning: A read-only verb creates nothing")
def test_reading_an_empty_project_makes_nothing(
    place: dict[str, str], kinetic: Kinetic, emulator: str
) -> None:
    project = place["PROJECT"]
    assert well(kinetic("status", "--json"))["status"] == ""
    assert kinetic("pool", "list").code == 2
    assert kinetic("accelerators", "--live").code == 0
    assert kinetic("jobs", "list").code in (2, 3)
    assert kinetic("reap").code in (2, 3)
    assert kinetic("doctor").code == 5
    well(kinetic("up", "--plan", "--json"))
    for service, path in (("container", "clusters"), ("artifactregistry", "repositories")):
        told = answered(
            GoogleService(service, default_connections()),
            "GET",
            f"projects/{project}/locations/-/{path}",
            None,
        )
        assert told == (403, "SERVICE_DISABLED")  # there can be nothing as long as no API is enabled
    assert buckets(project, emulator) == []
    assert well(kinetic("profile", "list", "--json"))["profiles"] == []


@pytest.mark.promise("gke: `explain()`: each second, its cause, what would shorten it")
@pytest.mark.promise("provisioning: Pools: machine type, topology, placement, autoscaling from zero")
@pytest.mark.parametrize("place", ["test-project"], indirect=True)
def test_a_pool_that_grows_for_a_job_is_in_what_explain_tells(
    place: dict[str, str], kinetic: Kinetic, api: ClusterApi
) -> None:
    """The stand-in's autoscaler looks at the pools of this project only. The machine of this one is taken
    away, as it would be after ten idle minutes.
    """
    cluster, namespace = place["CLUSTER"], place["NAMESPACE"]
    well(kinetic("up", "-a", "tpu-v6e-8", "--yes", "--json"))
    pool = f"projects/test-project/locations/us-central1-a/clusters/{cluster}/nodePools/tpu-v6e-8"
    GoogleService("container", default_connections()).send("POST", f"{pool}:setSize", {"nodeCount": 0})
    mine = {"labelSelector": "cloud.google.com/gke-nodepool=tpu-v6e-8"}
    wait_for(lambda: not [node for node in api.list("Node", "", mine)["items"] if cluster in str(node)], 30)
    job = never_ends.run_async()
    wait_for(lambda: node_of(api, namespace).startswith(f"gke-{cluster}-tpu-v6e-8"), 90)
    told = job.explain()
    names = [phase.name for phase in told.phases]
    before = [name for name in names[: names.index("scale-up")] if name not in PREPARATION]
    assert before in (["scheduling"], ["queue"], ["queue", "scheduling"], [])
    assert told.phases[names.index("scale-up")].seconds >= 3, "its machines take five to come"
    assert "a node pool grew for it" in str(told)


def node_of(api: ClusterApi, namespace: str) -> str:
    """Where the pod is, "" as long as it is nowhere."""
    pods = api.list("Pod", namespace)["items"]
    return str(pods[0]["spec"].get("nodeName", "")) if pods else ""


def check_ageing(bucket: str, namespace: str, emulator: str) -> None:
    """Two months later, what belongs to one job has gone; its outputs, and what jobs share, have not."""
    store = GcsObjectStore(bucket, connections=default_connections())
    for name in ("jobs/job-1/result", "outputs/job-1/x", "packs/1.zip", "data/1/x", "trees/1.json"):
        store.create_if_absent(f"{namespace}/{name}", b"x")
    later = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 60 * 86400))
    body = json.dumps({"now": later, "bucket": bucket}).encode()
    with urllib.request.urlopen(f"{emulator}/emulator/lifecycle", body) as answer:
        assert json.load(answer)["skippedRules"] == []
    left = sorted(info.name.removeprefix(f"{namespace}/") for info in store.list(""))
    assert left == ["data/1/x", "outputs/job-1/x", "packs/1.zip", "trees/1.json"]


@pytest.mark.promise("command: What fails says so and is not 0; no profile then (W65, W66)")
@pytest.mark.promise("provisioning: All verbs without Pulumi, gcloud, kubectl or any binary")
@pytest.mark.promise("provisioning: Namespaces: account, role, Workload Identity binding")
@pytest.mark.promise("provisioning: Wants the name typed, or `--yes`")
@pytest.mark.promise("provisioning: A wrong zone or project is refused")
@pytest.mark.promise("provisioning: Profiles are saved only on success")
@pytest.mark.promise("provisioning: `down` offers to remove them")
def test_faults_and_kill_9(place: dict[str, str], kinetic: Kinetic, google: Control) -> None:
    project, cluster = place["PROJECT"], place["CLUSTER"]
    killed = subprocess.Popen([KINETIC, "up", "--yes"], stderr=subprocess.PIPE, text=True)
    assert killed.stderr is not None
    for line in killed.stderr:
        if "create cluster" in line:
            break
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stderr.close()
    clusters = f"projects/{project}/locations/us-central1-a/clusters"
    google("faults", match=f"OPERATION CREATE_NODE_POOL .*{project}.*/gpu-l4-1$", status=429, message="no L4")
    failed = kinetic("up", "-a", "gpu-l4", "-a", "gpu-t4", "--yes", "--json")
    assert failed.code == 3
    assert "no L4" in failed.json["message"]
    assert "Not done: create pool gpu-l4-1; create pool gpu-t4-1;" in failed.json["message"]
    assert well(kinetic("profile", "list", "--json"))["profiles"] == []  # it is no place for jobs yet
    google("faults", match=f"POST .*{clusters}/{cluster}/nodePools$", drop=True, times=2)
    made = well(kinetic("up", "-a", "gpu-l4", "-a", "gpu-t4", "--yes", "--json"))
    actions = {step["name"]: step["action"] for step in made["steps"]}
    assert (actions["gpu-l4-1"], actions["gpu-t4-1"], actions[cluster]) == ("replace", "create", "keep")
    assert well(kinetic("pool", "add", "-a", "gpu-t4", "--yes", "--json"))["steps"][0]["action"] == "keep"
    assert well(kinetic("pool", "update", "gpu-t4-1", "--max-nodes", "3", "--yes", "--json"))["done"]
    assert well(kinetic("pool", "remove", "gpu-l4-1", "--yes", "--json"))["done"]
    pools = {pool["name"]: pool["max_nodes"] for pool in well(kinetic("pool", "list", "--json"))["pools"]}
    assert pools == {"default-pool": 3, "gpu-t4-1": 3}
    wrong = kinetic("pool", "add", "-a", "gpu-l4", "--zone", "us-east1-b", "--yes")
    assert (wrong.code, "give --zone us-central1-a" in wrong.err) == (2, True)
    astray = kinetic("status", "--zone", "us-east1-b")
    assert (astray.code, "give --zone us-central1-a" in astray.out) == (0, True)
    refused = kinetic("up", "--project", "forbidden", "--yes")
    assert (refused.code, "project forbidden may not be used" in refused.err) == (2, True)
    for verb in ("add", "remove"):
        assert well(kinetic("namespace", verb, f"{place['NAMESPACE']}-two", "--yes", "--json"))["done"]
    assert well(kinetic("init", "--profile-name", "joined", "--json"))["profile"] == "joined"
    assert kinetic("profile", "show", "joined", "--json").json["settings"]["cluster"] == cluster
    assert "stdin is not a terminal" in kinetic("down").err
    assert "the name does not match" in typed("no\n", "down").stderr
    assert well(kinetic("status", "--json"))["status"] == "RUNNING"
    agreed = typed(f"{cluster}\ny\n", "down")
    assert agreed.returncode == 0, agreed.stderr
    assert well(kinetic("profile", "list", "--json"))["profiles"] == []
    assert well(kinetic("status", "--json"))["status"] == ""


def script(project: str) -> Iterator[tuple[str, str, str, Any]]:
    """Service and request, one after another, of what provisioning meets."""
    top, zone, bucket = f"projects/{project}", "locations/us-central1-a", f"b/{project}-b"
    account = f"{top}/serviceAccounts/some-account@{project}.iam.gserviceaccount.com"
    apis = [f"{name}.googleapis.com" for name in ("container", "artifactregistry", "storage", "iam")]
    images, stale = f"{top}/locations/us/repositories", "c3RhbGU="
    yield "container", "GET", f"{top}/locations/-/clusters", None
    yield "artifactregistry", "GET", f"{images}/r", None
    yield "serviceusage", "POST", f"{top}/services:batchEnable", {"serviceIds": apis}
    yield "container", "GET", f"{top}/locations/-/clusters", None
    yield "iam", "GET", account, None
    for _ in range(2):
        body = {"accountId": "some-account", "serviceAccount": {}}
        yield "iam", "POST", f"{top}/serviceAccounts", body
        yield "artifactregistry", "POST", f"{images}?repositoryId=r", {"format": "DOCKER"}
        uniform = {"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}
        yield "storage", "POST", f"b?project={project}", {"name": f"{project}-b", **uniform}
    yield "cloudresourcemanager", "POST", f"{top}:setIamPolicy", {"policy": {"etag": stale}}
    yield "artifactregistry", "POST", f"{images}/r:setIamPolicy", {"policy": {"etag": stale}}
    yield "storage", "PUT", f"{bucket}/iam", {"etag": stale, "bindings": []}
    yield "storage", "GET", f"{bucket}/o?delimiter=/&fields=prefixes,nextPageToken", None
    yield "storage", "GET", f"b/{project}-absent/iam", None
    cluster = {"name": "c", "initialNodeCount": 1}
    yield "container", "POST", f"{top}/{zone}/clusters", {"cluster": cluster}
    yield "container", "POST", f"{top}/{zone}/clusters/c/nodePools", {"nodePool": {"name": "p"}}
    yield "container", "DELETE", f"{top}/{zone}/clusters/absent", None
    for _ in range(2):
        yield "artifactregistry", "DELETE", f"{images}/r", None
        yield "iam", "DELETE", account, None
        yield "storage", "DELETE", bucket, None


@pytest.mark.promise("provisioning: The project in memory answers as the stand-in does")
def test_the_project_in_memory_answers_as_the_stand_in_does(place: dict[str, str]) -> None:
    project = place["PROJECT"]
    fake = FakeProject(project)
    for service, method, path, body in script(project):
        base = f"https://{service}.googleapis.com"

        def ask(method: str, url: str, body: Any, base: str = base) -> tuple[int, Any]:
            return fake.ask(method, re.sub("^https?://[^/]+", base, url), body)

        told = [
            answered(GoogleService(service, default_connections(), each), method, path, body)
            for each in (partial(ask_google, default_connections()), ask)
        ]
        assert told[0] == told[1], f"{service} {method} {path}"
    wait_for(lambda: idle(project))
    GoogleService("container", default_connections()).send(
        "DELETE", f"projects/{project}/locations/us-central1-a/clusters/c"
    )


def idle(project: str) -> bool:
    path = f"projects/{project}/locations/us-central1-a/clusters/c"
    return (GoogleService("container", default_connections()).get(path) or {}).get("status") == "RUNNING"


def answered(service: GoogleService, method: str, path: str, body: Any) -> tuple[int, str]:
    """Status, and the reason as far as it is looked at."""
    try:
        service.send(method, path, body)
    except CloudError as exc:
        reason = exc.reason if exc.reason in ("SERVICE_DISABLED", "FAILED_PRECONDITION") else ""
        return exc.status, reason
    return 200, ""
