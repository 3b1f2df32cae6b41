"""Tasks of an Airflow whose workers are pods. The long ones wait for a sign, an object of a bucket."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from airflow.sdk import dag, task

RUN = os.environ.get("KINETIC_NAMESPACE", "")
SIGNS = f"{os.environ.get('STORAGE_EMULATOR_HOST', '')}/storage/v1/b/test-bucket/o/{RUN}"
POD: dict[str, Any] = {
    "accelerator": "cpu",
    "cpu": 0.1,
    "memory": "256Mi",
    "labels": {"tests": RUN, "dag": "{{ dag.dag_id }}"},
    "retries": 1,
    "retry_delay": timedelta(seconds=1),
}
"""What all of them ask for."""


@task.kinetic(**POD)
def where(number: int) -> list[object]:
    time.sleep(3)  # so long that whoever counts pods sees it
    return [number + 1, os.uname().nodename]


@dag(schedule=None, catchup=False)
def smoke():
    where(41)


@dag(schedule=None, catchup=False)
def twenty():
    where.expand(number=list(range(20)))


@task.kinetic(**POD)
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
def worker_deleted():
    long_job.override(deferrable=False)("worker_deleted", SIGNS)


@dag(schedule=None, catchup=False)
def worker_killed():
    long_job.override(deferrable=False)("worker_killed", SIGNS)


@dag(schedule=None, catchup=False)
def node_drained():
    long_job.override(deferrable=False)("node_drained", SIGNS)


@dag(schedule=None, catchup=False)
def triggerer_killed():
    long_job("triggerer_killed", SIGNS)


for each in (smoke, twenty, worker_deleted, worker_killed, node_drained, triggerer_killed):
    each()
