"""Tasks that end in every way: by their triggers, and by a worker."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from airflow.sdk import Asset, dag, task

LOCAL: dict[str, Any] = {"accelerator": "cpu", "backend": "local"}
SECONDS = 5.0
"""Time of a job, in which its task is deferred."""


class Box:
    """Something XCom cannot carry."""

    def __init__(self, content: int) -> None:
        self.content = content


def nothing(context: Any, result: Any = None) -> None:
    """A callback and a hook of a task."""


@dag(schedule=None, catchup=False)
def endings():
    @task.kinetic(**LOCAL)
    def double(number: int) -> int:
        print(f"doubling {number}", flush=True)
        time.sleep(SECONDS)
        return 2 * number

    @task.kinetic(**LOCAL)
    def pack(number: int) -> Box:
        time.sleep(SECONDS)
        return Box(number)

    @task.kinetic(**LOCAL)
    def unpack(boxes: list[Box]) -> list[int]:
        time.sleep(SECONDS)
        return [box.content for box in boxes]

    @task.kinetic(**LOCAL)
    def chatter() -> str:
        time.sleep(SECONDS)
        for number in range(150):
            print(f"chatter {number}")
        return "told"

    @task.kinetic(**LOCAL)
    def large() -> str:
        time.sleep(SECONDS)
        return "x" * 100_000

    @task.kinetic(**LOCAL)
    def two() -> list[int]:
        time.sleep(SECONDS)
        return [1, 2]

    @task.kinetic(**LOCAL)
    def fail() -> None:
        time.sleep(SECONDS)
        raise ValueError("no luck")

    double.override(task_id="mapped").expand(number=[1, 2, 3])
    double.override(task_id="quiet", do_xcom_push=False)(4)
    double.override(task_id="with_outlet", outlets=[Asset("kinetic_endings")])(5)
    double.override(task_id="with_callback", on_success_callback=nothing)(6)
    double.override(task_id="with_hook", post_execute=nothing)(7)
    double.override(task_id="over_two").expand(number=two())
    unpacked = unpack(pack.expand(number=[1, 2]))
    unpacked >> pack.override(task_id="pack_again")(3)  # when there is a secret that signs references
    chatter()
    large()
    fail()
    fail.override(task_id="fail_twice", retries=1, retry_delay=timedelta(seconds=1))()


endings()
