"""The DAG of `mapped_pods.py` whose pods belong to `@task.kubernetes`, which is shown beside the others."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG, task
from kubernetes.client import V1ResourceRequirements

SIZE = {"cpu": "100m", "memory": "256Mi"}

with DAG("decorator", schedule=None):

    @task.kubernetes(
        image=os.environ["KINETIC_CONTAINER_IMAGE"],
        namespace=os.environ["BENCHMARK_NAMESPACE"],
        container_resources=V1ResourceRequirements(requests=SIZE, limits={"memory": SIZE["memory"]}),
        startup_timeout_seconds=600,
        deferrable=True,
        pool="pods",
        retries=3,
        retry_delay=timedelta(seconds=1),
    )
    def work(number: int, seconds: int) -> None:
        import time  # the function's text alone is in the pod

        time.sleep(seconds)
        print(number + 1)

    work.partial(seconds=int(os.environ["BENCHMARK_SECONDS"])).expand(
        number=list(range(int(os.environ["BENCHMARK_INSTANCES"])))
    )
