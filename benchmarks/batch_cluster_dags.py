"""The DAG of `batch_cluster.py`: a batch whose pods are put on nodes that run no code."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from airflow.sdk import DAG, task

SIZE = int(os.environ["BENCHMARK_INSTANCES"])

with DAG("batch", schedule=None):

    @task.kinetic_batch(
        accelerator="cpu",
        namespace=os.environ["BENCHMARK_NAMESPACE"],
        max_concurrent=500,
        **json.loads(os.environ["BENCHMARK_NODE"]),
    )
    def work(number: int) -> int:
        return number + 1

    @task
    def check(values: Sequence[int]) -> None:
        """Fail unless every value is the right one."""
        assert list(values) == list(range(1, SIZE + 1))

    check(work(range(SIZE)))  # type: ignore[arg-type]  # Airflow types one call of the function
