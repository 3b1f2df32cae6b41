"""The DAG of `mapped_pods.py` whose pods belong to the Kubernetes provider's operator."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG
from kubernetes.client import V1ResourceRequirements

FUNCTION = f"import time; time.sleep({os.environ['BENCHMARK_SECONDS']}); print({{}} + 1)"
SIZE = {"cpu": "100m", "memory": "256Mi"}

with DAG("operator", schedule=None):
    KubernetesPodOperator.partial(
        task_id="work",
        name="work",
        image=os.environ["KINETIC_CONTAINER_IMAGE"],
        namespace=os.environ["BENCHMARK_NAMESPACE"],
        cmds=["python", "-c"],
        container_resources=V1ResourceRequirements(requests=SIZE, limits={"memory": SIZE["memory"]}),
        startup_timeout_seconds=600,
        deferrable=True,
        pool="pods",
        retries=3,
        retry_delay=timedelta(seconds=1),
    ).expand(
        arguments=[[FUNCTION.format(number)] for number in range(int(os.environ["BENCHMARK_INSTANCES"]))]
    )
