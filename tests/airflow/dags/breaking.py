"""Tasks whose triggers break."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NoReturn

from airflow.sdk import dag
from breaking_triggers import BatchBreaks, BreaksAtOnce, BreaksInTheEnd

from airflow_provider.operators.batch import KineticBatchOperator
from airflow_provider.operators.kinetic import KineticOperator

SIGN = str(Path(os.environ["AIRFLOW_HOME"], "breaking-ends"))
"""A file that ends the job of `runs`."""


def wait(sign: str, seconds: float = 300) -> str:
    for _ in range(int(seconds)):
        if Path(sign).exists():
            break
        time.sleep(1)
    return "the job is done"


class Unlucky(KineticOperator):
    """Defers to a trigger that breaks."""

    trigger_retries = 1

    def __init__(self, *, trigger: Any, **options: Any) -> None:
        super().__init__(python_callable=wait, accelerator="cpu", backend="local", **options)
        self.trigger = trigger

    def _defer_to(self, context: Any, trigger: Any, leg: str) -> NoReturn:
        super()._defer_to(context, self.trigger(**trigger.serialize()[1]), leg)


def square(number: int) -> int:
    time.sleep(5)
    return number * number


class UnluckyBatch(KineticBatchOperator):
    """Defers to a trigger that breaks."""

    trigger_retries = 1

    def _defer_to(self, context: Any, trigger: Any, leg: str) -> NoReturn:
        super()._defer_to(context, BatchBreaks(**trigger.serialize()[1]), leg)


@dag(schedule=None, catchup=False)
def breaking_batch():
    options: dict[str, Any] = {"accelerator": "cpu", "backend": "local"}
    UnluckyBatch(task_id="runs", python_callable=square, op_args=[[1, 2, 3]], **options)


@dag(schedule=None, catchup=False)
def breaking():
    Unlucky(task_id="runs", trigger=BreaksAtOnce, op_args=[SIGN])
    Unlucky(task_id="ends", trigger=BreaksInTheEnd, op_args=[SIGN, 5])


breaking_batch()
breaking()
