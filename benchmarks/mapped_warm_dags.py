"""The DAGs that `mapped_warm.py` compares."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

INSTANCES = int(os.environ.get("BENCHMARK_INSTANCES", "200"))
OPTIONS: dict[str, Any] = {
    "accelerator": "cpu",
    "cpu": 0.1,
    "memory": "256Mi",
    "namespace": os.environ.get("BENCHMARK_NAMESPACE"),
    "pool": "four",
    "retries": 3,
    "retry_delay": timedelta(seconds=1),
}

with DAG("pods", schedule=None):

    @task.kinetic(**OPTIONS)
    def in_a_pod(number: int) -> int:
        return number + 1

    in_a_pod.expand(number=list(range(INSTANCES)))

with DAG("warm", schedule=None):

    @task.kinetic(warm="5m", **OPTIONS)
    def on_a_worker(number: int) -> int:
        return number + 1

    on_a_worker.expand(number=list(range(INSTANCES)))
