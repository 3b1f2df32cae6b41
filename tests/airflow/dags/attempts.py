"""A job whose first attempt fails when it may, and whose second one runs until somebody has seen its log."""

from __future__ import annotations

import os
import time
from pathlib import Path

from airflow.sdk import dag, task

FOLDER = str(Path(os.environ["AIRFLOW_HOME"], "attempts"))


@dag(schedule=None, catchup=False)
def attempts():
    @task.kinetic(accelerator="cpu", backend="local", job_retries=1)
    def talks(folder: str) -> str:
        while not Path(folder, "begin").exists():
            time.sleep(0.2)
        if not Path(folder, "failed").exists():
            Path(folder, "failed").touch()
            print("a line of the failed attempt", flush=True)
            raise ValueError("the first time")
        print("a line of the running attempt", flush=True)
        print("::group::a step that goes on", flush=True)
        print("a line of the step", flush=True)
        Path(folder, "said").touch()
        while not Path(folder, "go").exists():
            time.sleep(0.2)
        return "done"

    talks(FOLDER)


attempts()
