"""Airflow with teams: what one team's tasks note is neither lost to another's nor read by it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.airflow, pytest.mark.attack]

PROGRAM = """
from airflow.models import Variable
from airflow.models.team import Team
from airflow.utils.session import create_session

from airflow_provider import job_of_task, orphans
from airflow_provider.job_of_task import of_team
from airflow_provider.orphans import name_of, places_of, teams
from tests.airflow_provider.records_of_jobs import reference

with create_session() as session:
    session.add_all([Team(name="red"), Team(name="blue")])
assert teams() == ["", "blue", "red"], teams()
for team in ("red", "blue"):  # as the execution API writes what a task of the team sets
    place = orphans.UsedPlace(reference("job-0123456789abcdef", namespace=team))
    key = of_team(orphans.VARIABLE, team)
    Variable.set(key, orphans.with_place("", place, 50), team_name=team)
    Variable.set(of_team(job_of_task.VARIABLE, team), f"name of {team}", team_name=team)
for team in ("red", "blue"):
    assert [each.reference.namespace for each in places_of(team)] == [team], team
    assert name_of(team).startswith(f"name of {team}"), team
assert places_of("") == [] and name_of("") == ""
"""


def test_teams_do_not_overwrite_each_others_places(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__MULTI_TEAM": "True",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    for command in (["-m", "airflow", "db", "migrate"], ["-c", PROGRAM]):
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]


def test_the_team_is_in_the_context_of_a_task() -> None:
    from types import SimpleNamespace

    from airflow.sdk.api.datamodels._generated import DagRun

    from airflow_provider.job_of_task import TaskIdentity

    if "team_name" not in DagRun.model_fields:
        pytest.skip("this Airflow has no teams")
    names = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "max_tries": 0, "try_number": 1}
    run = DagRun.model_construct(dag_id="d", run_id="r", start_date=None, clear_number=3, team_name="red")
    identity = TaskIdentity.of({"ti": SimpleNamespace(**names), "dag_run": run})
    assert (identity.team, identity.clear_number) == ("red", 3)
