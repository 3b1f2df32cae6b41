"""Tasks on warm workers: mapped tasks that share them, and one whose worker dies."""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task


class Total:
    def __init__(self, start: int) -> None:
        self.total = start

    def add(self, number: int) -> int:
        self.total += number
        return self.total


@dag(schedule=None, catchup=False)
def warm():
    """Two mapped tasks at a time; then one that kills its worker. Beside them one with an object in a pod."""

    @task
    def add_up() -> list[int]:
        import kinetic_core

        total = kinetic_core.cls("cpu", backend="local", warm="3m")(Total)(5)
        return [total.add(1), total.add(2)]

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

    add_up()
    count.expand(number=[1, 2, 3, 4, 5]) >> survive()


warm()
