"""The page reads what it shows, however many runs the DAG has had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.airflow


@pytest.mark.promise("scale: The page's query of XComs does not grow with the DAG's earlier runs")
@pytest.mark.timeout(120)
def test_earlier_runs_cost_the_page_nothing(tmp_path: Path) -> None:
    """Of a run, a task in its latest ten runs, and all that runs: after fifty runs as after ten."""
    own = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    program = Path(__file__).with_name("page_steps.py")
    done = subprocess.run(
        [sys.executable, str(program), "10", "60"],
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    found = {subject: [number for number, _ in looks] for subject, looks in told.items()}
    assert found == {"run": [20, 20], "task": [10, 10], "live": [0, 0]}
    for subject, ((_, before), (_, after)) in told.items():
        assert after < 1.1 * before + 200, subject
