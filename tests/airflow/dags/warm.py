"""Tasks on warm workers: mapped tasks that share them, and one whose worker dies."""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task


@dag(schedule=None, catchup=False)
def warm():
    """Two mapped tasks at a time; then one that kills its worker."""

    @task.kinetic(backend="local", accelerator="cpu", warm="3m", max_active_tis_per_dagrun=2)
    def count(number: int) -> list[Any]:
        import os

        print("counting", number)
        return [number, os.environ.get("KINETIC_ON_WORKER")]

    @task.kinetic(backend="local", accelerator="cpu", warm="{{ '3m' }}")
    def survive() -> list[Any]:
        import os
        import signal
        import time
        from pathlib import Path

        if worker := os.environ.get("KINETIC_ON_WORKER"):
            runner = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
            print("killing", worker, flush=True)
            os.kill(int(runner), signal.SIGKILL)
            time.sleep(600)
        return ["alive", int(os.environ["KINETIC_IGNORED_COUNT"])]

    count.expand(number=[1, 2, 3, 4, 5]) >> survive()


warm()
