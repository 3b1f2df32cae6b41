"""The DAGs whose runs the page is tested with; they never run, their task instances are written."""

from __future__ import annotations

from airflow.sdk import dag, task
from page_names import CORPUS, INPUTS, LIVE, UNREACHABLE, VAST


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


@dag(schedule=None, catchup=False, dag_id=VAST)
def vast():
    """Five thousand."""

    @task.kinetic(accelerator="tpu-v6e-8")
    def train(seed: int) -> float:
        return 1.0 / (1 + seed)

    train.expand(seed=list(range(5000)))


@dag(schedule=None, catchup=False, dag_id=LIVE)
def live():
    """A thousand that run in a cluster."""

    @task.kinetic(accelerator="tpu-v6e-8", conn_id="page_silent")
    def train(seed: int) -> int:
        return seed

    train.expand(seed=list(range(1000)))


@dag(schedule=None, catchup=False, dag_id=UNREACHABLE)
def unreachable():
    """Two whose cluster and store do not answer."""

    @task.kinetic(accelerator="tpu-v6e-8", conn_id="page_silent")
    def train(seed: int) -> int:
        return seed

    train.expand(seed=[0, 1])


@dag(schedule=None, catchup=False, dag_id=CORPUS)
def corpus():
    """One task of ten thousand inputs, and one of which an author says that it had the other's batch."""

    @task.kinetic_batch(accelerator="tpu-v6e-8")
    def embed(number: int) -> int:
        return number

    @task.kinetic_batch(accelerator="tpu-v6e-8")
    def forged(number: int) -> int:
        return number

    embed(list(range(INPUTS)))
    forged([1])


corpus()
sweep()
secret()
vast()
live()
unreachable()
