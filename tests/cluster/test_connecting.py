"""Ways to a cluster: the GKE API with Google's tokens, several clusters at once, and what can go wrong."""

from __future__ import annotations

import json
import os
import shutil
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import kinetic_core
from kinetic_core.backends.kubernetes import watch_cache
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target, connection
from kinetic_core.client import default_client
from kinetic_core.connections import default_connections
from kinetic_core.errors import ClusterError, ClusterUnreachable, ConfigurationError, OtherCluster
from kinetic_core.google_cloud import credentials
from tests.cluster.images import GOOGLE
from tests.cluster.jobs import running, sleep
from tests.cluster.roles import SERVICE_ACCOUNT, documented_role

CLUSTER = Target(
    project="test-project",
    zone="us-central1-a",
    cluster="kinetic-cluster",
    gke_api=GOOGLE.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER", ""),
)

SERVICE_ACCOUNT_FILES = Path("/var/run/secrets/kubernetes.io/serviceaccount")

pytestmark = [pytest.mark.alone, pytest.mark.google]


@pytest.mark.promise("gke: GKE API: endpoint, CA, token; endpoint overrides")
def test_a_project_and_a_cluster_are_enough(google: Any) -> None:
    handle = kinetic_core.run(accelerator="cpu")(lambda: 7).run_async()
    assert handle.result(stream_logs=False) == 7
    assert (handle.project, handle.cluster_name) == ("test-project", "kinetic-cluster")


