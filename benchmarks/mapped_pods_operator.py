"""The DAGs of `mapped_pods.py` whose pods belong to the Kubernetes provider's operator and decorator."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG, task
from kubernetes.client import V1ResourceRequirements

FUNCTION = f"import time; time.sleep({os.environ['BENCHMARK_SECONDS']}); print({{}} + 1)"
SIZE = {"cpu": "100m", "memory": "256Mi"}
INSTANCES = range(int(os.environ["BENCHMARK_INSTANCES"]))
SAME: dict[str, Any] = {
    "image": os.environ["KINETIC_CONTAINER_IMAGE"],
    "namespace": os.environ["BENCHMARK_NAMESPACE"],
    "container_resources": V1ResourceRequirements(requests=SIZE, limits={"memory": SIZE["memory"]}),
    "startup_timeout_seconds": 600,
    "deferrable": True,
    "pool": "pods",
    "retries": 3,
    "retry_delay": timedelta(seconds=1),
}
"""What both are told."""

with DAG("operator", schedule=None):
    KubernetesPodOperator.partial(task_id="work", name="work", cmds=["python", "-c"], **SAME).expand(
        arguments=[[FUNCTION.format(number)] for number in INSTANCES]
    )


def work(number: int, seconds: int) -> None:
    import time  # the function's text alone is in the pod

    time.sleep(seconds)
    print(number + 1)


with DAG("decorator", schedule=None):
    decorated: Any = task.kubernetes(**SAME)(work)
    decorated.partial(seconds=int(os.environ["BENCHMARK_SECONDS"])).expand(number=list(INSTANCES))
