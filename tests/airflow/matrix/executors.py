"""Airflows of the matrix whose workers are not the scheduler's processes: those of Celery, and pods."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import postgresql
from celery_airflow import CeleryAirflow
from demo_airflow import AirflowTrouble
from worker_image import worker_image
from worker_pods import WorkerPods

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from matrix.walk import SupervisedAirflow

_SECONDS = 600.0
_HEARTBEATS = (
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT",
)


class SupervisedCelery(SupervisedAirflow, CeleryAirflow):
    """With CeleryExecutor."""


@dataclass
class SupervisedKubernetes(SupervisedAirflow):
    """With KubernetesExecutor and a PostgreSQL of its own.

    Its workers share the processes of this machine and the folder of the cells, so that they can be stopped
    between two steps as those of other executors are.
    """

    workers: WorkerPods = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        found = postgresql.programs()
        if found is None:
            raise AirflowTrouble("no PostgreSQL for KubernetesExecutor: apt-get install postgresql")
        self._database = postgresql.Database(found)
        self.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = self._database.url
        self.workers.configure(self, folders=[self.home / "cells"], variables=_HEARTBEATS)

    def start(self, say: Callable[[str], object] = lambda _: None, timeout: float = _SECONDS) -> None:
        self._database.start()
        super().start(say, timeout)

    def stop(self, patience: float = 5.0) -> None:
        super().stop(patience)
        self._database.stop()


@contextmanager
def worker_pods(folder: Path) -> Iterator[WorkerPods]:
    """A namespace of their own, and their image, which is built unless the environment names one."""
    run = f"matrix-workers-{os.getpid()}"
    image = os.environ.get("MATRIX_WORKER_IMAGE") or _built(folder, run)
    api = ClusterApi(Target(os.environ["KUBECONFIG"]))
    workers = WorkerPods(api, run, image, shares_processes=True)
    with workers.made():
        yield workers


def _built(folder: Path, run: str) -> str:
    folder.mkdir()
    place = {"KINETIC_CLUSTER": "kinetic-cluster", "KINETIC_ZONE": "europe-west4-a"}
    place["KINETIC_PROJECT"] = os.environ["GOOGLE_CLOUD_PROJECT"]
    image = worker_image(folder, {**os.environ, **place}, run)
    print(f"MATRIX_WORKER_IMAGE={image}")
    return image
