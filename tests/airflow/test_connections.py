"""Connections of type `kinetic`: where they send jobs, as whom, and where their secrets never are."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kinetic_core.provision.namespaces import RULES
from kinetic_core.store.gcs import GcsObjectStore

pytestmark = pytest.mark.airflow

KEY_FILE = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS", "")
TRIGGERS = """
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
with create_session() as session:
    print([(each.classpath, each.kwargs) for each in session.query(Trigger)])
"""


@dataclass(frozen=True)
class Theirs:
    """A namespace in which somebody else may run jobs, and what proves that one is that somebody."""

    api: Any
    namespace: str
    token: str
    key: dict[str, str]
    secrets: dict[str, str]
    """What jobs are given by reference, by the names of the variables."""

    @property
    def canaries(self) -> list[bytes]:
        """Parts of the secrets that survive any quoting."""
        credentials = self.token.rpartition(".")[2], self.key["private_key"].splitlines()[5]
        return [each.encode() for each in (*credentials, *self.secrets.values())]


@pytest.fixture(scope="module")
def theirs(cases: Any, cluster: Any) -> Iterator[Theirs]:
    """Who may run jobs in a namespace of the cluster is a service account with a token."""
    if not KEY_FILE:
        pytest.skip("no GOOGLE_APPLICATION_CREDENTIALS: eval the environment of the test cluster")
    api, name = cluster, f"kinetic-conn-{secrets.token_hex(4)}"
    api.create("Namespace", "", {"metadata": {"name": name}})
    try:
        api.create("ServiceAccount", name, {"metadata": {"name": "user"}})
        api.create("Role", name, {"metadata": {"name": "jobs"}, "rules": RULES})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "jobs"}
        subject = {"kind": "ServiceAccount", "name": "user", "namespace": name}
        api.create(
            "RoleBinding", name, {"metadata": {"name": "jobs"}, "roleRef": role, "subjects": [subject]}
        )
        annotations = {"kubernetes.io/service-account.name": "user"}
        token = {"metadata": {"name": "token", "annotations": annotations}}
        api.create("Secret", name, {**token, "type": "kubernetes.io/service-account-token"})
        told = cases.airflow.until(
            lambda: ((api.get("Secret", name, "token") or {}).get("data") or {}).get("token"), 30, "a token"
        )
        held = {f"CANARY_{number}": f"canary-{secrets.token_hex(12)}" for number in range(50)}
        api.create("Secret", name, {"metadata": {"name": "canaries"}, "stringData": held})
        key = json.loads(Path(KEY_FILE).read_text())
        yield Theirs(api, name, base64.b64decode(told).decode(), key, held)
    finally:
        api.delete("Namespace", "", name)


def connection(conn_id: str, conn_type: str, **extra: str) -> dict[str, str]:
    return {"connection_id": conn_id, "conn_type": conn_type, "extra": json.dumps(extra)}


@pytest.fixture(scope="module")
def connections(cases: Any, theirs: Theirs) -> dict[str, dict[str, str]]:
    """Those that build on others, of a Kubernetes and of a Google Cloud cluster, added as people do."""
    config = json.loads(Path(os.environ["KUBECONFIG"]).read_text())
    config["users"] = [{"name": "user", "user": {"token": theirs.token}}]
    config["contexts"][0]["context"] = {"cluster": config["clusters"][0]["name"], "user": "user"}
    bucket = cases.airflow.environment["KINETIC_BUCKET"]
    made = [
        connection("kube_theirs", "kubernetes", kube_config=json.dumps(config), namespace=theirs.namespace),
        connection("google_theirs", "google_cloud_platform", keyfile_dict=json.dumps(theirs.key)),
        connection("kinetic_kube", "kinetic", backend="gke", kubernetes_conn_id="kube_theirs", bucket=bucket),
        connection(
            "kinetic_refused",
            "kinetic",
            backend="gke",
            kubernetes_conn_id="kube_theirs",
            google_cloud_conn_id="google_theirs",
            bucket="no-such-bucket",
        ),
        connection(
            "kinetic_plain",
            "kinetic",
            backend="gke",
            cluster="kinetic-cluster",
            namespace=theirs.namespace,
            bucket=bucket,
        ),
        connection(
            "kinetic_google",
            "kinetic",
            backend="gke",
            google_cloud_conn_id="google_theirs",
            cluster="kinetic-cluster",
            namespace=theirs.namespace,
            bucket=bucket,
        ),
    ]
    for each in made:
        cases.api.call("POST", "/connections", each)
    return {each["connection_id"]: each for each in made}


def form_metadata(cases: Any) -> list[dict[str, Any]]:
    """What Airflow's UI makes the form for connections from."""
    request = urllib.request.Request(f"{cases.api.url}/ui/connections/hook_meta")
    request.add_header("Authorization", f"Bearer {cases.api.token}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def tried(cases: Any, body: dict[str, str]) -> tuple[bool, str]:
    """What the form's Test button says."""
    answer = cases.api.call("POST", "/connections/test", body)
    return answer["status"], answer["message"]


@pytest.mark.promise("airflow: Connection type `kinetic` with a form")
def test_the_form_has_the_fields_and_a_test_button(cases: Any) -> None:
    (form,) = (each for each in form_metadata(cases) if each["connection_type"] == "kinetic")
    assert list(form["extra_fields"])[:2] == ["google_cloud_conn_id", "kubernetes_conn_id"]
    assert form["standard_fields"]["password"]["hidden"]
    well, said = tried(cases, connection("x", "kinetic", backend="local"))
    assert well, said
    assert "object store: file://" in said
    for extra, complaint in (
        ({"buckets": "b"}, "'buckets', which is none of its fields"),
        ({"backend": "mars"}, "backend='mars' of connection"),
        ({"backend": "gke", "google_cloud_conn_id": "nobody"}, "no connection 'nobody'"),
    ):
        well, said = tried(cases, connection("x", "kinetic", **extra))
        assert not well
        assert complaint in said


def test_a_task_runs_where_its_connection_says(cases: Any) -> None:
    cases.api.call("POST", "/connections", connection("kinetic_here", "kinetic", backend="local"))
    cases.start("connected_here")

    def is_watched(instance: dict[str, Any]) -> bool:
        log = cases.log("connected_here", "where")
        return instance["state"] == "deferred" and "no worker is held" in log

    cases.reach("connected_here", "where", is_watched, "to be watched by a trigger")
    Path(cases.airflow.home, "let-go").touch()
    assert cases.end("connected_here") == "success"
    assert cases.value("connected_here", "where") == os.uname().nodename
    (told,) = cases.values("connected_here", "where", "kinetic_job")
    assert told["conn_id"] == "kinetic_here"


@pytest.mark.promise("airflow: … and a *Test* button")
def test_the_test_button_tries_cluster_and_bucket(cases: Any, connections: Any, theirs: Theirs) -> None:
    well, said = tried(cases, connections["kinetic_kube"])
    assert well, said
    assert f"all that jobs need in {theirs.namespace}" in said
    extra = json.loads(connections["kinetic_kube"]["extra"])
    well, said = tried(cases, connection("x", "kinetic", **{**extra, "namespace": "default"}))
    assert not well
    assert "permissions: not permitted in default: create jobs" in said
    well, said = tried(cases, connection("x", "kinetic", **{**extra, "bucket": "no-such-bucket"}))
    assert not well
    assert "'no-such-bucket' does not exist" in said


@pytest.mark.promise(
    "airflow: Builds on the official providers' Google Cloud and Kubernetes connections",
    "with pods",
)
@pytest.mark.promise(
    "airflow: workload, logs, outputs",
    "all three, of a job of the stand-in for GKE, while deferred and at the end",
)
@pytest.mark.promise("airflow: Connections' secrets in no pod, log, XCom or metadata database")
@pytest.mark.promise("data: 50 canaries × XCom: 0")
@pytest.mark.promise("page: Server side, through the connection's credentials", "with pods")
def test_jobs_run_as_connections_say_and_leak_no_secret(cases: Any, connections: Any, theirs: Theirs) -> None:
    tasks = ("kube", "google")
    cases.start("connected_cluster")
    cases.start("connected_failing")
    cases.start("connected_named")
    for task_id in tasks:
        cases.reach("connected_cluster", task_id, lambda one: one["state"] == "deferred", "to be deferred")
    links = while_deferred(cases)
    cases.reach("connected_named", "where", lambda one: one["state"] == "deferred", "to be deferred")
    rows = subprocess.run(
        [sys.executable, "-c", TRIGGERS],
        env=cases.airflow.environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "'kinetic_kube'" in rows
    assert "'google_theirs'" in rows
    (named,) = page(cases, "connected_named")["jobs"]
    assert named["status"] in {"PENDING", "RUNNING", "SUCCEEDED"}
    rows_of_page = {each["task_id"]: each for each in page(cases, "connected_cluster")["jobs"]}
    assert {rows_of_page[task_id]["status"] for task_id in tasks} <= {"PENDING", "RUNNING", "SUCCEEDED"}
    objects = [theirs.api.list(kind, theirs.namespace)["items"] for kind in ("Job", "Pod")]
    assert len(objects[0]) >= 2
    location = cases.airflow.environment["KINETIC_BUCKET"]
    GcsObjectStore.at(location).create_if_absent("let-go", b"")
    assert cases.end("connected_cluster") == "success"
    for task_id in tasks:
        assert cases.value("connected_cluster", task_id).startswith("kinetic-job-")
        assert "it runs" in cases.log("connected_cluster", task_id)
    assert cases.api.links(cases.instance("connected_cluster", "google")) == links
    console = "https://console.cloud.google.com"
    place = f"us-central1-a/kinetic-cluster/{theirs.namespace}"
    assert links["Job"].startswith(f"{console}/kubernetes/job/{place}/kinetic-job-")
    for task_id in tasks:
        opened = page(cases, "connected_cluster", rows_of_page[task_id]["job_id"])
        assert opened["log"] == ["it runs"]
    digest = hashlib.sha256("".join(theirs.secrets.values()).encode()).hexdigest()
    assert cases.value("connected_cluster", "digest") == digest

    assert cases.end("connected_named") == "success", "it has no credentials but those it names"
    assert "it runs" in cases.log("connected_named", "where")

    assert cases.end("connected_failing") == "failed"
    assert "ValueError: 50 secrets are held here" in cases.log("connected_failing", "fail")
    assert "no-such-bucket" in cases.log("connected_failing", "refused")

    places = {"rows of triggers": rows.encode(), "Jobs and Pods": json.dumps(objects).encode()}
    places |= {str(path): path.read_bytes() for path in cases.airflow.home.rglob("*") if path.is_file()}
    places |= stored(location)
    assert len([name for name in places if name.startswith("gs://")]) > 5
    for canary in theirs.canaries:
        assert [name for name, content in places.items() if canary in content] == []


def while_deferred(cases: Any) -> dict[str, str]:
    """The links of the task whose job is of the stand-in for GKE, while its job runs."""

    def shown(instance: dict[str, Any]) -> Any:
        links = cases.api.links(instance)
        return links if instance["state"] == "deferred" and all(links.values()) else None

    found: dict[str, str] = cases.reach("connected_cluster", "google", shown, "to be deferred with its links")
    return found


def page(cases: Any, dag_id: str, job_id: str = "") -> dict[str, Any]:
    """What the page shows of a run, or of a job that is opened there. It looks as each task's connection
    says; nothing is missing.
    """
    url = f"{cases.api.url}/kinetic/api/dags/{dag_id}/runs/{quote(cases.runs[dag_id])}/jobs/{job_id}"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        url.rstrip("/"), timeout=60
    ) as answer:
        told: dict[str, Any] = json.load(answer)
    assert told["troubles"] == []
    return told


def stored(location: str) -> dict[str, bytes]:
    """All that jobs have left in the bucket."""
    store = GcsObjectStore.at(location)
    return {f"{store.uri}/{info.name}": store.read(info.name) for info in store.list("")}
