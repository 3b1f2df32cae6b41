"""A task whose job prints for a while, and another that fails at the end."""

from __future__ import annotations

import time

from airflow.sdk import dag, task


@task.kinetic(accelerator="cpu")
def talk(seconds: int, fails: bool = False) -> None:
    for number in range(seconds):
        print(f"line {number} of the pod", flush=True)
        time.sleep(1)
    if fails:
        raise ValueError("at the end")


@dag(schedule=None, catchup=False)
def talking():
    talk(25)
    talk.override(task_id="failing")(3, fails=True)


talking()
