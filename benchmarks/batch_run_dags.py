"""The DAGs of `batch_run.py`: batches on warm workers of this machine, and a task that only defers."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.standard.triggers.external_task import DagStateTrigger
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator, task


class Ended(BaseOperator):
    """Defers once, for as many seconds as the run's `conf` says, and is ended by its trigger."""

    def execute(self, context: Any) -> None:
        moment = timedelta(seconds=context["dag_run"].conf["seconds"])
        self.defer(trigger=TimeDeltaTrigger(moment, end_from_trigger=True), method_name="resume")

    def resume(self, context: Any, event: Any) -> None:
        del context, event


class Asking(BaseOperator):
    """Defers until its own run is running, for which the trigger asks Airflow."""

    def execute(self, context: Any) -> None:
        run = context["dag_run"]
        states: list[Any] = ["running"]
        self.defer(trigger=DagStateTrigger(run.dag_id, states, [run.run_id]), method_name="resume")

    def resume(self, context: Any, event: Any) -> None:
        del context, event


def batch(size: int) -> DAG:
    """Make the DAG of a batch of so many inputs, all of whose values a plain task checks."""
    with DAG(f"batch_{size}", schedule=None) as dag:

        @task.kinetic_batch(accelerator="cpu", backend="local", warm="10m", max_concurrent=4)
        def work(number: int) -> int:
            return number + 1

        @task
        def check(values: Sequence[int]) -> float:
            """Return the processor seconds of this process, once every value is the right one."""
            assert list(values) == list(range(1, size + 1))
            return time.process_time()

        check(work(range(size)))  # type: ignore[arg-type]  # Airflow types one call of the function
    return dag


few, many = batch(10), batch(int(os.environ["BENCHMARK_INPUTS"]))

for name, operator in {"ended": Ended, "asking": Asking}.items():
    with DAG(name, schedule=None):

        @task
        def check() -> float:
            """Return the processor seconds of this process."""
            return time.process_time()

        operator(task_id="work") >> check()
