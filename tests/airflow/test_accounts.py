"""What Airflow's own hooks make of connections, as accounts. Needs the providers, not a running Airflow."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import pytest

from kinetic_core.errors import InvalidRequest

pytestmark = pytest.mark.airflow

CANARY = "canaryinacoalmine"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
    monkeypatch.setenv("KINETIC_PROFILES_FILE", str(tmp_path / "none.json"))
    for name in ("KINETIC_BACKEND", "KINETIC_PROJECT", "KINETIC_NAMESPACE", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a connection that this process sees."""

    def make(conn_id: str, conn_type: str, **extra: Any) -> str:
        text = json.dumps({"conn_type": conn_type, "extra": extra})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", text)
        return conn_id

    return make


@pytest.fixture(scope="module")
def key() -> dict[str, str]:
    """A service account's key file, of nobody."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    pem = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "project_id": "their-project",
        "private_key_id": "1",
        "private_key": pem.decode(),
        "client_email": "robot@their-project.iam.gserviceaccount.com",
        "token_uri": "https://oauth2.googleapis.com/token",
    }


def kubeconfig(token: str) -> dict[str, Any]:
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [
            {"name": "c", "cluster": {"server": "https://10.9.8.7", "insecure-skip-tls-verify": True}}
        ],
        "users": [{"name": "u", "user": {"token": token}}],
    }


def settings(conn_id: str) -> Any:
    from airflow_provider.hooks.kinetic import KineticHook

    return KineticHook(conn_id).get_conn()


@pytest.mark.promise("airflow: Builds on the official providers' Google Cloud and Kubernetes connections")
def test_a_google_connection_gives_credentials_and_project(connect: Any, key: dict[str, str]) -> None:
    connect("google", "google_cloud_platform", keyfile_dict=json.dumps(key))
    found = settings(connect("k", "kinetic", google_cloud_conn_id="google"))
    assert found.google_account.held.service_account_email == key["client_email"]
    assert (found.project, found.kubernetes_account) == ("their-project", None)
    assert settings(connect("k", "kinetic", google_cloud_conn_id="google", project="p")).project == "p"


@pytest.mark.promise("airflow: … their impersonation")
def test_impersonation_is_the_connections(connect: Any, key: dict[str, str]) -> None:
    robot = "other@their-project.iam.gserviceaccount.com"
    connect("google", "google_cloud_platform", keyfile_dict=json.dumps(key), impersonation_chain=robot)
    held = settings(connect("k", "kinetic", google_cloud_conn_id="google")).google_account.held
    assert held.service_account_email == robot
    asked: dict[str, str] = {}

    def google(url: str, **request: Any) -> Any:
        """Google's services: the one that knows the key, the one that gives tokens of others, one more."""
        sent = {name.lower(): value for name, value in request["headers"].items()}
        asked[url.rpartition("/")[2]] = sent.get("authorization", "")
        if url.endswith(f"/serviceAccounts/{robot}:generateAccessToken"):
            answer = {"accessToken": "of-the-robot", "expireTime": "2099-01-01T00:00:00Z"}
        else:
            answer = {"access_token": "of-the-key", "expires_in": 3599}
        return SimpleNamespace(status=200, headers={}, data=json.dumps(answer).encode())

    headers: dict[str, str] = {}
    held.before_request(google, "GET", "https://storage.googleapis.com/", headers)
    assert headers["authorization"] == "Bearer of-the-robot"
    assert asked[f"{robot}:generateAccessToken"] == "Bearer of-the-key"


def account(conn_id: str | None, **google: Any) -> Any:
    """The account with which Google's services are used."""
    from airflow_provider.hooks.kinetic import KineticHook

    return KineticHook(conn_id, **google).get_conn().google_account


