"""Tasks that are deferred, and then ended by a worker: because of their outlets, a trigger may not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Asset, dag, task

LOCAL: dict[str, Any] = {"accelerator": "cpu", "backend": "local"}


@dag(schedule=None, catchup=False)
def resumed():
    @task
    def prepare() -> None:
        pass

    @task.kinetic(**LOCAL, outlets=[Asset("kinetic-first")])
    def at_once() -> None:
        import time

        time.sleep(20)  # longer than a worker waits before it defers

    @task.kinetic(**LOCAL, outlets=[Asset("kinetic-second")], retries=1, retry_delay=timedelta(seconds=1))
    def at_last(number: str) -> None:
        import time

        if number == "1":
            raise ValueError("the first try")
        time.sleep(20)

    prepare() >> at_once()
    at_last("{{ ti.try_number }}")


resumed()
