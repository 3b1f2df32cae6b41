"""As whom the pods of a namespace run, if nobody says so."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

import kinetic_core
from kinetic_core.backends.kubernetes.client import ClusterApi
from tests.cluster.jobs import greet, pods

pytestmark = pytest.mark.usefixtures("gke")


@pytest.fixture
def fresh(api: ClusterApi) -> Iterator[str]:
    """A namespace that this process has not asked about: what it was told once, it keeps."""
    name = f"kinetic-accounts-{secrets.token_hex(4)}"
    api.create("Namespace", "", {"metadata": {"name": name}})
    yield name
    api.delete("Namespace", "", name)


def account_of_a_job(api: ClusterApi, namespace: str) -> str:
    handle = kinetic_core.run(accelerator="cpu", namespace=namespace)(greet.__wrapped__).run_async("whoever")
    assert handle.result(timeout=180, stream_logs=False, cleanup=False) == "hello whoever"
    (pod,) = pods(api, handle)
    handle.cleanup()
    return str(pod["spec"]["serviceAccountName"])


@pytest.mark.promise("gke: Account `kinetic`, else `default`, said once; secrets by reference")
def test_pods_run_as_kinetic_where_the_namespace_has_it(
    api: ClusterApi, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    api.create("ServiceAccount", fresh, {"metadata": {"name": "kinetic"}})
    assert account_of_a_job(api, fresh) == "kinetic"
    assert "no service account" not in caplog.text


@pytest.mark.promise("gke: Account `kinetic`, else `default`, said once; secrets by reference")
def test_else_as_default_which_is_said_once(
    api: ClusterApi, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert [account_of_a_job(api, fresh) for _ in range(2)] == ["default", "default"]
    assert caplog.text.count(f"namespace {fresh} has no service account 'kinetic'") == 1
