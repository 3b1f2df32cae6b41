"""A task whose job prints until somebody has seen it, and another that fails at the end."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

from airflow.sdk import dag, task

SIGN = Path(__file__).with_name("sign").read_text()
"""What the URL of an object begins with that the test makes when it has seen enough."""


@task.kinetic(accelerator="cpu")
def talk(sign: str) -> int:
    for number in range(120):
        print(f"line {number} of the pod", flush=True)
        time.sleep(1)
        try:
            urllib.request.urlopen(sign, timeout=5).close()
            break
        except OSError:  # there is none, or nobody answers just now
            continue
    return number + 1


@task.kinetic(accelerator="cpu")
def fail() -> None:
    for number in range(3):
        print(f"line {number} of the pod", flush=True)
        time.sleep(1)
    raise ValueError("at the end")


@dag(schedule=None, catchup=False)
def talking():
    talk(f"{SIGN}-talk")
    fail.override(task_id="failing")()


@dag(schedule=None, catchup=False)
def refused():
    """The bucket of Airflow's logs takes nothing from its pod."""
    fail.override(task_id="talk")()


talking()
refused()
