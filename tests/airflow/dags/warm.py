"""Tasks on warm workers: mapped tasks that share them, and one whose worker dies."""

from __future__ import annotations

from pathlib import Path
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

        if worker := os.environ.get("KINETIC_ON_WORKER"):
            runner = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
            print("killing", worker, flush=True)
            os.kill(int(runner), signal.SIGKILL)
            time.sleep(600)
        return ["alive", int(os.environ["KINETIC_IGNORED_COUNT"])]

    add_up()
    count.expand(number=[1, 2, 3, 4, 5]) >> survive()


@dag(schedule=None, catchup=False)
def warm_batch():
    """Twelve inputs of one task on two workers, three of which fail until the file `go` is there."""

    @task.kinetic_batch(backend="local", accelerator="cpu", warm="3m", max_concurrent=2)
    def odd(number: int, folder: str) -> list[Any]:
        import os

        with Path(folder, f"calls-{number}").open("a") as calls:
            calls.write("x")
        if number in (1, 3, 5) and not Path(folder, "go").exists():
            raise ValueError("it is odd")
        return [number, os.environ.get("KINETIC_ON_WORKER")]

    @task
    def folder(dag_run: Any) -> str:
        place = Path("/tmp", f"kinetic-{dag_run.run_id}".replace(":", "-"))
        place.mkdir(exist_ok=True)
        return str(place)

    @task
    def used(values: Any) -> list[Any]:
        return [type(values).__name__, len(values), [number for number, _ in values]]

    @task.kinetic(backend="local", accelerator="cpu", warm="3m")
    def total(values: list[list[Any]]) -> int:
        return sum(number for number, _ in values)

    values = odd(range(12), folder=folder())
    used(values)
    total(values)


@dag(schedule=None, catchup=False)
def long_warm_batch():
    """Inputs on workers that run until somebody ends them."""

    @task.kinetic_batch(backend="local", accelerator="cpu", warm="3m", max_concurrent=2)
    def long_job(number: int) -> int:
        import time

        print("long_warm_batch has begun", flush=True)
        time.sleep(600)
        return number

    long_job(range(3))


long_warm_batch()
warm()
warm_batch()
