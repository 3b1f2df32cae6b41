"""The DAG of `mapped_pods.py` whose pods are jobs of Kinetic."""

from __future__ import annotations

import os
import time
from datetime import timedelta

from airflow.sdk import DAG, task

with DAG("kinetic", schedule=None):

    @task.kinetic(
        accelerator="cpu",
        cpu=0.1,
        memory="256Mi",
        service_account="default",  # as the operator's pods have
        namespace=os.environ["BENCHMARK_NAMESPACE"],
        pool="pods",
        retries=3,
        retry_delay=timedelta(seconds=1),
    )
    def work(number: int, seconds: int) -> int:
        time.sleep(seconds)
        return number + 1

    work.partial(seconds=int(os.environ["BENCHMARK_SECONDS"])).expand(
        number=list(range(int(os.environ["BENCHMARK_INSTANCES"])))
    )
