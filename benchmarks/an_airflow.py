"""A real Airflow for a benchmark, with one file of DAGs, and how long a run of one of them takes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from job_time import JobTime, processor_seconds

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "example_dags"))


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


@contextmanager
def airflow_with(
    dag_files: str, change: Callable[[dict[str, str]], object] = lambda _: None
) -> Iterator[Any]:
    """A `DemoAirflow`, started, whose DAGs are those of the files of that pattern beside this one; gone
    afterwards.

    `change` may change the environment of its components before they start.
    """
    from demo_airflow import DemoAirflow

    with TemporaryDirectory(prefix="kinetic-bench-") as name:
        home = Path(name).resolve()
        dags = home / "dags"
        dags.mkdir()
        for dag_file in HERE.glob(dag_files):
            shutil.copy(dag_file, dags)
        (dags / "pyproject.toml").write_text("[project]\nname = 'benchmark'\nversion = '0'\n")
        airflow = DemoAirflow(home, dags, extra={"XDG_CACHE_HOME": str(home / "cache")})
        change(airflow.environment)
        try:
            airflow.start()
            yield airflow
        finally:
            airflow.stop()


def one_run(airflow: Any, dag_id: str, jobs: JobTime, timeout: float) -> Run:
    """A run of a DAG, from its start to its end, which must be within `timeout` seconds."""
    before, busy_before, idle_before = jobs.seconds, *processor_seconds()
    run_id = airflow.run(dag_id)
    airflow.until(lambda: airflow.api.run_state(dag_id, run_id) in ("success", "failed"), timeout, dag_id)
    busy, idle = processor_seconds()
    busy, idle = busy - busy_before, idle - idle_before
    run = airflow.api.call("GET", f"/dags/{dag_id}/dagRuns/{quote(run_id)}")
    if run["state"] != "success":
        raise AssertionError(f"the run of {dag_id} has failed; nothing to compare")
    began, ended = (datetime.fromisoformat(run[name]) for name in ("start_date", "end_date"))
    taken = Run((ended - began).total_seconds(), jobs.seconds - before, busy / (busy + idle))
    print(
        f"{dag_id}: {taken.wall:.1f} s, jobs {taken.jobs:.1f}, processors {taken.busy:.0%} busy", flush=True
    )
    return taken
