"""A run of 200 mapped instances of a trivial function, against the same DAG whose task merely defers.

    .venv-airflow/bin/python benchmarks/mapped_run.py

One Airflow, one DAG after the other, each twice; the quicker run counts. The jobs' own processes share the
machine with Airflow and are not taken out.
"""

from __future__ import annotations

import os
import shutil
import sys
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from measuring import Verdict, report

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "example_dags"))
_SECONDS = 600.0
_RUNS = 2


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
            taken = {
                dag_id: [seconds(airflow, dag_id) for _ in range(_RUNS)] for dag_id in ("waiting", "kinetic")
            }
        finally:
            airflow.stop()
    plain, ours = min(taken["waiting"]), min(taken["kinetic"])
    note = f"{ours:.0f} s against {plain:.0f} s"
    return [Verdict("200 mapped @task.kinetic / 200 that defer and return", ours / plain, 1.3, "x", note)]


def seconds(airflow: Any, dag_id: str) -> float:
    """How long a run of a DAG takes, by Airflow's own times."""
    run_id = airflow.run(dag_id)
    path = f"/dags/{dag_id}/dagRuns/{run_id}"
    airflow.until(lambda: airflow.api.run_state(dag_id, run_id) in ("success", "failed"), _SECONDS, dag_id)
    run = airflow.api.call("GET", path)
    if run["state"] != "success":
        raise AssertionError(f"the run of {dag_id} has failed; nothing to compare")
    began, ended = (datetime.fromisoformat(run[name]) for name in ("start_date", "end_date"))
    return (ended - began).total_seconds()


if __name__ == "__main__":
    load = os.getloadavg()[0]
    status = report(measure())
    print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    sys.exit(status)
