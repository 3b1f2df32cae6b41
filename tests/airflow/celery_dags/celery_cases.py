"""DAGs of the tests with CeleryExecutor: their jobs end when the file `go` is in their folder."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

FOLDER = Path(os.environ["AIRFLOW_HOME"], "signs")
JOB: dict[str, Any] = {"accelerator": "cpu", "backend": "local"}


def wait_for_sign(number: int, folder: str) -> int:
    """Note the execution, wait for the file `go`, return the number."""
    import os
    import time
    from pathlib import Path

    place = Path(folder)
    (place / f"execution-{number}-{os.getpid()}-{time.time_ns()}").touch()
    while not (place / "go").exists():
        time.sleep(0.2)
    return number


def _folder(name: str) -> str:
    (FOLDER / name).mkdir(parents=True, exist_ok=True)
    return str(FOLDER / name)


@dag(schedule=None, catchup=False, max_active_tasks=100)
def hundred():
    """A hundred deferred tasks, none of which may be tried twice."""
    waiting = task.kinetic(**JOB)(wait_for_sign)
    waiting.partial(folder=_folder("hundred")).expand(number=list(range(100)))


@dag(schedule=None, catchup=False, max_active_tasks=100)
def scale_in():
    """More tasks than the workers have slots for, each with a worker that waits for its job."""
    again = {"retries": 1, "retry_delay": timedelta(seconds=1)}
    waiting = task.kinetic(deferrable=False, **again, **JOB)(wait_for_sign)
    waiting.partial(folder=_folder("scale_in")).expand(number=list(range(16)))


@dag(schedule=None, catchup=False)
def queues():
    """A task for each worker: both serve a queue that the other does not."""
    for name in ("first", "second"):
        task.kinetic(task_id=name, queue=name, **JOB)(lambda: "done")()


@dag(schedule=None, catchup=False)
def version():
    """The version of this package that a worker has."""

    @task
    def installed() -> list[str]:
        from importlib.metadata import version

        import kinetic_core

        return [version("airflow-provider-kinetic"), kinetic_core.__version__]

    installed()


hundred()
scale_in()
queues()
version()
