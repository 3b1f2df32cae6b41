"""The DAGs of the tests: small ones, each for one thing that must hold."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_provider.operators.kinetic import KineticOperator
from kinetic_core.backends.local.slots import core_count

LOCAL: dict[str, Any] = {"accelerator": "cpu", "backend": "local"}
AGAIN = {"retries": 1, "retry_delay": timedelta(seconds=1)}


class Box:
    """Something XCom cannot carry."""

    def __init__(self, content: int) -> None:
        self.content = content


class OwnError(Exception):
    """Something Airflow cannot rebuild."""


class Unpicklable:
    """Something that cannot leave the process."""

    def __reduce__(self) -> Any:
        raise TypeError("this one stays")

    def __repr__(self) -> str:
        return "Unpicklable()"


def describe() -> str:
    import os

    return os.environ["KINETIC_ACCELERATOR"]


@dag(schedule=None, catchup=False)
def shapes():
    """Every way to call a decorated function."""

    @task.kinetic(**LOCAL)
    def add(left: int, right: int = 10) -> int:
        return left + right

    @task
    def pairs() -> list[dict[str, int]]:
        return [{"left": 1, "right": 2}, {"left": 3, "right": 4}]

    @task.kinetic(**LOCAL)
    def split(number: int) -> dict[str, Any]:
        return {"half": number // 2, "text": f"number {number}"}

    @task.kinetic(**LOCAL)
    def tell(text: str, run_id: str | None = None, params: dict[str, Any] | None = None) -> list[Any]:
        return [text, run_id, params]

    @task.kinetic(**LOCAL)
    def total(values: list[int], extra: int) -> int:
        return sum(values) + extra

    added = add.expand(left=[1, 2, 3])
    add.override(task_id="pairwise").expand_kwargs(pairs())
    add.override(task_id="partly").partial(right=100).expand(left=[1, 2])
    parts = split(total(added, extra=add.override(task_id="one")(left=5)))
    add.override(task_id="halves")(left=parts["half"], right=0)
    tell("{{ dag.dag_id }}")


@dag(schedule=None, catchup=False)
def classic():
    """The operator, mapped over what a decorator cannot map over."""
    KineticOperator.partial(task_id="describe", python_callable=describe, backend="local").expand(
        accelerator=["cpu", "gpu-l4"]
    )


def count(lines: int) -> str:
    for number in range(lines):
        print(f"line {number} of the job", flush=True)
        time.sleep(0.5)
    return "counted"


@dag(schedule=None, catchup=False)
def waiting():
    """A job longer than a worker's patience, with and without deferral."""
    task.kinetic(**LOCAL)(count)(30)
    task.kinetic(**LOCAL, deferrable=False, task_id="inline")(count)(10)


def fail_once(context: Any, result: Any = None) -> None:
    if context["ti"].try_number == 1:
        raise RuntimeError("after its job has ended")


@dag(schedule=None, catchup=False)
def ended():
    """A try that finds the job of the one before, which has ended."""
    task.kinetic(**LOCAL, **AGAIN, post_execute=fail_once)(count)(1)


@dag(schedule=None, catchup=False)
def crowded():
    """A job that runs when no other one does."""

    @task.kinetic(backend="local", accelerator=f"cpu:{core_count()}")
    def alone() -> None:
        time.sleep(2)

    alone()


@dag(schedule=None, catchup=False)
def failing():
    """Exceptions: Python's own, the user's own, a bad call."""

    @task.kinetic(**LOCAL, **AGAIN)
    def builtin() -> None:
        print("about to fail")
        raise ValueError("no luck")

    @task.kinetic(**LOCAL)
    def own() -> None:
        raise OwnError("not known to Airflow")

    @task.kinetic(**LOCAL, **AGAIN)
    def unpicklable(argument: Any) -> None:
        del argument

    @task.kinetic(**LOCAL, multiple_outputs=True)
    def boxes() -> dict[str, Any]:
        return {"box": Box(1)}

    @task.kinetic(**LOCAL)
    def crowd() -> list[Box]:
        return [Box(1), Box(2)]

    @task.kinetic(**LOCAL)
    def open_box(box: Box) -> int:
        return box.content

    @task.kinetic(**LOCAL)
    def share(number: int) -> float:
        if number == 1:
            raise OwnError("not to be shared")
        return 6 / number

    @task.kinetic(**LOCAL)
    def dies() -> None:
        import os

        print("last words", flush=True)
        os._exit(3)

    builtin()
    own()
    share.expand(number=[3, 1, 2])
    dies()
    open_box.expand(box=crowd())
    unpicklable(["fine", Unpicklable()])
    boxes()


