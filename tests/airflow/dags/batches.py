"""DAGs of tasks that run a function over many inputs, as one batch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

LOCAL: dict[str, Any] = {"accelerator": "cpu", "backend": "local"}
RERUN = str(Path(os.environ["AIRFLOW_HOME"], "rerun"))
"""What the names of the folders begin with where the inputs of `rerun_batch` note their calls."""


class Box:
    """Something XCom cannot carry."""

    def __init__(self, content: int) -> None:
        self.content = content


@dag(schedule=None, catchup=False)
def batched():
    """Every kind of input, and every use of the values."""

    @task.kinetic_batch(**LOCAL, max_concurrent=4)
    def square(number: int, plus: int = 0) -> dict[str, int]:
        return {"square": number * number + plus}

    @task.kinetic_batch(**LOCAL, over="box")
    def opened(box: Box, factor: int) -> int:
        return box.content * factor

    @task.kinetic_batch(**LOCAL)
    def boxed(number: int) -> Box:
        return Box(number)

    @task.kinetic(**LOCAL)
    def total(boxes: list[Box]) -> int:
        return sum(box.content for box in boxes)

    @task
    def numbers() -> list[int]:
        return [1, 2, 3]

    @task
    def used(squares: Any) -> list[Any]:
        return [type(squares).__name__, len(squares), squares[-1], [each["square"] for each in squares]]

    @task
    def single(square: dict[str, int]) -> int:
        return square["square"]

    def of_the_run(dag_run: Any) -> Iterator[int]:
        yield from range(len(dag_run.dag_id[:2]))

    @task
    def none() -> list[int]:
        return []

    squares = square(numbers(), plus=1)
    used(squares)
    single.expand(square=squares)
    boxes = boxed(of_the_run)
    total(boxes)
    used.override(task_id="opened_ones")(square.override(task_id="of_opened")(opened(boxes, factor=10)))
    square.override(task_id="nothing")(none())


@dag(schedule=None, catchup=False)
def half_failing():
    """A task three of whose inputs fail, until the file `go` is there."""

    @task.kinetic_batch(**LOCAL, retries=1, retry_delay=timedelta(seconds=1))
    def odd(number: int, folder: str) -> int:
        with Path(folder, f"calls-{number}").open("a") as calls:
            calls.write("x")
        if number % 2 and not Path(folder, "go").exists():
            raise ValueError(f"{number} is odd" if number == 5 else "it is odd")
        return number

    @task
    def folder(dag_run: Any) -> str:
        place = Path("/tmp", f"kinetic-{dag_run.run_id}".replace(":", "-"))
        place.mkdir(exist_ok=True)
        return str(place)

    @task
    def used(numbers: Any) -> list[Any]:
        return [list(numbers), list(numbers.indexes), numbers.failed]

    place = folder()
    odd(range(6), folder=place)
    used(odd.override(task_id="tolerant", max_failures=3, retries=0)(range(6), folder=place))


@dag(schedule=None, catchup=False)
def rerun_batch():
    """Tasks whose odd inputs fail until the file `go` is there; cleared, they run what `rerun` says."""

    @task.kinetic_batch(**LOCAL)
    def counted(number: int, folder: str) -> int:
        with Path(folder, f"calls-{number}").open("a") as calls:
            calls.write("x")
        if number % 2 and not Path(folder, "go").exists():
            raise ValueError("it is odd")
        return number

    for name, rerun in {"as_told": "{{ var.value.get('rerun_counted', 'missing') }}", "all": "all"}.items():
        counted.override(task_id=name, rerun=rerun)(range(3), folder=f"{RERUN}-{name}")


@dag(schedule=None, catchup=False)
def long_batch():
    """A batch that runs until somebody ends it."""

    @task.kinetic_batch(**LOCAL, max_concurrent=2)
    def long_job(number: int) -> int:
        print("long_batch has begun", flush=True)
        time.sleep(600)
        return number

    long_job(range(3))


@dag(schedule=None, catchup=False)
def late_batch():
    """A batch whose task has no time for it."""

    @task.kinetic_batch(**LOCAL, execution_timeout=timedelta(seconds=15))
    def long_job(number: int) -> int:
        time.sleep(600)
        return number

    long_job(range(3))


FOLDER = str(Path(os.environ["AIRFLOW_HOME"], "adopted-batch"))
"""Where the inputs of `adopted_batch` note their calls; a file `go` ends them."""


@dag(schedule=None, catchup=False)
def adopted_batch():
    """A batch that a worker waits for."""

    @task.kinetic_batch(**LOCAL, deferrable=False, retries=1, retry_delay=timedelta(seconds=1))
    def long_job(number: int, folder: str) -> int:
        Path(folder).mkdir(exist_ok=True)
        with Path(folder, f"calls-{number}").open("a") as calls:
            calls.write("x")
        while not Path(folder, "go").exists():
            time.sleep(0.2)
        return number

    long_job(range(3), folder=FOLDER)


adopted_batch()
batched()
late_batch()
half_failing()
long_batch()
rerun_batch()
