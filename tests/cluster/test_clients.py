"""Two clients in one process: two accounts of one cluster, and two clusters."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from kinetic_core import Client, JobHandle
from kinetic_core.backends.base import open_backend
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target, blank_configuration
from kinetic_core.backends.kubernetes.kubeconfig import read_access
from kinetic_core.errors import ClusterError, ClusterUnreachable
from tests.cluster.jobs import greet
from tests.cluster.objects import kubectl
from tests.cluster.roles import SERVICE_ACCOUNT, documented_role

pytestmark = pytest.mark.usefixtures("gke")

AT_ONCE = 3
KUBECONFIG = Path(os.environ.get("KUBECONFIG", "/nowhere/etc/admin.kubeconfig"))
SECOND = KUBECONFIG.parents[1].with_name(f"{KUBECONFIG.parents[1].name}-b") / "etc" / KUBECONFIG.name
"""The second cluster's, if it is up: `testcluster --cluster b up`."""


@pytest.fixture
def tenants(api: ClusterApi, location: str, tmp_path: Path) -> Iterator[list[Client]]:
    """Clients of two namespaces, each with a service account that may do something there only."""
    admin = read_access(str(KUBECONFIG))
    assert admin is not None
    authority = tmp_path / "authority.crt"
    authority.write_text(admin.authority or "")
    with ExitStack() as undo:
        made = []
        for name in (f"kinetic-tenant-{secrets.token_hex(4)}" for _ in range(2)):
            api.create("Namespace", "", {"metadata": {"name": name}})
            undo.callback(api.delete, "Namespace", "", name)
            api.create("ServiceAccount", name, {"metadata": {"name": "tenant"}})
            undo.enter_context(
                documented_role(api, name, {**SERVICE_ACCOUNT, "name": "tenant", "namespace": name})
            )
            held = blank_configuration()
            held.host, held.ssl_ca_cert = admin.host, str(authority)
            held.api_key = {"BearerToken": token_of("tenant", name)}
            held.api_key_prefix = {"BearerToken": "Bearer"}
            client = Client(namespace=name, bucket=f"{location}/{name}", kubernetes_configuration=held)
            made.append(undo.enter_context(client))
        yield made


def token_of(account: str, namespace: str) -> str:
    token: str = kubectl("create", "token", account, "-n", namespace)["status"]["token"]
    return token


@pytest.fixture
def second(namespace: str) -> Iterator[ClusterApi]:
    """The second cluster as its administrator; skips where it is not up."""
    if not SECOND.exists():
        pytest.skip(f"no second cluster: {SECOND} is not there (testcluster --cluster b up)")
    api = ClusterApi(Target(str(SECOND)), patience=0.0)
    try:
        api.create("Namespace", "", {"metadata": {"name": namespace}})
    except ClusterUnreachable:
        pytest.skip("the second cluster does not answer (testcluster --cluster b up)")
    yield api
    api.delete("Namespace", "", namespace)


def run_at_once(clients: Sequence[Client]) -> list[list[JobHandle]]:
    """A few jobs of each client, from a thread for each; all have returned."""
    together = threading.Barrier(len(clients))

    def run(client: Client) -> list[JobHandle]:
        greeting = client.bind(greet)
        together.wait(90)
        handles = [greeting.run_async(str(number)) for number in range(AT_ONCE)]
        values = [handle.result(timeout=180, stream_logs=False, cleanup=False) for handle in handles]
        assert values == [f"hello {number}" for number in range(AT_ONCE)]
        return handles

    with ThreadPoolExecutor(len(clients)) as threads:
        return list(threads.map(run, clients))


@pytest.mark.promise("gke: Two clusters at once from two threads")
def test_two_accounts_of_a_cluster_at_once(api: ClusterApi, tenants: list[Client]) -> None:
    for client, other, handles in zip(tenants, reversed(tenants), run_at_once(tenants), strict=True):
        own, theirs = client.settings.namespace, other.settings.namespace
        assert {job.job_id for job in client.list_jobs()} == {job.job_id for job in handles}
        assert all(api.get("Job", own, handle.k8s_name) for handle in handles)
        assert not any(api.get("Job", theirs, handle.k8s_name) for handle in handles)
        with pytest.raises(ClusterError, match="forbidden"):
            open_backend("gke", client.connections).all(theirs)
        for handle in handles:
            handle.cleanup()


@pytest.mark.slow  # `.ci/nightly` brings a second cluster up
@pytest.mark.promise("gke: Two clusters at once from two threads")
def test_two_clusters_at_once(api: ClusterApi, second: ClusterApi, location: str) -> None:
    buckets = [f"{location}/{name}" for name in ("first", "second")]
    kubeconfigs = [KUBECONFIG, SECOND]
    with ExitStack() as undo:
        clients = [
            undo.enter_context(Client(kubeconfig=kubeconfig, bucket=bucket))
            for kubeconfig, bucket in zip(kubeconfigs, buckets, strict=True)
        ]
        here, there = run_at_once(clients)
        for handles, of, not_of in ((here, api, second), (there, second, api)):
            assert all(of.get("Job", handle.namespace, handle.k8s_name) for handle in handles)
            assert not any(not_of.get("Job", handle.namespace, handle.k8s_name) for handle in handles)
        for client, handles in zip(clients, (here, there), strict=True):
            assert {job.job_id for job in client.list_jobs()} == {job.job_id for job in handles}
            for handle in handles:
                handle.cleanup()
