"""What a user may not do, or has not got: named, with what to do about it."""

from __future__ import annotations

import gc
import json
import os
import urllib.request
from typing import Any

import pytest

import kinetic_core
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.errors import (
    ConfigurationError,
    JobMisconfigured,
    StoreRefused,
)
from tests.cluster.jobs import greet, pods, running, sleep
from tests.cluster.roles import USER, documented_role
from tests.conftest import Kinetic, wait_for

pytestmark = pytest.mark.usefixtures("gke")


@kinetic_core.run(accelerator="tpu-v5p-8")
def greet_from_two(name: str) -> str:
    return f"hello {name}"


@pytest.mark.alone  # its faults are everybody's
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of Google's client
@pytest.mark.parametrize(
    "rule",
    [
        {"match": "POST .*upload", "status": 503, "times": 2},
        {"match": "POST .*upload", "drop": "after", "times": 3},
        {"match": "GET .*alt=media", "status": 503, "times": 3},
        {"match": "GET .*alt=media", "drop": "mid-body", "after_bytes": 10, "times": 2},
        {"match": "POST .*upload", "status": 429, "times": 3},
    ],
    ids=lambda rule: f"{rule['match']}-{rule.get('status') or rule['drop']}",
)
def test_a_store_that_stumbles_is_not_noticed(faults: Any, rule: dict[str, Any]) -> None:
    faults(**rule)
    assert greet.run_async("anyway").result(stream_logs=False) == "hello anyway"
    gc.collect()  # else what the client leaked is found in another test


@pytest.mark.promise("gke: Bucket missing or read-only")
def test_a_bucket_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_BUCKET", "no-such-bucket")
    with pytest.raises(ConfigurationError, match=r"'no-such-bucket' does not exist.*KINETIC_BUCKET"):
        greet("nobody")


@pytest.mark.promise("gke: Bucket missing or read-only")
@pytest.mark.parametrize("mode", ["forbidden", "read-only"])
def test_a_bucket_one_may_not_write_to_is_named(
    emulator: str, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    name = f"{mode}-{os.getpid()}"
    post(f"{emulator}/storage/v1/b?project=test-project", {"name": name})
    post(f"{emulator}/emulator/bucket", {"name": name, "mode": mode})
    monkeypatch.setenv("KINETIC_BUCKET", name)
    with pytest.raises(StoreRefused, match=rf"in gs://{name}: not permitted .*roles/storage.objectUser"):
        greet("nobody")


@pytest.mark.promise("gke: Bucket missing or read-only")
@pytest.mark.parametrize("mode", ["forbidden", "read-only"])
def test_a_bucket_one_may_no_longer_write_to_is_named(
    api: ClusterApi, emulator: str, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """It is closed while user code runs: the value cannot be stored, and that is not tried for ever."""
    name = f"closing-{mode}-{os.getpid()}"
    post(f"{emulator}/storage/v1/b?project=test-project", {"name": name})
    monkeypatch.setenv("KINETIC_BUCKET", name)
    handle = kinetic_core.run(accelerator="cpu", cpu=0.1, infrastructure_retries=1)(
        sleep.__wrapped__
    ).run_async(3)
    wait_for(lambda: "sleeping" in (handle.logs() or ""), 60)
    post(f"{emulator}/emulator/bucket", {"name": name, "mode": mode})
    with pytest.raises(StoreRefused, match=rf"in gs://{name}: not permitted"):
        handle.result(timeout=180, stream_logs=False)
    assert len(pods(api, handle)) <= 2
    post(f"{emulator}/emulator/bucket", {"name": name, "mode": "normal"})
    with pytest.raises(JobMisconfigured) as caught:
        handle.result(timeout=180, stream_logs=False)
    assert caught.value.failure is not None
    assert f"gs://{name}" in caught.value.failure.last_lines[-1]
    assert "HTTP 403" in caught.value.failure.last_lines[-1]
    handle.cleanup()


def post(address: str, body: dict[str, str]) -> None:
    urllib.request.urlopen(
        urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    ).close()


@pytest.mark.promise("gke: Quota exceeded; RBAC denial")
def test_a_user_without_permission_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_KUBECONFIG", os.environ["KINETIC_KUBECONFIG"].replace("admin", "developer"))
    with pytest.raises(ConfigurationError, match=r"may not create jobs in namespace .*clusters\.md"):
        greet("nobody")


def test_a_missing_namespace_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_NAMESPACE", "nowhere")
    with pytest.raises(ConfigurationError, match="no namespace 'nowhere'"):
        greet("nobody")


@pytest.mark.promise("gke: `docs/guides/clusters.md`; its role applied and used by tests")
@pytest.mark.promise("provisioning: Namespaces: account, role, Workload Identity binding")
@pytest.mark.alone
def test_the_documented_role_is_enough(
    api: ClusterApi,
    namespace: str,
    gke: dict[str, str],
    kinetic: Kinetic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KINETIC_KUBECONFIG", gke["KINETIC_KUBECONFIG"].replace("admin", "developer"))
    with documented_role(api, namespace, {**USER, "name": "developer"}) as role:
        assert greet("developer") == "hello developer"
        assert greet_from_two("a slice") == "hello a slice"
        handle = sleep.run_async(600)
        running(handle)
        assert handle.logs() is not None
        handle.cancel()
        handle.cleanup()
        assert f"all that jobs need in {namespace}" in kinetic("doctor").out
        (pods,) = (rule for rule in role["rules"] if rule["resources"] == ["pods"])
        pods["verbs"].remove("delete")
        api.patch("Role", namespace, "kinetic-user", {"rules": role["rules"]})
        wait_for(lambda: "so that less is told or done: delete pods" in kinetic("doctor").out)
