"""Airflow with teams: what one team's tasks note is neither lost to another's nor read by it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from conftest import Cases

pytestmark = [pytest.mark.airflow, pytest.mark.attack]

PROGRAM = """
from airflow.models import Variable
from airflow.models.team import Team
from airflow.utils.session import create_session

from airflow_provider.deployment import NAME, PLACES, UsedPlace, of_team, with_place
from airflow_provider.ui.database import ensure_name, places_of, teams
from tests.airflow_provider.records_of_jobs import reference

with create_session() as session:
    session.add_all([Team(name="red"), Team(name="blue")])
assert teams() == ["", "blue", "red"], teams()
for team in ("red", "blue"):  # as the execution API writes what a task of the team sets
    place = UsedPlace(reference("job-0123456789abcdef", namespace=team))
    key = of_team(PLACES, team)
    Variable.set(key, with_place("", place, 50), team_name=team)
    Variable.set(of_team(NAME, team), f"name of {team}", team_name=team)
for team in ("red", "blue"):
    assert [each.reference.namespace for each in places_of(team)] == [team], team
    assert ensure_name(team).startswith(f"name of {team}"), team
assert places_of("") == [] and "name of" not in ensure_name("")
"""


@pytest.mark.promise("scale: Team names")
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


TEAMS = ("red", "blue")
DAG = """
from airflow.sdk import dag, task
JOB = {"accelerator": "cpu", "backend": "local", "deferrable": False}


@dag(dag_id="of_TEAM", schedule=None)
def passes_on():
    @task.kinetic(**JOB)
    def make():
        return b"of TEAM"  # too odd for an XCom, which gets a signed reference

    @task.kinetic(**JOB)
    def use(made):
        return made.decode()

    use(make())


@dag(dag_id="left_by_TEAM", schedule=None)
def leaves():
    @task.kinetic(**JOB)
    def long_job():
        import time

        print("it has begun", flush=True)
        time.sleep(600)

    long_job()


passes_on()
leaves()
"""
VARIABLES = """
import json
from airflow.models import Variable
from airflow.utils.session import create_session

with create_session() as session:
    print(json.dumps([(each.key, each.team_name, each.val) for each in session.query(Variable)]))
"""


def told_by(airflow: Any, *command: str) -> str:
    """What a command in the environment of Airflow's components prints last."""
    told = subprocess.run(
        [sys.executable, *command], env=airflow.environment, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr[-3000:]
    return told.stdout.strip().rpartition("\n")[2]


@pytest.fixture(scope="module")
def of_teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    """An Airflow of two teams, each with a bundle of its own, and one triggerer of no team."""
    from airflow.models.trigger import Trigger
    from demo_airflow import DemoAirflow

    if not hasattr(Trigger, "team_name"):
        pytest.skip("this Airflow has no teams")
    home = tmp_path_factory.mktemp("teams").resolve()
    bundles = []
    for team in TEAMS:
        (home / team).mkdir()
        (home / team / f"dags_of_{team}.py").write_text(DAG.replace("TEAM", team))
        kind = "airflow.dag_processing.bundles.local.LocalDagBundle"
        bundles.append(
            {"name": team, "classpath": kind, "kwargs": {"path": str(home / team)}, "team_name": team}
        )
    settings = {
        "AIRFLOW__CORE__MULTI_TEAM": "True",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
        "AIRFLOW__KINETIC__ORPHAN_INTERVAL": "5",
        "XDG_CACHE_HOME": str(home / "cache"),
    }
    airflow = DemoAirflow(home, home / "none", extra=settings)
    told_by(airflow, "-m", "airflow", "db", "migrate")
    for team in TEAMS:
        told_by(airflow, "-m", "airflow", "teams", "create", team)
    try:
        airflow.start()
        yield Cases(airflow)
    finally:
        airflow.stop(patience=0)


@pytest.mark.promise("scale: Team names")
def test_tasks_of_teams_record_beside_each_other(of_teams: Cases) -> None:
    """Twice each: what one team has recorded, the tasks of the other neither replace nor add to."""
    for team in TEAMS * 2:
        of_teams.runs.pop(f"of_{team}", None)
        assert of_teams.end(f"of_{team}") == "success", of_teams.log(f"of_{team}", "make")
        assert of_teams.value(f"of_{team}", "use") == f"of {team}"
    found = json.loads(told_by(of_teams.airflow, "-c", VARIABLES))
    for team in TEAMS:
        values = {key: value for key, whose, value in found if whose == team}
        secret = values.pop(f"kinetic_reference_secret_{team}")
        assert set(values) == {
            f"kinetic_deployment_{team}",
            f"kinetic_places_{team}",
            f"kinetic_reference_secret_{secret}",
        }
    assert [key for key, whose, _ in found if whose not in TEAMS] == ["kinetic_deployment"]
    assert len(found) == 9


@pytest.mark.promise("scale: Team names")
def test_jobs_that_teams_have_left_end(of_teams: Cases) -> None:
    """Their workers are dead and their tasks ended: the API server finds them by what each team has noted."""
    begun = {}
    for dag_id in [f"left_by_{team}" for team in TEAMS]:
        of_teams.start(dag_id)
        logged = partial(of_teams.log, dag_id, "long_job")
        of_teams.reach(dag_id, "long_job", lambda _, log=logged: "it has begun" in log(), "to run")
        begun[dag_id] = of_teams.instance(dag_id, "long_job")
    for dag_id, instance in begun.items():
        os.kill(of_teams.task_process(instance), signal.SIGKILL)
        task = f"/dags/{dag_id}/dagRuns/{instance['dag_run_id']}/taskInstances/long_job"
        try:
            of_teams.api.call("PATCH", task, {"new_state": "failed"})
        except HTTPError as error:
            if error.code != 409:  # Airflow has seen its worker's death before
                raise
    for dag_id in begun:
        jobs = partial(of_teams.jobs, dag_id, "long_job")
        of_teams.reach(dag_id, "long_job", lambda _, states=jobs: states() == ["CANCELLED"], "to end its job")


@pytest.mark.promise("scale: Team names")
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
