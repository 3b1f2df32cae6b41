"""Tasks whose next try depends on how their job has failed."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_provider.retry_policy import FailureRetryPolicy

LATE: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(days=1)}
LOCAL: dict[str, Any] = {"accelerator": "cpu", "backend": "local", **LATE}


@dag(schedule=None, catchup=False)
def policies():
    @task.kinetic(**LOCAL, retry_policy=FailureRetryPolicy({"user error": False}))
    def hopeless() -> None:
        raise ValueError("the data is wrong")

    @task.kinetic(**LOCAL, timeout=15, retry_policy=FailureRetryPolicy({"deadline": timedelta(seconds=1)}))
    def slow(mark: str) -> str:
        import time

        if not Path(mark).exists():
            Path(mark).touch()
            time.sleep(600)
        return "at last"

    @task.kinetic_batch(**LOCAL, retry_policy=FailureRetryPolicy({"user error": False}))
    def batch(number: int) -> None:
        raise ValueError("the data is wrong")

    hopeless()
    slow(str(Path(os.environ["AIRFLOW_HOME"]) / "slow"))
    batch([1, 2])


policies()
