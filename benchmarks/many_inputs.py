"""A task expanded over 1,000 inputs: every value arrives once, and an input costs what it does among 200.

    .venv-airflow/bin/python benchmarks/many_inputs.py

One Airflow with SQLite, which all processes write to, and the local backend: ten minutes on two cores.
"""

from __future__ import annotations

import os
import sys
from typing import Any
from urllib.parse import quote

from an_airflow import airflow_with, one_run
from job_time import JobTime
from measuring import Verdict, report

SIZES = (200, 1000)
_SECONDS = 1800.0


def measure() -> list[Verdict]:
    with airflow_with("many_dags.py") as airflow, JobTime() as jobs:
        walls = [one_run(airflow, f"many_{size}", jobs, _SECONDS).wall / size for size in SIZES]
        totals = [_total(airflow, size) for size in SIZES]
    expected = [size * (size + 1) // 2 for size in SIZES]
    if totals != expected:
        raise AssertionError(f"the values of all inputs sum up to {totals}, not {expected}")
    note = f"{walls[0]:.2f} s and {walls[1]:.2f} s an input"
    return [Verdict("an input of 1,000 / of 200", walls[1] / walls[0], 1.3, "x", note)]


def _total(airflow: Any, size: int) -> int:
    """What the task after the mapped one has made of its values."""
    dag_id = f"many_{size}"
    (run,) = airflow.api.call("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"]
    path = f"/dags/{dag_id}/dagRuns/{quote(run['dag_run_id'])}/taskInstances/total/xcomEntries/return_value"
    return int(airflow.api.call("GET", path)["value"])


if __name__ == "__main__":
    load = os.getloadavg()[0]
    status = report(measure())
    print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    sys.exit(status)
