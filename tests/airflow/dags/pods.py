"""Tasks whose jobs are pods. Some wait for a sign, an object of the tests' bucket, and one for an image."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from airflow.sdk import AssetAlias, dag, task

from airflow_provider.operators.kinetic import KineticOperator

RUN = os.environ.get("KINETIC_BUCKET", "").replace("/", "-")
IMAGE = f"{os.environ.get('KINETIC_TEST_REGISTRY', '')}/kinetic-tests/{RUN or 'none'}:1"
SIGNS = f"{os.environ.get('STORAGE_EMULATOR_HOST', '')}/storage/v1/b/test-bucket/o/{RUN}"


def name_node(word: str) -> list[str]:
    return [word, os.uname().nodename]


class Box:
    """Something XCom cannot carry."""

    def __init__(self, content: int) -> None:
        self.content = content


@dag(schedule=None, catchup=False)
def on_cluster():
    """One job after three, one where there is room, and one that gets what another has made."""

    @task.kinetic(accelerator="cpu", backend="gke")
    def where(number: int) -> list[Any]:
        print(f"line {number} of the pod", flush=True)
        time.sleep(3)
        return [number, os.uname().nodename]

    @task.kinetic(accelerator="tpu-v5e-4", backend="gke")
    def count_nodes(names: list[Any]) -> int:
        return len(names)

    @task.kinetic(accelerator=["tpu-v6e-8", "cpu"], capacity_timeout=5, backend="gke")
    def whatever_is_free() -> str:
        return os.environ["KINETIC_ACCELERATOR"]

    @task.kinetic(accelerator="cpu", backend="gke", outlets=[AssetAlias("boxes")])
    def pack(number: int) -> Box:
        bucket, _, place = os.environ["KINETIC_OUTPUT_DIR"].removeprefix("gs://").partition("/")
        uploads = f"{os.environ['STORAGE_EMULATOR_HOST']}/upload/storage/v1/b/{bucket}/o"
        name = quote(f"{place}/box.txt", safe="")
        urlopen(f"{uploads}?uploadType=media&name={name}", str(number).encode()).close()
        return Box(number)

    @task.kinetic(accelerator="cpu", backend="gke")
    def unpack(boxes: list[Box]) -> list[Any]:
        return [type(boxes[0]).__name__, boxes[0].content]

    KineticOperator(
        task_id="operated",
        python_callable=name_node,
        op_args=["operated"],
        accelerator="cpu",
        backend="gke",
        retries=0,
    )
    whatever_is_free()
    count_nodes(where.expand(number=[1, 2, 3]))
    unpack([pack(7)])


@dag(schedule=None, catchup=False)
def pod_batch():
    """Inputs as pods, of which one has no value; the values are the inputs of others."""

    @task.kinetic_batch(accelerator="cpu", backend="gke", cpu=0.1, max_failures=1)
    def boxed(number: int) -> Box:
        print(f"input {number} has begun", flush=True)
        if number == 2:
            raise ValueError("it is two")
        return Box(number)

    @task.kinetic_batch(accelerator="cpu", backend="gke", cpu=0.1, over="box")
    def opened(box: Box, factor: int) -> int:
        return box.content * factor

    @task
    def used(numbers: Any) -> list[Any]:
        return [type(numbers).__name__, list(numbers)]

    used(opened(boxed(range(4)), factor=10))


@dag(schedule=None, catchup=False)
def warm_pod_batch():
    """Inputs on two workers in pods, of which one has no value; the values are the inputs of others."""
    warm: dict[str, Any] = {"accelerator": "cpu", "backend": "gke", "cpu": 0.1, "warm": "2m"}

    @task.kinetic_batch(**warm, max_concurrent=2, max_failures=1)
    def boxed(number: int) -> Box:
        print(f"input {number} has begun", flush=True)
        if number == 2:
            raise ValueError("it is two")
        return Box(number)

    @task.kinetic_batch(**warm, max_concurrent=2, over="box")
    def opened(box: Box, factor: int) -> list[Any]:
        return [box.content * factor, os.environ.get("KINETIC_POD_UID", "")]

    @task
    def used(values: Any) -> list[Any]:
        return [type(values).__name__, [number for number, _ in values], len({pod for _, pod in values})]

    used(opened(boxed(range(20)), factor=10))


@dag(schedule=None, catchup=False)
def named_by_pool():
    """A name that two machines carry."""

    @task.kinetic(accelerator="v6e-8", backend="gke")
    def hosts() -> list[Any]:
        return [os.environ["KINETIC_ACCELERATOR"], len(os.environ["TPU_WORKER_HOSTNAMES"].split(","))]

    hosts()


@dag(schedule=None, catchup=False)
def pod_deaths():
    """One has too little memory, one is killed when it has just enough, one's image cannot be unpacked."""

    @task.kinetic(accelerator="cpu", backend="gke", cpu=0.1, memory="160Mi")
    def greedy() -> int:
        print("begun", flush=True)
        return len(b"x" * (400 << 20))

    @task.kinetic(accelerator="cpu", backend="gke", cpu=0.1, memory="256Mi")
    def killed() -> int:
        kept = b"x" * (225 << 20)
        print("nearly full", flush=True)
        time.sleep(600)
        return len(kept)

    @task.kinetic(accelerator="cpu", backend="gke", cpu=0.1, container_image=IMAGE)
    def unpacked() -> None:
        print("it runs", flush=True)

    greedy()
    killed()
    unpacked()


@task.kinetic(
    accelerator="cpu",
    backend="gke",
    cpu=0.1,  # all of them fit on one node
    memory="256Mi",
    labels={"tests": RUN or "none", "dag": "{{ dag.dag_id }}"},
    retries=1,
    retry_delay=timedelta(seconds=1),
)
def long_job(name: str, signs: str) -> str:
    print(f"{name} has begun", flush=True)
    while True:
        try:
            urlopen(f"{signs}-{name}", timeout=5).close()
        except OSError as error:  # a pod with another's former address may not be answered at first
            if isinstance(error, HTTPError) and error.code != 404:
                raise
        else:
            return os.uname().nodename
        time.sleep(0.5)


@dag(schedule=None, catchup=False)
def pod_adopted():
    long_job.override(deferrable=False)("pod_adopted", SIGNS)


@dag(schedule=None, catchup=False)
def pod_evicted():
    long_job("pod_evicted", SIGNS)


@dag(schedule=None, catchup=False)
def pod_cleared():
    long_job("pod_cleared", SIGNS)


@dag(schedule=None, catchup=False)
def pod_moved():
    long_job("pod_moved", SIGNS)


@dag(schedule=None, catchup=False)
def pod_unseen():
    long_job("pod_unseen", SIGNS)


for each in (
    on_cluster,
    pod_batch,
    warm_pod_batch,
    named_by_pool,
    pod_deaths,
    pod_adopted,
    pod_evicted,
    pod_cleared,
    pod_moved,
    pod_unseen,
):
    each()
