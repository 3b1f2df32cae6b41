"""Tasks whose jobs are left alone, and one that is deferred meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

LOCAL: dict[str, Any] = {"accelerator": "cpu", "backend": "local"}


@task.kinetic(**LOCAL)
def long_job() -> None:
    print("it has begun", flush=True)
    time.sleep(900)


def use_another_store(context: Any) -> None:
    """Give this worker a store that the settings of Airflow's components do not name."""
    del context
    os.environ["KINETIC_LOCAL_STORE"] = str(Path(os.environ["AIRFLOW_HOME"], "another", "kinetic"))


@dag(schedule=None, catchup=False)
def left():
    long_job.override(deferrable=False)()


@dag(schedule=None, catchup=False)
def left_elsewhere():
    long_job.override(deferrable=False, pre_execute=use_another_store)()


@dag(schedule=None, catchup=False)
def deferred():
    long_job()


left()
left_elsewhere()
deferred()