@pytest.mark.promise("scale: `gcp_conn_id` and impersonation per task")
def test_a_task_may_name_the_google_connection_and_whom_to_be(connect: Any, key: dict[str, str]) -> None:
    robot = "other@their-project.iam.gserviceaccount.com"
    for conn_id, name in (("google", "a"), ("its_google", "b"), ("google_cloud_default", "c")):
        email = f"{name}@their-project.iam.gserviceaccount.com"
        connect(conn_id, "google_cloud_platform", keyfile_dict=json.dumps({**key, "client_email": email}))
    connect("k", "kinetic", google_cloud_conn_id="google", namespace="theirs")

    assert account("k", gcp_conn_id="its_google").held.service_account_email.startswith("b@")
    assert account(None, gcp_conn_id="its_google").held.service_account_email.startswith("b@")
    alone = account(None, impersonation_chain=robot)
    assert impersonated(alone.held) == (robot, "c@their-project.iam.gserviceaccount.com", [])
    of_connection = account("k", impersonation_chain=robot)
    assert impersonated(of_connection.held) == (robot, "a@their-project.iam.gserviceaccount.com", [])
    chained = account("k", gcp_conn_id="its_google", impersonation_chain=["d@lab", robot])
    delegates = ["d@lab"]
    assert impersonated(chained.held) == (robot, "b@their-project.iam.gserviceaccount.com", delegates)
    found = [alone, of_connection, chained, account("k"), account("k", gcp_conn_id="its_google")]
    assert len({(each.name, each.version) for each in found}) == len(found), "they share no connections"


def impersonated(held: Any) -> tuple[str, str, list[str]]:
    """Who Google hears is impersonated, by whom, and through which other accounts."""
    told: dict[str, Any] = {}

    def google(url: str, **request: Any) -> Any:
        if url.endswith(":generateAccessToken"):
            told["robot"] = url.rpartition("/")[2].partition(":")[0]
            told["delegates"] = json.loads(request["body"])["delegates"] or []
            answer = {"accessToken": "of-the-robot", "expireTime": "2099-01-01T00:00:00Z"}
        else:
            claims = parse_qs(request["body"].decode())["assertion"][0].split(".")[1]
            told["source"] = json.loads(base64.urlsafe_b64decode(claims + "=="))["iss"]
            answer = {"access_token": "of-the-key", "expires_in": 3599}
        return SimpleNamespace(status=200, headers={}, data=json.dumps(answer).encode())

    held.before_request(google, "GET", "https://storage.googleapis.com/", {})
    return told["robot"], told["source"], told["delegates"]


def test_what_a_task_names_and_is_not_there_is_told(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from kinetic_core.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match="there is no connection 'google_cloud_default'"):
        account(None, impersonation_chain="robot@lab")
    with pytest.raises(ConfigurationError, match="there is no connection 'nowhere'"):
        account(None, gcp_conn_id="nowhere")
    monkeypatch.setitem(sys.modules, "airflow.providers.google.common.hooks.base_google", None)
    with pytest.raises(
        ConfigurationError, match="'nowhere' is used as a Google Cloud connection, which needs"
    ):
        account(None, gcp_conn_id="nowhere")


def waiting(tmp_path: Path, **google: Any) -> Any:
    """The trigger of a task with these arguments, as its triggerer makes it, and all that Airflow keeps."""
    from airflow.providers.common.compat.sdk import TaskDeferred

    from airflow_provider.sensors.kinetic import KineticJobSensor
    from kinetic_core import run

    def wait(path: str) -> None:
        while not Path(path).exists():
            time.sleep(0.02)

    job = run(backend="local")(wait).run_async(str(tmp_path / "go"))
    task = KineticJobSensor(task_id="wait", job_id=job.job_id, **google)
    task.render_template_fields({"who": "robot@lab"})
    with pytest.raises(TaskDeferred) as raised:
        task.execute({})
    _, arguments = raised.value.trigger.serialize()
    kept = json.dumps(arguments)
    return type(raised.value.trigger)(**json.loads(kept)), kept


@pytest.mark.promise("scale: `gcp_conn_id` and impersonation per task")
@pytest.mark.promise("airflow: Connections' secrets in no pod, log, XCom or metadata database")
def test_a_trigger_gets_names_and_has_the_same_credentials(
    connect: Any, key: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "kinetic"))
    connect("google", "google_cloud_platform", keyfile_dict=json.dumps(key))
    trigger, kept = waiting(tmp_path, gcp_conn_id="google", impersonation_chain="{{ who }}")
    (tmp_path / "go").touch()
    arguments = json.loads(kept)
    assert arguments["gcp_conn_id"] == "google"
    assert arguments["impersonation_chain"] == ["robot@lab"]
    assert key["private_key"].splitlines()[5] not in kept
    held = asyncio.run(trigger._client()).settings.google_account
    assert held == account(None, gcp_conn_id="google", impersonation_chain="robot@lab")
    assert held.held.service_account_email == "robot@lab"


