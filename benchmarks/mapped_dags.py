"""The DAGs that `mapped_run.py` and `one_leg.py` compare."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator, task

INSTANCES = int(os.environ.get("BENCHMARK_INSTANCES", "200"))
PATIENT: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=1)}
"""Airflow's scheduler may fail a task that resumes soon after its deferral (airflow#71580)."""


class Waiting(BaseOperator):
    """Defers to a trigger that waits about as long as a trivial job takes, and returns."""

    def __init__(self, number: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.number = number

    def execute(self, context: Any) -> None:
        del context
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=1)), method_name="resume")

    def resume(self, context: Any, event: Any) -> int:
        del context, event
        return self.number + 1


class Ended(Waiting):
    """Defers once, and is ended by its trigger."""

    def execute(self, context: Any) -> None:
        del context
        trigger = TimeDeltaTrigger(timedelta(seconds=1), end_from_trigger=True)
        self.defer(trigger=trigger, method_name="resume")


with DAG("kinetic", schedule=None):

    @task.kinetic(accelerator="cpu", backend="local", **PATIENT)
    def work(number: int) -> int:
        return number + 1

    work.expand(number=list(range(INSTANCES)))

with DAG("waiting", schedule=None):
    Waiting.partial(task_id="work", **PATIENT).expand(number=list(range(INSTANCES)))

with DAG("ended", schedule=None):
    Ended.partial(task_id="work", **PATIENT).expand(number=list(range(INSTANCES)))
