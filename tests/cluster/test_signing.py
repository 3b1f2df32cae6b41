"""The Secret of a namespace from which keys are made, on a cluster that refuses and that others use, too."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kinetic_core.backends.kubernetes.backend import GkeBackend
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.signing import read_secret
from kinetic_core.connections import default_connections
from kinetic_core.errors import ClusterError
from kinetic_core.jobs.signing import new_key
from kinetic_core.testing.fake_cluster import FakeCluster

pytestmark = pytest.mark.attack


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[FakeCluster, Target]]:
    with FakeCluster(namespaces=("default", "other")) as fake:
        yield fake, Target(str(fake.write_kubeconfig(tmp_path / "kubeconfig")))


def test_of_two_who_make_it_one_does(cluster: tuple[FakeCluster, Target]) -> None:
    connections, (_, target) = default_connections(), cluster
    assert read_secret(target, connections, "default") is None
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: read_secret(target, connections, "default", make=True), range(8)))
    (secret,) = found
    stored = ClusterApi(target).get("Secret", "default", "kinetic-signing")
    assert stored is not None
    assert base64.b64decode(stored["data"]["key"]) == secret
    assert secret is not None
    assert len(secret) == 32


def test_it_is_another_in_another_namespace(cluster: tuple[FakeCluster, Target]) -> None:
    connections, (_, target) = default_connections(), cluster
    first, second = (
        read_secret(target, connections, namespace, make=True) for namespace in ("default", "other")
    )
    assert first
    assert second
    assert first != second


def test_a_secret_without_a_key_signs_nothing(cluster: tuple[FakeCluster, Target]) -> None:
    connections, (_, target) = default_connections(), cluster
    body = {"metadata": {"name": "kinetic-signing", "namespace": "default"}, "data": {"key": "?"}}
    ClusterApi(target).create("Secret", "default", {"apiVersion": "v1", "kind": "Secret", **body})
    assert read_secret(target, connections, "default", make=True) is None


@pytest.mark.parametrize("line", ["GET .*/secrets/kinetic-signing", "POST .*/secrets"])
def test_without_the_right_keys_are_random(cluster: tuple[FakeCluster, Target], line: str) -> None:
    """And a submission is not refused for it."""
    connections, (fake, target) = default_connections(), cluster
    fake.faults.answer(line, 403, times=None)
    assert read_secret(target, connections, "default", make=True) is None
    backend = GkeBackend(target, "bucket", connections)
    keys = {new_key(backend, "default", "job-1", "d")[1] for _ in range(3)}
    assert {len(bytes.fromhex(key)) for key in keys} == {32}
    assert len(keys) == 3


def test_a_server_that_cannot_say_is_no_missing_secret(cluster: tuple[FakeCluster, Target]) -> None:
    connections, (fake, target) = default_connections(), cluster
    fake.faults.answer("GET .*/secrets/kinetic-signing", 400, times=None)
    with pytest.raises(ClusterError):
        read_secret(target, connections, "default")