@pytest.mark.promise("scale: `gcp_conn_id` and impersonation per task")
def test_operators_pass_the_names_on(connect: Any, key: dict[str, str]) -> None:
    from airflow_provider.operators.batch import KineticBatchOperator
    from airflow_provider.operators.kinetic import KineticOperator

    connect("google", "google_cloud_platform", keyfile_dict=json.dumps(key))
    named = {"gcp_conn_id": "google", "impersonation_chain": ["d@lab", "{{ who }}"]}
    for kind in (KineticOperator, KineticBatchOperator):
        task = kind(task_id=kind.__name__, python_callable=lambda number: number, **named)
        task.render_template_fields({"who": "robot@lab"})
        held = task._client().settings.google_account
        assert held == account(None, gcp_conn_id="google", impersonation_chain=["d@lab", "robot@lab"])
        with pytest.raises(InvalidRequest, match="impersonation_chain=5 must be the email"):
            kind(task_id="wrong", python_callable=lambda number: number, impersonation_chain=5)


@pytest.mark.promise("airflow: Builds on the official providers' Google Cloud and Kubernetes connections")
def test_a_kubernetes_connection_is_the_cluster(connect: Any) -> None:
    from kubernetes.client import Configuration

    before = Configuration.get_default_copy().host
    connect("kube", "kubernetes", kube_config=json.dumps(kubeconfig("t")), namespace="theirs")
    found = settings(connect("k", "kinetic", kubernetes_conn_id="kube"))
    assert found.kubernetes_account.held.host == "https://10.9.8.7"
    assert list(found.kubernetes_account.held.api_key.values()) == ["Bearer t"]
    assert found.namespace == "theirs"
    assert settings(connect("k", "kinetic", kubernetes_conn_id="kube", namespace="mine")).namespace == "mine"
    assert Configuration.get_default_copy().host == before  # other threads' clients are not ours to change


