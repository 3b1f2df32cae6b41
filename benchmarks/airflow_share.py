"""What a run of a DAG costs Airflow: processor time by component, rows of its database, memory."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from job_time import Sampler
from mapped_pods import processor_time

COMPONENTS = ("scheduler", "triggerer", "api-server")
"""Those whose processor time is counted. Workers of the LocalExecutor, and the tasks that they run, are
processes below the scheduler. The DAG processor is left out: it parses the same files whatever runs.
"""
_PAUSE = 0.5
_SETTLED = 3.0
"""Seconds after the end of a run in which Airflow may still work for it."""


@dataclass(frozen=True)
class Cost:
    """`wall`: seconds of the whole measurement. `seconds`: processor time by component, without the process
    of the task `check`, whose time is `checked`. `rows`: by table. `instances`: by task.
    """

    wall: float
    seconds: dict[str, float]
    checked: float
    rows: Counter[str]
    instances: dict[str, dict[str, Any]]

    @property
    def total(self) -> float:
        return sum(self.seconds.values()) - self.checked


def cost(airflow: Any, dag_id: str, at_least: float, timeout: float) -> Cost:
    """Measure a run that must succeed, for at least so many seconds: an Airflow that waits works, too.

    A task `check` returns the processor seconds of its own process. The run's `conf` says for how many
    seconds a task may defer, so that the run ends in time.
    """
    pids = {name: airflow.processes[name].pid for name in COMPONENTS}
    rows, before = rows_of(airflow), {name: processor_time(pid) for name, pid in pids.items()}
    began = time.monotonic()
    run_id = airflow.run(dag_id, {"seconds": max(1.0, at_least / 2)})
    _until_ended(airflow, dag_id, run_id, began + timeout)
    time.sleep(max(_SETTLED, began + at_least - time.monotonic()))
    wall = time.monotonic() - began
    spent = {name: processor_time(pid) - before[name] for name, pid in pids.items()}
    made = rows_of(airflow)
    made.subtract(rows)
    instances = {each["task_id"]: each for each in airflow.api.task_instances(dag_id, run_id)}
    states = {name: (each["state"], each["try_number"]) for name, each in instances.items()}
    if set(states.values()) != {("success", 1)}:
        raise AssertionError(f"the run of {dag_id} is nothing to compare: {states}")
    found = Cost(wall, spent, float(airflow.api.xcom(instances["check"])), made, instances)
    parts = ", ".join(f"{name} {each:.1f}" for name, each in spent.items())
    print(
        f"{dag_id}: {wall:.0f} s; processor seconds: {parts}, of which check {found.checked:.1f}", flush=True
    )
    return found


def _until_ended(airflow: Any, dag_id: str, run_id: str, deadline: float) -> None:
    """Wait for the end of a run as its database tells it: questions to the API server would be counted."""
    asked = "SELECT state FROM dag_run WHERE run_id = ?"
    while _asked(airflow, asked, run_id)[0][0] in ("queued", "running"):
        if time.monotonic() > deadline:
            raise AssertionError(f"the run of {dag_id} has not ended in time")
        time.sleep(_PAUSE)


def _asked(airflow: Any, query: str, *values: str) -> list[tuple[Any, ...]]:
    place = f"file:{airflow.home}/airflow.db?mode=ro"
    with closing(sqlite3.connect(place, uri=True, timeout=60)) as database:
        return database.execute(query, values).fetchall()


def rows_of(airflow: Any) -> Counter[str]:
    """Count the rows of every table of its database."""
    names = [name for (name,) in _asked(airflow, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    return Counter({name: _asked(airflow, f'SELECT count(*) FROM "{name}"')[0][0] for name in names})


def memory(pid: int) -> float:
    """MiB of a process and its descendants; what several share is shared out among them (PSS)."""
    return sum(map(_own_memory, _tree(pid))) / 1024


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = [each.read_text().split() for each in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # it has ended meanwhile
        return
    for listed in children:
        for child in listed:
            yield from _tree(int(child))


def _own_memory(pid: int) -> int:
    """KiB of one process, none if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


class PeakMemory(Sampler):
    """Looks at the memory of a process and its descendants every other second; `most` is in MiB."""

    def __init__(self, pid: int) -> None:
        super().__init__(2.0)
        self.most = 0.0
        self._pid = pid

    def look(self) -> None:
        self.most = max(self.most, memory(self._pid))
