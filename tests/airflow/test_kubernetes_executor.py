"""Tasks whose workers are pods: the KubernetesExecutor, and an image with the wheel of this provider."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from conftest import CLUSTER, HERE, Cases
from pod_watch import PodWatch
from postgresql import own_database
from test_kills import begun
from worker_image import worker_image
from worker_pods import WorkerPods

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.store.gcs import GcsObjectStore

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(not CLUSTER, reason="no KUBECONFIG and KINETIC_TEST_IMAGE: see the cluster's README"),
    pytest.mark.skipif(
        find_spec("psycopg2") is None, reason="no psycopg2: `make kubernetes-executor-test` has it"
    ),
]

ENVIRONMENT = dict(os.environ)
"""Before tests take the variables of Google's stand-in away."""
RUN = f"workers-{os.getpid()}"
LONG = ("worker_deleted", "worker_killed", "node_drained", "triggerer_killed")


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPods]:
    """Their image and their namespace."""
    build = {**ENVIRONMENT, "KINETIC_CLUSTER": "kinetic-cluster", "KINETIC_ZONE": "europe-west4-a"}
    build["KINETIC_PROJECT"] = ENVIRONMENT["GOOGLE_CLOUD_PROJECT"]
    image = worker_image(tmp_path_factory.mktemp("image"), build, RUN)
    pods = WorkerPods(ClusterApi(Target(CLUSTER["KINETIC_KUBECONFIG"])), RUN, image)
    with pods.made():
        yield pods


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, workers: WorkerPods) -> Iterator[Cases]:
    """An Airflow of its own, all of whose DAGs have been started."""
    from demo_airflow import DemoAirflow

    home = tmp_path_factory.mktemp("workers").resolve()
    shutil.copytree(HERE / "worker_dags", home / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    (home / "dags" / "pyproject.toml").write_text("[project]\nname = 'errands'\nversion = '0'\n")
    with own_database() as database:
        extra = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database, "XDG_CACHE_HOME": str(home / "cache")}
        airflow = DemoAirflow(home, home / "dags", extra={**CLUSTER, **extra})
        workers.configure(airflow)
        try:
            airflow.start()
            yield Cases(airflow)
        finally:
            airflow.stop()


@pytest.fixture(scope="module")
def jobs(running: Cases, workers: WorkerPods) -> Iterator[PodWatch]:
    watch = PodWatch(workers.api, RUN, RUN)
    watch.start()
    for dag_id in ("smoke", *LONG):
        running.start(dag_id)
    yield watch
    watch.close()


def finish(running: Cases, dag_id: str) -> str:
    """Give the sign that its job waits for; the state of its run."""
    GcsObjectStore.at("test-bucket").create_if_absent(f"{RUN}-{dag_id}", b"")
    return running.end(dag_id)


def host_of(pod: str) -> str:
    """How a pod calls itself: as its Job and index, without what tells it from its successors."""
    return pod.rpartition("-")[0]


def adopted(running: Cases, dag_id: str) -> None:
    """Wait until another worker has the task, and the job."""

    def has_it(instance: dict[str, Any]) -> bool:
        return instance["try_number"] == 2 and "adopted a job" in running.log(dag_id, "long_job", 2)

    running.reach(dag_id, "long_job", has_it, "to be adopted")


def has_one_job(running: Cases, jobs: PodWatch, dag_id: str, tries: int) -> None:
    """Let the job end: it is the only one there ever was, and its value is the task's."""
    assert finish(running, dag_id) == "success"
    (pod,) = jobs.pods[dag_id]
    assert running.value(dag_id, "long_job") == host_of(pod)
    assert running.instance(dag_id, "long_job")["try_number"] == tries


@pytest.fixture(scope="module")
def disturbed(running: Cases, jobs: PodWatch, workers: WorkerPods) -> Iterator[str]:
    """What happens to three workers whose jobs run; the node that is drained, until the end."""
    for dag_id in LONG[:3]:
        begun(running, dag_id, "running")
    workers.api.delete("Pod", RUN, workers.worker("worker_deleted")["metadata"]["name"])
    name = workers.worker("worker_killed")["metadata"]["name"]
    kill = ["exec", "-n", RUN, name, "--", "python", "-c", "import os; os.kill(-1, 9)"]
    subprocess.run(["kubectl", *kill], env=ENVIRONMENT, check=False)  # which dies with the others
    pod = workers.worker("node_drained")
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    workers.api.patch("Node", "", node, {"spec": {"unschedulable": True}})
    try:
        workers.evict(name)
        yield node
    finally:
        workers.api.patch("Node", "", node, {"spec": {"unschedulable": None}})


@pytest.mark.promise("scale: KubernetesExecutor: workers are pods, their image is built there; the fan-out")
def test_a_task_succeeds_whose_worker_is_a_pod(running: Cases, jobs: PodWatch) -> None:
    assert running.end("smoke") == "success"
    (pod,) = jobs.pods["smoke"]
    assert running.value("smoke", "where") == [42, host_of(pod)]


@pytest.mark.promise("scale: … SIGTERM and kill -9 of a worker")
@pytest.mark.usefixtures("disturbed")
@pytest.mark.parametrize("dag_id", ["worker_deleted", "worker_killed"])
def test_a_worker_that_ends_leaves_its_job_to_the_next(running: Cases, jobs: PodWatch, dag_id: str) -> None:
    adopted(running, dag_id)
    has_one_job(running, jobs, dag_id, tries=2)


@pytest.mark.promise("scale: … drain of a node")
def test_workers_of_a_drained_node_go_to_another(
    running: Cases, jobs: PodWatch, workers: WorkerPods, disturbed: str
) -> None:
    adopted(running, "node_drained")
    assert workers.worker("node_drained")["spec"]["nodeName"] != disturbed
    has_one_job(running, jobs, "node_drained", tries=2)


@pytest.mark.promise("scale: … its matrix and its kills")
def test_a_killed_triggerer_ends_no_job(running: Cases, jobs: PodWatch) -> None:
    begun(running, "triggerer_killed", "deferred")
    triggerer = running.airflow.processes.pop("triggerer")
    triggerer.kill()
    triggerer.wait()
    running.airflow.start_component("triggerer")
    has_one_job(running, jobs, "triggerer_killed", tries=1)


@pytest.mark.promise("scale: KubernetesExecutor: workers are pods, their image is built there; the fan-out")
def test_twenty_instances_have_a_job_each(running: Cases, jobs: PodWatch) -> None:
    assert running.end("twenty", seconds=1400) == "success"  # 784 on two cores with a load of 20
    values = running.values("twenty", "where")
    assert [number for number, _ in values] == list(range(1, 21))
    assert sorted(host for _, host in values) == sorted(map(host_of, jobs.pods["twenty"]))
