"""Tasks whose triggers break."""

from __future__ import annotations

import time
from typing import Any, NoReturn

from airflow.sdk import dag
from breaking_triggers import BreaksAtOnce, BreaksInTheEnd

from airflow_provider.operators.kinetic import KineticOperator


def wait(seconds: float) -> str:
    time.sleep(seconds)
    return "the job is done"


class Unlucky(KineticOperator):
    """Defers to a trigger that breaks."""

    def __init__(self, *, trigger: Any, **options: Any) -> None:
        super().__init__(python_callable=wait, accelerator="cpu", backend="local", **options)
        self.trigger = trigger

    def _defer_to(self, trigger: Any, leg: str) -> NoReturn:
        super()._defer_to(self.trigger(**trigger.serialize()[1]), leg)


@dag(schedule=None, catchup=False)
def breaking():
    Unlucky(task_id="runs", trigger=BreaksAtOnce, op_args=[300])
    Unlucky(task_id="ends", trigger=BreaksInTheEnd, op_args=[5])


breaking()
