"""Credentials that a process was given: who uses them, and that they stay where they are."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import Credentials
from google.auth.exceptions import RefreshError

from kinetic_core import google_cloud
from kinetic_core.backends.base import cluster_target, open_backend
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target, blank_configuration, connection, gke_cluster
from kinetic_core.connections import Connections
from kinetic_core.errors import ConfigurationError
from kinetic_core.settings import Account, Settings, read_settings
from kinetic_core.store.gcs import GcsObjectStore
from kinetic_core.testing import FakeCluster
from tests.serving import Answering, serving

CANARY = "canary-in-a-coal-mine"


class Token(Credentials):
    """Somebody's token, which never expires."""

    def __init__(self) -> None:
        super().__init__()
        self.token = CANARY

    def refresh(self, request: Any) -> None:
        raise AssertionError("it never expires")


@pytest.fixture
def account() -> Account:
    return Account("connection theirs", "1", Token())


@pytest.fixture
def google() -> Iterator[tuple[str, list[str]]]:
    """A service of Google's that knows nothing, and the `Authorization` of each request."""
    seen: list[str] = []

    class Nothing(Answering):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            self.answer(404)

    with serving(Nothing) as place:
        yield f"http://{place}", seen


def test_what_an_account_holds_is_not_shown_and_cannot_travel(account: Account) -> None:
    settings = Settings(google_account=account)
    assert CANARY not in repr(settings)
    assert "connection theirs" in repr(settings)
    with pytest.raises(TypeError, match="connection theirs stay in this process"):
        pickle.dumps(settings)


def test_accounts_are_the_same_by_name_and_version(account: Account) -> None:
    assert account == Account("connection theirs", "1", None)
    assert hash(account) == hash(Account("connection theirs", "1", None))
    assert account != replace(account, version="2")


def test_google_is_asked_with_the_accounts_token(account: Account, google: Any) -> None:
    url, seen = google
    with pytest.raises(ConfigurationError, match="does not give"):
        gke_cluster(
            Target(project="p", zone="z", cluster="c", gke_api=url, account=account),
            Connections(Settings()),
        )
    assert seen == [f"Bearer {CANARY}"]


def test_a_gke_cluster_is_asked_with_the_accounts_token(account: Account) -> None:
    class Gke(Answering):
        def do_GET(self) -> None:
            self.answer(200, {"endpoint": "10.0.0.1", "masterAuth": {"clusterCaCertificate": ""}})

    with serving(Gke) as place:
        target = Target(project="p", zone="z", cluster="c", gke_api=f"http://{place}", account=account)
        client = connection(target, Connections(Settings()))
    assert client.headers() == {"authorization": f"Bearer {CANARY}"}


def test_a_connection_is_kept_when_no_token_can_be_had(tmp_path: Path) -> None:
    """A refusal that nobody has read would keep its connection open until it is collected as garbage."""
    callers: list[int] = []

    class Refusing(Answering):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            callers.append(self.client_address[1])
            self.answer(401, {"message": "Unauthorized"})

    class Refused(Token):
        def refresh(self, request: Any) -> None:
            raise RefreshError("revoked")

    with serving(Refusing) as place:
        plugin = {"exec": {"command": "gke-gcloud-auth-plugin"}}
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(
            json.dumps(
                {
                    "clusters": [{"name": "c", "cluster": {"server": f"http://{place}"}}],
                    "users": [{"name": "u", "user": plugin}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "c",
                }
            )
        )
        connections = Connections(Settings())
        revoked = google_cloud.Credentials(Account("connection theirs", "1", Refused()))
        connections.get((google_cloud.Credentials, None), lambda: revoked)
        api = ClusterApi(Target(str(kubeconfig)), connections)
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="revoked"):
                api.get("Job", "default", "nothing")
        connections.close()
    assert len(set(callers)) == 1


def test_a_bucket_is_asked_with_the_accounts_token(
    account: Account, google: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, seen = google
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    settings = Settings(google_account=account, api_endpoint_overrides={"storage": f"{url}/storage/v1/"})
    with pytest.raises(ConfigurationError, match="the bucket 'bucket' does not exist"):
        GcsObjectStore.at("bucket", Connections(settings)).find("name")
    assert seen == [f"Bearer {CANARY}"] * 2, "for the object, and for the bucket"


def test_a_cluster_is_connected_to_as_its_account_says() -> None:
    with FakeCluster() as cluster:
        held = blank_configuration()
        held.host = cluster.url
        api = ClusterApi(Target(account=Account("connection kube", cluster.url, held)), patience=0.0)
        assert api.list("Job", "default")["items"] == []
        assert api.server == cluster.url


@pytest.mark.promise("airflow: Everything overridable per task, by templates too")
def test_what_is_stated_outranks_the_environment_and_its_profile(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles.json"
    place = {
        "project": "p",
        "cluster": "c",
        "zone": "z",
        "bucket": "from-profile",
        "namespace": "from-profile",
    }
    profiles.write_text(json.dumps({"profiles": {"team": place, "other": {**place, "zone": "no"}}}))
    env = {
        "KINETIC_PROFILES_FILE": str(profiles),
        "KINETIC_PROFILE": "other",
        "KINETIC_BUCKET": "from-env",
        "KINETIC_NAMESPACE": "from-env",
    }
    stated = {"profile": "team", "namespace": "stated", "backend": "gke"}
    settings = read_settings(env, stated, by="connection 'c'")
    assert (settings.zone, settings.bucket, settings.namespace) == ("z", "from-env", "stated")
    assert settings.origin("namespace") == "connection 'c'"
    assert settings.origin("zone") == "profile team"
    with pytest.raises(ConfigurationError, match="backend='nowhere' of connection 'c'"):
        read_settings(env, {"backend": "nowhere"}, by="connection 'c'")


def test_a_stated_cluster_outranks_the_kubeconfig_variable() -> None:
    env = {"KINETIC_KUBECONFIG": "/k", "KINETIC_KUBE_CONTEXT": "c"}
    assert read_settings(env, {"namespace": "n"}, by="c").kubeconfig == "/k"
    settings = read_settings(env, {"cluster": "theirs"}, by="c")
    assert (settings.kubeconfig, settings.kube_context, settings.cluster) == ("", "", "theirs")


def test_a_kubernetes_account_is_the_cluster_by_default(account: Account) -> None:
    settings = Settings(kubeconfig="/k", project="p", kubernetes_account=account)
    assert cluster_target(settings) == Target(account=account)
    assert str(cluster_target(settings)) == "the cluster of connection theirs"
    named = cluster_target(settings.with_arguments(cluster="c"))
    assert (named.project, named.cluster, named.account) == ("p", "c", None)


@pytest.mark.promise("airflow: One hub per (cluster, namespace) per triggerer")
def test_jobs_of_two_accounts_are_not_watched_together(account: Account) -> None:
    settings = Settings(bucket="b", kubernetes_account=account)
    keys = {
        open_backend("gke", Connections(each)).key
        for each in (
            settings,
            replace(settings, kubernetes_account=replace(account, version="2")),
            replace(settings, google_account=account),
            replace(settings, kubernetes_account=None),
        )
    }
    assert len(keys) == 4
    assert open_backend("gke", Connections(replace(settings))).key in keys
