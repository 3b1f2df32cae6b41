"""A run of 200 mapped instances of a trivial function, against the same DAG whose task merely defers.

    .venv-airflow/bin/python benchmarks/mapped_run.py

One Airflow, the two DAGs by turns, each three times; the quicker run counts. The jobs' own processes share
the machine with Airflow: the time that the processors gave them is measured, and taken out.
"""

from __future__ import annotations

import os
import sys

from an_airflow import airflow_with, one_run
from job_time import JobTime
from measuring import Verdict, report

_SECONDS = 600.0
_RUNS = 3


def measure() -> list[Verdict]:
    with airflow_with("mapped_dags.py") as airflow, JobTime() as jobs:
        pairs = [
            [one_run(airflow, name, jobs, _SECONDS) for name in ("waiting", "kinetic")] for _ in range(_RUNS)
        ]
    plain = min(waiting.wall for waiting, _ in pairs)
    ours = min((kinetic for _, kinetic in pairs), key=lambda run: run.without_jobs)
    note = (
        f"{plain:.0f} s; {ours.wall:.0f} s with the jobs' {ours.jobs:.0f} processor seconds, "
        f"processors {ours.busy:.0%} busy"
    )
    ratio = ours.without_jobs / plain
    return [Verdict("200 mapped @task.kinetic / 200 that defer and return", ratio, 1.3, "x", note)]


if __name__ == "__main__":
    load = os.getloadavg()[0]
    status = report(measure())
    print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    sys.exit(status)