@pytest.mark.promise("gke: Project, zone, cluster, namespace and profiles resolve as specified")
def test_a_profile_alone_is_enough(google: Any, gke: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses of Google's services included; a call's own cluster comes before the profile's."""
    profile = {
        "backend": "gke",
        "project": "test-project",
        "zone": "us-central1-a",
        "cluster": "elsewhere",
        "namespace": gke["KINETIC_NAMESPACE"],
        "bucket": gke["KINETIC_BUCKET"],
        "container_image": gke["KINETIC_CONTAINER_IMAGE"],
        "storage_emulator_host": os.environ["STORAGE_EMULATOR_HOST"],
        "api_endpoint_overrides": {"container": GOOGLE["CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER"]},
    }
    Path(os.environ["KINETIC_PROFILES_FILE"]).write_text(
        json.dumps({"current": "test", "profiles": {"test": profile}})
    )
    for name in [*gke, *GOOGLE, "STORAGE_EMULATOR_HOST"]:
        if name != "KINETIC_PACKAGE_ROOT":
            monkeypatch.delenv(name, raising=False)
    handle = kinetic_core.run(accelerator="cpu", cluster="kinetic-cluster")(lambda: 7).run_async()
    assert handle.result(stream_logs=False) == 7
    again = kinetic_core.attach(handle.job_id, cluster="kinetic-cluster")
    assert again.cluster == ("test-project", "us-central1-a", "kinetic-cluster")
    with pytest.raises(OtherCluster, match="cluster kinetic-cluster"):
        kinetic_core.attach(handle.job_id)
    assert handle.job_id not in [job.job_id for job in kinetic_core.list_jobs()]


@pytest.fixture
def pod(
    api: ClusterApi, namespace: str, gke: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """This process as in a pod of that cluster, whose service account has the documented role; its name.

    What kubelet puts into every pod: https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
    """
    if SERVICE_ACCOUNT_FILES.exists():
        pytest.skip(f"this is a pod: {SERVICE_ACCOUNT_FILES} is there")
    name, accounts = "worker", f"/api/v1/namespaces/{namespace}/serviceaccounts"
    api.call("POST", accounts, {"metadata": {"name": name}})
    token = api.call("POST", f"{accounts}/{name}/token", {"spec": {"expirationSeconds": 600}})
    (cluster,) = yaml.safe_load(Path(gke["KINETIC_KUBECONFIG"]).read_text())["clusters"]
    authority = cluster["cluster"]["certificate-authority"]
    SERVICE_ACCOUNT_FILES.mkdir(parents=True)
    try:
        (SERVICE_ACCOUNT_FILES / "token").write_text(token["status"]["token"])
        shutil.copy(authority, SERVICE_ACCOUNT_FILES / "ca.crt")
        server = urllib.parse.urlsplit(api.server)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(server.hostname))
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        for name_of_other_way in ("KINETIC_KUBECONFIG", "KUBECONFIG"):
            monkeypatch.delenv(name_of_other_way, raising=False)
        default_client().close()
        yield name
    finally:
        shutil.rmtree(SERVICE_ACCOUNT_FILES.parent)
        default_client().close()
        api.call("DELETE", f"{accounts}/{name}")


@pytest.mark.promise("gke: In-cluster service account")
def test_in_a_pod_its_service_account_is_enough(pod: str, api: ClusterApi, namespace: str) -> None:
    seven = kinetic_core.run(accelerator="cpu")(lambda: 7)
    with pytest.raises(ConfigurationError, match=rf"system:serviceaccount:{namespace}:{pod}"):
        seven.run_async()
    account = {**SERVICE_ACCOUNT, "namespace": namespace, "name": pod}
    with documented_role(api, namespace, account):
        handle = seven.run_async()
        assert handle.result(stream_logs=False) == 7
        assert kinetic_core.attach(handle.job_id).status() is kinetic_core.JobStatus.SUCCEEDED


def tokens_given() -> int:
    """How many Google's stand-in has given to anybody."""
    base = GOOGLE["CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER"].rstrip("/")
    with urllib.request.urlopen(f"{base}/emulator/stats") as answer:
        return int(json.load(answer)["requests"].get("POST token", 0))


@pytest.mark.promise("gke: Token refreshed before expiry, and once on 401")
@pytest.mark.parametrize("seconds", [228, 5])
def test_a_token_is_renewed_before_it_expires(google: Any, seconds: int) -> None:
    """Google's library holds one for expired 225 seconds early: it is used for three, or not even once."""
    google("token", expires_in=seconds)
    before = tokens_given()
    handle = sleep.run_async(5)
    assert handle.result(timeout=180, stream_logs=False) == "awake"
    assert tokens_given() - before >= 2


@pytest.mark.promise("gke: Token refreshed before expiry, and once on 401")
def test_a_token_the_server_refuses_is_renewed_once(google: Any, namespace: str) -> None:
    api = ClusterApi(CLUSTER, default_connections())
    connection(CLUSTER, default_connections())
    credentials(default_connections(), None)._credentials.token = "no longer good"
    assert api.get("Job", namespace, "nothing") is None


@pytest.mark.promise("gke: Token refreshed before expiry, and once on 401")
def test_a_server_that_refuses_every_token_is_not_asked_for_ever(google: Any, namespace: str) -> None:
    api = ClusterApi(CLUSTER, default_connections())
    connection(CLUSTER, default_connections())
    google("token", access_token="of nobody")
    credentials(default_connections(), None)._credentials.token = "no longer good"
    before = tokens_given()
    with pytest.raises(ClusterError, match="Unauthorized") as caught:
        api.get("Job", namespace, "nothing")
    assert (caught.value.status, tokens_given() - before) == (401, 1)


@pytest.mark.promise("gke: Token expiry while watching")
def test_a_watch_with_a_refused_token_goes_on_with_another(google: Any, namespace: str) -> None:
    api = ClusterApi(CLUSTER, default_connections())
    version = api.list("Job", namespace)["metadata"]["resourceVersion"]
    credentials(default_connections(), None)._credentials.token = "no longer good"
    handle = sleep.run_async(2)
    credentials(default_connections(), None)._credentials.token = "no longer good"
    seen = api.watch("Job", namespace, {}, version, 20)
    assert any(item["metadata"]["name"] == handle.k8s_name for _, item in seen)


@pytest.mark.promise("gke: Token expiry while watching")
def test_jobs_are_watched_on_when_the_token_has_become_a_bad_one(
    google: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_cache, "WATCH_SECONDS", 1.0)
    handle = sleep.run_async(6)
    running(handle)
    before = tokens_given()
    credentials(default_connections(), None)._credentials.token = "no longer good"
    assert handle.result(timeout=180, stream_logs=False) == "awake"
    assert tokens_given() > before


def test_a_cluster_that_does_not_exist_is_named(google: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_CLUSTER", "elsewhere")
    with pytest.raises(ConfigurationError, match=r"does not give .*clusters/elsewhere.*KINETIC_CLUSTER"):
        kinetic_core.run(accelerator="cpu")(lambda: 7)()


def test_without_credentials_it_says_how_to_get_some(google: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")
    with pytest.raises(ConfigurationError, match="gcloud auth application-default login"):
        connection(CLUSTER, default_connections())


@pytest.mark.promise("gke: Two clusters at once from two threads")
def test_two_clusters_at_once(google: Any, api: ClusterApi, namespace: str) -> None:
    """The same API server by two ways, from two threads: neither disturbs the other."""
    found: list[Any] = []

    def ask(target: ClusterApi) -> None:
        found.extend(target.list("Pod", namespace)["kind"] for _ in range(20))

    threads = [
        threading.Thread(target=ask, args=(each,))
        for each in (api, ClusterApi(CLUSTER, default_connections()))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["PodList"] * 40


def test_a_server_that_does_not_answer_is_named(gke: dict[str, str], tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(Path(gke["KINETIC_KUBECONFIG"]).read_text().replace(":16443", ":16444"))
    with pytest.raises(ClusterUnreachable, match=r"https://127.0.0.1:16444 does not answer"):
        ClusterApi(Target(str(kubeconfig)), patience=0.0).list("Pod", "default")


@pytest.mark.promise("gke: Explicit kubeconfig and context")
def test_a_context_that_does_not_exist_is_named(gke: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        ClusterApi(Target(gke["KINETIC_KUBECONFIG"], "nowhere")).list("Pod", "default")
