"""The DAGs whose runs the page is tested with; they never run, their task instances are written."""

from __future__ import annotations

from airflow.sdk import dag, task


@dag(schedule=None, catchup=False)
def sweep():
    """A thousand mapped tasks."""

    @task.kinetic(accelerator="tpu-v6e-8")
    def train(seed: int) -> float:
        return 1.0 / (1 + seed)

    train.expand(seed=list(range(1000)))


@dag(schedule=None, catchup=False)
def secret():
    """One that a guest must not see."""

    @task.kinetic(accelerator="tpu-v6e-8")
    def train() -> None:
        return None

    train()


sweep()
secret()
