"""The two clusters that the tests of the contract are for, and a server of one WebSocket."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.testing.fake_cluster import FakeCluster
from kinetic_core.testing.fault_proxy import write_kubeconfig
from tests.conftest import wait_for
from tests.kubernetes.contract import (
    IMAGE,
    KUBECONFIG,
    Case,
    World,
)
from tests.kubernetes.websockets import Speak


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[[Speak], Target]]:
    """`server(speak)`: a cluster whose API server serves one connection with `speak`."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(speak: Speak) -> None:
        connection, _ = listener.accept()
        with connection:
            speak(connection)

    def start(speak: Speak) -> Target:
        threads.append(threading.Thread(target=serve, args=(speak,), daemon=True))
        threads[-1].start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        return Target(str(write_kubeconfig(tmp_path / "kubeconfig", address)))

    yield start
    for thread in threads:
        thread.join(5)
    listener.close()


@pytest.fixture(scope="session")
def real_namespace() -> Iterator[tuple[ClusterApi, str]]:
    if not KUBECONFIG or not IMAGE:
        pytest.skip(
            "no KUBECONFIG and KINETIC_TEST_IMAGE: start ../shared/cluster/testcluster and eval its env"
        )
    api, name = ClusterApi(Target(KUBECONFIG)), f"kinetic-contract-{secrets.token_hex(4)}"
    api.create("Namespace", "", {"metadata": {"name": name}})
    wait_for(lambda: api.get("ServiceAccount", name, "default"))
    yield api, name
    api.delete("Namespace", "", name)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.cluster)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Case], World]]:
    """Makes a world in which all pods do the same."""
    opened: list[FakeCluster] = []

    def make(case: Case) -> World:
        if request.param == "real":
            api, namespace = request.getfixturevalue("real_namespace")
            return World(api, namespace, case, is_fake=False)
        cluster = FakeCluster(case.behave)
        opened.append(cluster)
        kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
        return World(ClusterApi(Target(str(kubeconfig))), "default", case, is_fake=True)

    yield make
    for each in opened:
        each.close()
