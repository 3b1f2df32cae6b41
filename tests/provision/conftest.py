"""A new project and a new cluster for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetic_core.client import default_client
from kinetic_core.testing.fake_cluster import FakeCluster
from kinetic_core.testing.faulty_server import Faults
from tests.google_project import FakeProject
from tests.provision.worlds import KINDS, World


@pytest.fixture(scope="session")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeCluster, Path]]:
    with FakeCluster() as cluster:
        yield cluster, cluster.write_kubeconfig(tmp_path_factory.mktemp("cluster") / "kubeconfig")
    default_client().close()


@pytest.fixture
def worlds(_cluster: tuple[FakeCluster, Path]) -> Callable[[], World]:
    """New worlds, of which only the newest has a cluster."""

    def make() -> World:
        cluster, kubeconfig = _cluster
        cluster.faults = Faults()
        for kind in KINDS:
            for item in cluster.objects.list(kind, "")[1]:
                facts = item["metadata"]
                cluster.objects.remove(kind, facts.get("namespace", ""), facts["name"], None)
        return World(FakeProject(), cluster, kubeconfig)

    return make


@pytest.fixture
def world(worlds: Callable[[], World]) -> World:
    return worlds()


@pytest.fixture(autouse=True)
def _no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of these tests are answered in memory, by the services' own names."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
