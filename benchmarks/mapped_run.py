"""A run of 200 mapped instances of a trivial function, against the same DAG whose task merely defers.

    .venv-airflow/bin/python benchmarks/mapped_run.py

One Airflow, the two DAGs by turns, each three times; the quicker run counts. The jobs' own processes share
the machine with Airflow: the time that the processors gave them is measured, and taken out.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from job_time import JobTime, processor_seconds
from measuring import Verdict, report

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "example_dags"))
_SECONDS = 600.0
_RUNS = 3


@dataclass(frozen=True)
class Run:
    """`wall`: seconds by Airflow's own times. `jobs`: processor seconds of job processes. `busy`: a share."""

    wall: float
    jobs: float
    busy: float

    @property
    def without_jobs(self) -> float:
        """Seconds the run would have taken if the jobs ran elsewhere: what they took was taken from others
        only while there was no processor to spare.
        """
        return self.wall - self.jobs * self.busy / (os.cpu_count() or 1)


def measure() -> list[Verdict]:
    from demo_airflow import DemoAirflow

    with TemporaryDirectory(prefix="kinetic-bench-") as name:
        home = Path(name).resolve()
        (home / "dags").mkdir()
        shutil.copy(HERE / "mapped_dags.py", home / "dags")
        (home / "dags" / "pyproject.toml").write_text("[project]\nname = 'mapped'\nversion = '0'\n")
        airflow = DemoAirflow(home, home / "dags", extra={"XDG_CACHE_HOME": str(home / "cache")})
        try:
            airflow.start()
            with JobTime() as jobs:
                pairs = [
                    [one_run(airflow, name, jobs) for name in ("waiting", "kinetic")] for _ in range(_RUNS)
                ]
        finally:
            airflow.stop()
    plain = min(waiting.wall for waiting, _ in pairs)
    ours = min((kinetic for _, kinetic in pairs), key=lambda run: run.without_jobs)
    note = (
        f"{plain:.0f} s; {ours.wall:.0f} s with the jobs' {ours.jobs:.0f} processor seconds, "
        f"processors {ours.busy:.0%} busy"
    )
    ratio = ours.without_jobs / plain
    return [Verdict("200 mapped @task.kinetic / 200 that defer and return", ratio, 1.3, "x", note)]


def one_run(airflow: Any, dag_id: str, jobs: JobTime) -> Run:
    """A run of a DAG, from its start to its end."""
    before, busy_before, idle_before = jobs.seconds, *processor_seconds()
    run_id = airflow.run(dag_id)
    path = f"/dags/{dag_id}/dagRuns/{run_id}"
    airflow.until(lambda: airflow.api.run_state(dag_id, run_id) in ("success", "failed"), _SECONDS, dag_id)
    busy, idle = processor_seconds()
    busy, idle = busy - busy_before, idle - idle_before
    run = airflow.api.call("GET", path)
    if run["state"] != "success":
        raise AssertionError(f"the run of {dag_id} has failed; nothing to compare")
    began, ended = (datetime.fromisoformat(run[name]) for name in ("start_date", "end_date"))
    taken = Run((ended - began).total_seconds(), jobs.seconds - before, busy / (busy + idle))
    print(
        f"{dag_id}: {taken.wall:.1f} s, jobs {taken.jobs:.1f}, processors {taken.busy:.0%} busy", flush=True
    )
    return taken


if __name__ == "__main__":
    load = os.getloadavg()[0]
    status = report(measure())
    print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    sys.exit(status)
