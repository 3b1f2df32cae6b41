"""The DAG of `batch_fake_nodes.py`: one batch on a node without a machine, and a check of its values."""

from __future__ import annotations

import os
from collections.abc import Sequence

from airflow.sdk import DAG, task

INPUTS = int(os.environ["BENCHMARK_INSTANCES"])

with DAG("batch", schedule=None):

    @task.kinetic_batch(
        accelerator="cpu",
        cpu=0.1,
        memory="128Mi",
        service_account="default",
        namespace=os.environ["BENCHMARK_NAMESPACE"],
        node_selector={"cloud.google.com/gke-nodepool": os.environ["BENCHMARK_POOL"]},
        tolerations=[{"operator": "Exists"}],
        max_concurrent=1000,
    )
    def work(number: int) -> int:
        return number + 1

    @task
    def check(values: Sequence[int]) -> None:
        """Pass if every value is the right one."""
        assert list(values) == list(range(1, INPUTS + 1))

    check(work(range(INPUTS)))  # type: ignore[arg-type]  # Airflow types one call of the function
