"""Tasks whose values an XCom backend of the deployment keeps."""

from __future__ import annotations

import time
from typing import Any

from airflow.sdk import dag, task

LOCAL: dict[str, Any] = {"accelerator": "cpu", "backend": "local"}
SECONDS = 5.0
"""Time of a job for which its worker does not wait."""


class Box:
    """Something XCom cannot carry."""

    def __init__(self, content: int) -> None:
        self.content = content


@dag(schedule=None, catchup=False)
def elsewhere():
    @task.kinetic(**LOCAL)
    def numbers(count: int) -> list[int]:
        time.sleep(SECONDS)
        return list(range(count))

    @task.kinetic(**LOCAL)
    def boxed(numbers: list[int]) -> Box:
        return Box(sum(numbers))

    @task.kinetic_batch(**LOCAL, max_failures=1)
    def square(number: int, box: Box) -> int:
        if number == 1:
            raise ValueError("it is one")
        return number * number + box.content

    @task
    def used(squares: Any) -> list[Any]:
        return [type(squares).__name__, list(squares), squares.failed]

    @task
    def single(square: int) -> int:
        return square

    found = numbers(4)
    squares = square(found, box=boxed(found))
    used(squares)
    single.expand(square=squares)


@dag(schedule=None, catchup=False)
def ended_elsewhere():
    @task.kinetic(**LOCAL)
    def long_job() -> None:
        time.sleep(600)

    @task.kinetic_batch(**LOCAL, max_concurrent=1)
    def long_batch(number: int) -> None:
        time.sleep(600)

    long_job()
    long_batch(range(2))


elsewhere()
ended_elsewhere()
