"""Nodes and the API server go while tasks are deferred: their jobs, values and lines do not.

For a cluster of one's own: the API server is everybody's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import CLUSTER, Cases
from remote_airflow import give_sign, remote_airflow

from kinetic_core._runner import object_names
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.names import JOB_ID, NODE_SILENT
from kinetic_core.store.gcs import GcsObjectStore
from kinetic_core.testing import FaultProxy
from tests.cluster.machine import NODES, add_to_pair, cluster_tool, give_up, restored, stopped

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.skipif(not CLUSTER, reason="no KUBECONFIG and KINETIC_TEST_IMAGE: see the cluster's README"),
]


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    """Airflow's way to the API server."""
    with FaultProxy.to_cluster(Target(os.environ["KUBECONFIG"])) as server:
        yield server


@pytest.fixture(scope="module")
def losing(proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    """An Airflow of its own, with remote logs."""
    home = tmp_path_factory.mktemp("losing").resolve()
    through = {"KINETIC_KUBECONFIG": str(proxy.write_kubeconfig(home / "kubeconfig"))}
    with remote_airflow(home, "lost_dags", f"airflow-lost-{os.getpid()}", through) as running:
        yield running


@pytest.fixture(scope="module")
def api() -> ClusterApi:
    return ClusterApi(Target(os.environ["KUBECONFIG"]))


def lines(text: str, attempt: int) -> list[int]:
    """The numbers of an attempt's lines."""
    return [int(number) for number in re.findall(rf"line (\d+) of attempt {attempt}\b", text)]


def talks(losing: Cases, dag_id: str, task_id: str, more_than: int = 0, attempt: int = 0) -> str:
    """Wait until a task is deferred and its log has so many lines; the id of its job."""

    def ready(instance: dict[str, Any]) -> Any:
        log = losing.log(dag_id, task_id)
        waits = instance["state"] == "deferred" and "no worker is held" in log
        return re.findall(r"job-\w{16}", log) if waits and len(lines(log, attempt)) > more_than else None

    what = f"to be deferred, with {more_than} lines of attempt {attempt}"
    (job_id,) = set(losing.reach(dag_id, task_id, ready, what))
    return str(job_id)


def store_of(losing: Cases) -> GcsObjectStore:
    return GcsObjectStore.at(losing.airflow.environment["KINETIC_BUCKET"])


def claims(losing: Cases, job_id: str) -> int:
    """How many pods have begun the job."""
    found = store_of(losing).list(f"jobs/{job_id}/attempts/")
    return len([info for info in found if info.name.endswith("/claim.json")])


def kept(losing: Cases, job_id: str) -> list[int]:
    """The lines of the first attempt in the job's own log."""
    store, folder = store_of(losing), object_names.log(job_id, 0, 0).rpartition("/")[0]
    text = b"".join(store.read(info.name) for info in store.list(f"{folder}/"))
    return lines(text.decode(), 0)


@pytest.mark.promise("airflow: Complete after pod, node and triggerer are gone")
def test_the_node_of_a_pod_is_lost(losing: Cases, api: ClusterApi) -> None:
    """What its pod has flushed stays, and the job begins again on another, within the same try."""
    with restored(api) as node:
        add_to_pair(api, node)
        losing.start("node_lost")
        job_id = talks(losing, "node_lost", "talk", more_than=5)
        add_to_pair(api, NODES[0])
        cluster_tool("lose", node)
        before = lines(losing.log("node_lost", "talk"), 0)

        def silent(instance: dict[str, Any]) -> bool:
            return instance["state"] == "deferred" and f"({NODE_SILENT})" in losing.log("node_lost", "talk")

        losing.reach("node_lost", "talk", silent, "to be deferred and say so of its node")
        flushed = lines(losing.log("node_lost", "talk"), 0)
        assert flushed == list(range(len(flushed)))
        assert len(flushed) >= len(before)
        give_up(api, node)
        assert talks(losing, "node_lost", "talk", more_than=5, attempt=1) == job_id
        assert lines(losing.log("node_lost", "talk"), 0) == flushed
        in_store = kept(losing, job_id)
        assert in_store, "else nothing shows that it is not copied twice"
        give_sign("node")
        assert losing.end("node_lost") == "success"
    assert losing.instance("node_lost", "talk")["try_number"] == 1
    attempt, count = losing.value("node_lost", "talk")
    log = losing.log("node_lost", "talk")
    assert (attempt, lines(log, 1)) == (1, list(range(count)))
    assert sorted(lines(log, 0)) == sorted({*flushed, *in_store})
    assert claims(losing, job_id) == 2


@pytest.mark.promise(
    "airflow: The cluster's API server is away while tasks are deferred, and when they are resumed"
)
def test_there_is_no_api_server_for_a_while(losing: Cases, api: ClusterApi) -> None:
    """Of two deferred tasks one's job ends meanwhile. Both wait on, and get the value of their one pod.

    It is away for longer than a request to it is repeated, which is half a minute.
    """
    losing.start("server_away")
    jobs = {task_id: talks(losing, "server_away", task_id) for task_id in ("ends", "goes_on")}
    store, result = store_of(losing), object_names.result(jobs["ends"])
    with stopped("kube-apiserver"):
        assert store.find(result) is None
        said = len(lines(losing.log("server_away", "goes_on"), 0))
        give_sign("ends")
        losing.airflow.until(lambda: store.find(result), 300, "the outcome of one")
        assert talks(losing, "server_away", "goes_on", more_than=said + 40) == jobs["goes_on"]
        assert losing.instance("server_away", "ends")["state"] == "deferred"
    losing.reach("server_away", "ends", lambda one: one["state"] == "success", "to succeed")
    assert losing.instance("server_away", "goes_on")["state"] == "deferred"
    give_sign("goes-on")
    assert losing.end("server_away") == "success"
    for task_id, job_id in jobs.items():
        assert losing.instance("server_away", task_id)["try_number"] == 1
        attempt, count = losing.value("server_away", task_id)
        log = losing.log("server_away", task_id)
        assert (attempt, lines(log, 0)) == (0, list(range(count)))
        assert claims(losing, job_id) == 1
        assert len(api.list("Pod", "default", {"labelSelector": f"{JOB_ID}={job_id}"})["items"]) <= 1


@pytest.mark.promise(
    "airflow: The cluster's API server is away while tasks are deferred, and when they are resumed"
)
def test_resumed_while_there_is_no_api_server(losing: Cases, proxy: FaultProxy) -> None:
    """Its trigger has seen the end, its worker cannot: the task is deferred again, and no value is lost."""
    losing.start("resumed")
    job_id = talks(losing, "resumed", "talk")
    scheduler = losing.airflow.processes.pop("scheduler")
    scheduler.terminate()
    scheduler.wait(60)
    give_sign("resumed")
    losing.reach("resumed", "talk", lambda one: one["state"] == "scheduled", "to be resumed")
    proxy.faults.drop(".", times=None)
    proxy.disconnect()
    losing.airflow.start_component("scheduler")

    def deferred_again(instance: dict[str, Any]) -> bool:
        told = "deferred until the cluster answers" in losing.log("resumed", "talk")
        return told and instance["state"] == "deferred"

    losing.reach("resumed", "talk", deferred_again, "to be deferred again")
    proxy.faults.clear()
    assert losing.end("resumed") == "success"
    assert losing.instance("resumed", "talk")["try_number"] == 1
    attempt, count = losing.value("resumed", "talk")
    assert (attempt, lines(losing.log("resumed", "talk"), 0)) == (0, list(range(count)))
    assert claims(losing, job_id) == 1
