"""Airflow's share of a batch task of 10,000 inputs, in a real Airflow, with warm workers of this machine.

    .venv-airflow/bin/python benchmarks/batch_run.py [INPUTS]

The task's inputs run four at a time on warm workers, and a plain task after it checks every value. Compared
is the same DAG with an operator that only defers and is ended by its trigger, measured for as many seconds.

* Airflow's share: processor time of scheduler, triggerer and API server with all processes below them, so
  with the workers and both legs of the task, beyond that of the compared run. The processes of the jobs are
  detached and not counted, nor is the process of the task that checks the values, shown beside.
* Rows: of all tables of Airflow's database, after the run less before, beyond those of the compared run.
* Memory: proportional set size (PSS) of the triggerer and its children, at most during the run, looked at
  every other second, beyond what they had before the first batch of all, so with what a batch's trigger
  imports. An operator that only defers has run before, and one whose trigger asks Airflow something: for the
  first such trigger a triggerer builds Airflow's execution API. What that takes is shown.

A batch of ten inputs runs first; its share is what a new Airflow has once, and is shown, too.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from datetime import datetime
from typing import Any

from airflow_share import PeakMemory, cost, memory
from an_airflow import airflow_with
from measuring import Verdict, report

_INPUTS = 10_000
_TIMEOUT = 1800.0


def measure(count: int) -> list[Verdict]:
    def change(environment: dict[str, str]) -> None:
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each leg compiles what it imports
        environment["BENCHMARK_INPUTS"] = str(count)
        environment["AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME"] = "1"  # Airflow's default

    with airflow_with("batch_run_dags.py", change) as airflow:
        triggerer = airflow.processes["triggerer"].pid
        idle = cost(airflow, "ended", 0, _TIMEOUT)
        bare = memory(triggerer)
        asking = cost(airflow, "asking", 0, _TIMEOUT)
        held = memory(triggerer)
        first = cost(airflow, "batch_10", 0, _TIMEOUT)
        once = memory(triggerer) - held
        with PeakMemory(triggerer) as peak:
            ours = cost(airflow, f"batch_{count}", 0, _TIMEOUT)
        plain = cost(airflow, "ended", ours.wall, _TIMEOUT)
        short = cost(airflow, "ended", first.wall, _TIMEOUT)
    by_part = {name: spent - plain.seconds[name] for name, spent in ours.seconds.items()}
    by_part["scheduler"] -= ours.checked - plain.checked
    parts = ", ".join(f"{name} {each:.1f}" for name, each in by_part.items())
    told = f"{parts}; {ours.total:.1f} and {plain.total:.1f} in {ours.wall:.0f} s each"
    rows = more_rows(ours.rows, plain.rows)
    named = ", ".join(f"{table} {number}" for table, number in rows.items())
    work, check = (lasted(ours.instances[name]) for name in ("work", "check"))
    print(f"the task took {work:.0f} s, the check {check:.0f} s, {ours.checked:.1f} of them of a processor")
    more = asking.seconds["triggerer"] - idle.seconds["triggerer"]
    print(f"a first trigger that asks Airflow: {more:.1f} s of the triggerer's, {held - bare:.0f} MiB")
    print(f"a first batch, of ten inputs: {first.total - short.total:.1f} processor seconds, {once:.0f} MiB")
    return [
        Verdict(f"{count} inputs in one task: Airflow's share", ours.total - plain.total, 5.0, "s", told),
        Verdict("the same: rows of its database", sum(rows.values()), 5, "", named),
        Verdict("the same: memory of the triggerer", peak.most - held, 60, "MiB"),
    ]


def more_rows(ours: Counter[str], theirs: Counter[str]) -> dict[str, int]:
    """Return by table how many more rows ours are, without tables that have as many."""
    return {name: ours[name] - theirs[name] for name in sorted(ours) if ours[name] != theirs[name]}


def lasted(instance: dict[str, Any]) -> float:
    """Seconds of a task instance by Airflow's own times."""
    began, ended = (datetime.fromisoformat(instance[name]) for name in ("start_date", "end_date"))
    return (ended - began).total_seconds()


if __name__ == "__main__":
    load = os.getloadavg()[0]
    status = report(measure([*map(int, sys.argv[1:]), _INPUTS][0]))
    print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    sys.exit(status)