@dag(schedule=None, catchup=False, params={"variable": "AIRFLOW__METRICS__STATSD_ON", "again": 1})
def templated():
    """Options that are known only when the task runs. It fails, which leaves the job to look at."""

    @task
    def limit() -> int:
        return 600

    @task.kinetic(
        **LOCAL,
        timeout=limit(),
        job_retries="{{ params.again }}",
        labels={"dag": "{{ dag.dag_id }}"},
        capture_env_vars=["{{ params.variable }}"],
    )
    def look(variable: str) -> None:
        import os

        print("looking", flush=True)
        raise ValueError(f"{variable} is {os.environ.get(variable)}")

    look("{{ params.variable }}")


@dag(schedule=None, catchup=False)
def references():
    """What XCom cannot carry goes from job to job."""

    @task.kinetic(**LOCAL)
    def pack(number: int) -> Box:
        return Box(number)

    @task.kinetic(**LOCAL)
    def scramble(text: str) -> bytes:
        return text.encode()

    @task.kinetic(**LOCAL)
    def unpack(boxes: list[Box], more: dict[str, bytes]) -> list[Any]:
        return [type(boxes[0]).__name__, [box.content for box in boxes], more["bytes"].decode()]

    unpack(pack.expand(number=[1, 2, 3]), {"bytes": scramble("hidden")})


@task.kinetic(**LOCAL, **AGAIN)
def long_job(seconds: float, name: str) -> str:
    print(f"{name} has begun", flush=True)
    time.sleep(seconds)
    return f"{name} is done"


@dag(schedule=None, catchup=False)
def marked():
    long_job(120, "marked")


@dag(schedule=None, catchup=False)
def cleared():
    long_job(120, "cleared")


@dag(schedule=None, catchup=False)
def held():
    long_job.override(deferrable=False)(120, "held")


@dag(schedule=None, catchup=False)
def held_and_killed():
    long_job.override(deferrable=False)(300, "held_and_killed")


def stand_still_with_a_new_job(context: Any) -> None:
    """Give this worker a store that no task has used, and let it stand still with its first job there."""
    root = Path(os.environ["AIRFLOW_HOME"], "unused")
    os.environ["KINETIC_LOCAL_STORE"] = str(root / "kinetic")

    def hold(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or threading.current_thread() is not threading.main_thread():
            return
        path = str(arguments[0])
        if not re.search(r"/cluster/.*\.json$", path) or not Path(path).exists():
            return
        (root / "created").touch()
        while True:
            time.sleep(0.05)

    sys.addaudithook(hold)


@dag(schedule=None, catchup=False)
def killed_with_a_new_job():
    held = long_job.override(deferrable=False, pre_execute=stand_still_with_a_new_job)
    held(300, "killed_with_a_new_job")


@dag(schedule=None, catchup=False)
def beside():
    long_job(900, "beside")


@dag(schedule=None, catchup=False)
def late():
    long_job.override(execution_timeout=timedelta(seconds=20), retries=0)(120, "late")


@dag(schedule=None, catchup=False)
def adopted():
    long_job.override(deferrable=False)(15, "adopted")


@dag(schedule=None, catchup=False)
def moved():
    long_job(25, "moved")


@dag(schedule=None, catchup=False)
def forgotten():
    long_job(300, "forgotten")


for each in (
    shapes,
    classic,
    waiting,
    ended,
    crowded,
    failing,
    templated,
    references,
    marked,
    cleared,
    held,
    held_and_killed,
    killed_with_a_new_job,
    beside,
    late,
    adopted,
    moved,
    forgotten,
):
    each()
