"""As `test_kills`, where jobs are pods: killed with their tasks, only with them, and never two at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from pod_watch import PodWatch
from test_kills import begun, clear, mark_failed

from kinetic_core.store.gcs import GcsObjectStore

pytestmark = pytest.mark.airflow

DAGS = ("pod_adopted", "pod_evicted", "pod_cleared", "pod_moved", "pod_unseen")
NAMESPACE = "default"


@pytest.fixture(scope="module")
def pods(cases: Any, cluster: Any) -> Iterator[PodWatch]:
    """All DAGs have been started: pods take their time, and side by side they take it once."""
    watch = PodWatch(cluster, NAMESPACE, sign_of(cases))
    watch.start()
    for dag_id in DAGS:
        cases.start(dag_id)
    yield watch
    try:
        for dag_id in DAGS:  # those of tests that were left out, or that failed, go on
            run = f"/dags/{dag_id}/dagRuns/{cases.runs[dag_id]}"
            if cases.api.call("GET", run)["state"] not in ("success", "failed"):
                cases.api.call("PATCH", run, {"state": "failed"})
        cases.airflow.until(lambda: not any(watch.living.values()), 300, "all pods to be gone")
    finally:
        watch.close()
        cluster.delete_all("Job", NAMESPACE, f"tests={sign_of(cases)}")


def sign_of(cases: Any) -> str:
    return str(cases.airflow.environment["KINETIC_BUCKET"]).replace("/", "-")


def let_end(cases: Any, dag_id: str) -> None:
    """The sign its pods wait for."""
    GcsObjectStore.at("test-bucket").create_if_absent(f"{sign_of(cases)}-{dag_id}", b"")


def another_pod(cases: Any, pods: PodWatch, dag_id: str) -> None:
    cases.airflow.until(lambda: len(pods.pods[dag_id]) == 2, 300, f"another pod of {dag_id}")


@pytest.mark.promise("airflow: A worker killed anywhere and run again adopts its job")
def test_a_worker_that_is_killed_leaves_its_pod_to_the_next_try(cases: Any, pods: PodWatch) -> None:
    instance = begun(cases, "pod_adopted", "running")
    (name,) = pods.pods["pod_adopted"]
    os.kill(cases.task_process(instance), signal.SIGKILL)

    def adopted(instance: dict[str, Any]) -> bool:
        return instance["try_number"] == 2 and "adopted a job" in cases.log("pod_adopted", "long_job", 2)

    cases.reach("pod_adopted", "long_job", adopted, "to be adopted")
    let_end(cases, "pod_adopted")
    assert cases.end("pod_adopted") == "success"
    assert pods.pods["pod_adopted"] == [name]


@pytest.mark.promise("airflow: Infrastructure restarts stay inside the job, `try_number` alone")
def test_an_evicted_pod_is_replaced_within_the_job_and_the_try(cases: Any, pods: PodWatch) -> None:
    begun(cases, "pod_evicted", "deferred")
    (name,) = pods.pods["pod_evicted"]
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
    pods.api.call("POST", path, {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}})
    another_pod(cases, pods, "pod_evicted")
    let_end(cases, "pod_evicted")
    assert cases.end("pod_evicted") == "success"
    assert cases.instance("pod_evicted", "long_job")["try_number"] == 1
    assert [each.rpartition("-")[0] for each in pods.pods["pod_evicted"]] == [name.rpartition("-")[0]] * 2
    assert pods.most["pod_evicted"] == 1


@pytest.mark.promise("airflow: *Clear* means run again, never a result that the task has had")
@pytest.mark.promise("airflow: At most one live execution")
def test_clearing_kills_the_pod_before_another_runs(cases: Any, pods: PodWatch) -> None:
    instance = begun(cases, "pod_cleared", "deferred")
    assert pods.living["pod_cleared"] == 1
    clear(cases, instance)
    another_pod(cases, pods, "pod_cleared")
    let_end(cases, "pod_cleared")
    assert cases.end("pod_cleared") == "success"
    first, second = pods.pods["pod_cleared"]
    assert not first.startswith(cases.value("pod_cleared", "long_job"))
    assert second.startswith(cases.value("pod_cleared", "long_job"))
    assert pods.most["pod_cleared"] == 1


@pytest.mark.promise("airflow: Triggerer SIGTERM, kill -9, stall and failover")
@pytest.mark.promise("airflow: No orphan pod 60 s after a triggerer is alive")
@pytest.mark.promise("airflow: No deletion on mere trigger reassignment")
def test_killed_triggerers_end_no_pod_and_leave_none_behind(cases: Any, pods: PodWatch) -> None:
    """While none lives, the task of one pod is marked failed and the other goes on."""
    begun(cases, "pod_moved", "deferred")
    forgotten = begun(cases, "pod_unseen", "deferred")
    triggerer = cases.airflow.processes.pop("triggerer")
    triggerer.kill()
    triggerer.wait()
    mark_failed(cases, forgotten)
    assert cases.end("pod_unseen") == "failed"
    assert pods.living["pod_moved"] == 1
    cases.airflow.start_component("triggerer")  # which takes a minute on a busy machine
    cases.airflow.until(lambda: not pods.living["pod_unseen"], 300, "the forgotten pod to be gone")
    assert pods.living["pod_moved"] == 1
    let_end(cases, "pod_moved")
    assert cases.end("pod_moved") == "success"
    assert cases.instance("pod_moved", "long_job")["try_number"] == 1
    assert (len(pods.pods["pod_moved"]), len(pods.pods["pod_unseen"])) == (1, 1)
