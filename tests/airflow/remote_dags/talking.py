"""Tasks whose jobs print until somebody has seen it, and others that fail at the end."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

from airflow.sdk import dag, task

SIGN = Path(__file__).with_name("sign").read_text()
"""What the URL of an object begins with that the test makes when it has seen enough."""


def say(sign: str) -> int:
    """Print lines until there is a sign; return their number."""
    for number in range(600):
        print(f"line {number} of the pod", flush=True)
        time.sleep(1)
        try:
            urllib.request.urlopen(sign, timeout=5).close()
            break
        except OSError:  # there is none, or nobody answers just now
            continue
    return number + 1


@task.kinetic(accelerator="cpu")
def talk(sign: str) -> int:
    return say(sign)


@task.kinetic(accelerator="cpu")
def fail() -> None:
    for number in range(3):
        print(f"line {number} of the pod", flush=True)
        time.sleep(1)
    raise ValueError("at the end")


@task.kinetic(accelerator="cpu", multiple_outputs=True)
def split(sign: str) -> dict[str, int]:
    return {"lines": say(sign)}


@task.kinetic_batch(accelerator="cpu")
def square(number: int, sign: str) -> int:
    say(sign)
    return number * number


@dag(schedule=None, catchup=False)
def talking():
    talk(f"{SIGN}-talk")
    fail.override(task_id="failing")()


@dag(schedule=None, catchup=False)
def refused():
    """The bucket of Airflow's logs takes nothing from its pod."""
    fail.override(task_id="talk")()


@dag(schedule=None, catchup=False)
def all_kinds():
    """A task that a worker ends, one that waits in its worker, and a batch."""
    split(f"{SIGN}-split")
    talk.override(task_id="held", deferrable=False)(f"{SIGN}-held")
    square([0, 1, 2], sign=f"{SIGN}-square")


@dag(schedule=None, catchup=False)
def stalled():
    talk(f"{SIGN}-stalled")


talking()
refused()
stalled()
all_kinds()
