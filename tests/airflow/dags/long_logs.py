"""A job that prints far more than anybody reads, and then waits."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import dag, task

SIGN = str(Path(os.environ["AIRFLOW_HOME"], "long-log-ends"))


@dag(schedule=None, catchup=False)
def long_log():
    @task.kinetic(accelerator="cpu", backend="local")
    def prints(sign: str, lines: int) -> str:
        import time

        for number in range(lines):
            print(f"line {number:06d} {'x' * 1011}")  # 1,024 bytes
        print("all is printed", flush=True)
        deadline = time.monotonic() + 900
        while not Path(sign).exists() and time.monotonic() < deadline:
            time.sleep(0.5)
        return "done"

    prints(SIGN, 250 << 10)


long_log()