@pytest.fixture
def in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token and the environment that the kubelet gives a pod."""
    from kubernetes.config import incluster_config

    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    for name, content in (("TOKEN", "the-pods"), ("CERT", "the cluster's")):
        (tmp_path / name).write_text(content)
        monkeypatch.setattr(incluster_config, f"SERVICE_{name}_FILENAME", str(tmp_path / name))


@pytest.mark.promise("airflow: … and in-cluster mode")
@pytest.mark.usefixtures("in_a_pod")
@pytest.mark.parametrize(
    "extra",
    [{"in_cluster": True}, {"extra__kubernetes__in_cluster": True}, {}],
    ids=["new", "old", "default"],
)
def test_a_connection_in_the_cluster_is_the_pods_own_account(
    connect: Any, tmp_path: Path, extra: dict[str, Any]
) -> None:
    from kubernetes.client import Configuration

    before = Configuration.get_default_copy().host
    connect("kube", "kubernetes", namespace="theirs", **extra)
    found = settings(connect("k", "kinetic", kubernetes_conn_id="kube"))
    held = found.kubernetes_account.held
    assert (held.host, held.ssl_ca_cert) == ("https://10.0.0.1:443", str(tmp_path / "CERT"))
    assert held.get_api_key_with_prefix("BearerToken") == "bearer the-pods"
    assert held.refresh_api_key_hook is not None  # the kubelet renews the token
    assert found.namespace == "theirs"
    assert Configuration.get_default_copy().host == before


def test_a_connection_in_the_cluster_is_of_no_use_elsewhere(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kinetic_core.errors import ConfigurationError

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    connect("kube", "kubernetes", in_cluster=True)
    connect("k", "kinetic", kubernetes_conn_id="kube")
    with pytest.raises(ConfigurationError, match="the connection 'kube' cannot be used"):
        settings("k")


@pytest.mark.promise("airflow: Profiles")
def test_a_connection_may_begin_with_a_profile(
    connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = {"project": "p", "zone": "z", "cluster": "lab", "namespace": "of-the-profile"}
    (tmp_path / "profiles.json").write_text(json.dumps({"profiles": {"lab": lab}}))
    monkeypatch.setenv("KINETIC_PROFILES_FILE", str(tmp_path / "profiles.json"))
    found = settings(connect("k", "kinetic", profile="lab", namespace="of-the-connection"))
    assert (found.cluster, found.zone, found.namespace) == ("lab", "z", "of-the-connection")


def test_accounts_are_equal_as_long_as_their_connection_is(connect: Any) -> None:
    connect("kube", "kubernetes", kube_config=json.dumps(kubeconfig("one")))
    connect("k", "kinetic", kubernetes_conn_id="kube")
    first, again = settings("k"), settings("k")
    assert first == again
    connect("kube", "kubernetes", kube_config=json.dumps(kubeconfig("two")))
    assert settings("k").kubernetes_account != first.kubernetes_account


@pytest.mark.promise("airflow: Connections' secrets in no pod, log, XCom or metadata database")
@pytest.mark.parametrize(
    ("conn_type", "field", "extra"),
    [
        ("kubernetes", "kubernetes_conn_id", {"kube_config": f"users: [{{token: {CANARY}"}),
        ("kubernetes", "kubernetes_conn_id", {"kube_config": json.dumps({"users": CANARY})}),
        ("google_cloud_platform", "google_cloud_conn_id", {"keyfile_dict": f'{{"private_key": "{CANARY}'}),
        (
            "google_cloud_platform",
            "google_cloud_conn_id",
            {"keyfile_dict": json.dumps({"private_key": CANARY})},
        ),
    ],
)
def test_a_broken_connection_is_named_and_its_secrets_are_not(
    connect: Any, caplog: pytest.LogCaptureFixture, conn_type: str, field: str, extra: dict[str, str]
) -> None:
    from kinetic_core.errors import ConfigurationError

    connect("broken", conn_type, **extra)
    connect("k", "kinetic", **{field: "broken"})
    with pytest.raises(ConfigurationError, match="the connection 'broken' cannot be used") as caught:
        settings("k")
    assert CANARY not in str(caught.value)
    assert CANARY not in caplog.text


def test_a_provider_that_is_not_installed_is_named(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from kinetic_core.errors import ConfigurationError

    monkeypatch.setitem(sys.modules, "airflow.providers.google.common.hooks.base_google", None)
    connect("k", "kinetic", google_cloud_conn_id="google")
    with pytest.raises(ConfigurationError, match="needs apache-airflow-providers-google: install it"):
        settings("k")


def test_a_trigger_waits_for_an_unreadable_connection(connect: Any) -> None:
    from airflow_provider.triggers.kinetic import KineticJobTrigger

    class Impatient(KineticJobTrigger):
        outage_interval = 0.05

    async def namespace() -> str:
        client = await Impatient({}, [], 0.0, conn_id="late")._client()
        return client.settings.namespace

    timer = threading.Timer(0.3, lambda: connect("late", "kinetic", namespace="there"))
    timer.start()
    assert asyncio.run(asyncio.wait_for(namespace(), 20)) == "there"
    timer.join()


def test_the_page_reads_what_connections_say(connect: Any, key: dict[str, str]) -> None:
    from airflow_provider.access import ENVIRONMENT, Access
    from airflow_provider.ui.places import settings_of

    connect("theirs", "kinetic", backend="gke", bucket="their-bucket")
    (theirs,), (ours,) = settings_of(Access("theirs")), settings_of(ENVIRONMENT)
    assert (theirs.bucket, ours.bucket) == ("their-bucket", "")
    connect("google", "google_cloud_platform", keyfile_dict=json.dumps(key))
    (named,) = settings_of(Access("theirs", "google"))
    assert named.bucket == "their-bucket"
    assert named.google_account is not None
    assert named.google_account.held.service_account_email == key["client_email"]


def test_the_page_hides_the_words_of_a_secrets_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow_provider.access import Access
    from airflow_provider.hooks.kinetic import KineticHook
    from airflow_provider.ui.places import settings_of
    from kinetic_core.errors import ConfigurationError

    def broken(_: Any) -> Any:
        raise ValueError(CANARY)

    monkeypatch.setattr(KineticHook, "get_conn", broken)
    with pytest.raises(ConfigurationError, match="'theirs' cannot be read: ValueError") as caught:
        settings_of(Access("theirs"))
    assert CANARY not in str(caught.value)
