"""A real Airflow whose triggerer loads no plugin of ours: jobs that tasks have left end all the same."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE, Cases

from kinetic_core import JobStatus
from kinetic_core.backends.base import backend_of
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.connections import default_connections
from kinetic_core.jobs.observe import find, observe

pytestmark = pytest.mark.airflow

HERE = Path(__file__).parent


MAKING = """
from concurrent.futures import ThreadPoolExecutor

from airflow_provider.ui.database import ensure_name

with ThreadPoolExecutor(8) as pool:
    names = set(pool.map(ensure_name, [""] * 8))
assert len(names) == 1 and "" not in names, names
assert {ensure_name("")} == names
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    """An Airflow of its own, so that no task is deferred unless a test says so."""
    from demo_airflow import DemoAirflow

    home = tmp_path_factory.mktemp("orphans").resolve()
    project = home / "project"
    shutil.copytree(HERE / "orphan_dags", project / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    (project / "pyproject.toml").write_text("[project]\nname = 'orphans'\nversion = '0'\n")
    folders = [str(HERE / "without_plugins"), os.environ.get("PYTHONPATH")]
    extra = {"XDG_CACHE_HOME": str(home / "cache"), "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    airflow = DemoAirflow(home, project / "dags", extra=extra)
    try:
        airflow.start()
        yield Cases(airflow)
    finally:
        airflow.stop(patience=0)


def begun(cases: Cases, dag_id: str, state: str = "running") -> tuple[dict[str, Any], str]:
    """Start a DAG; its task instance with a job that runs, and the job's id."""
    cases.start(dag_id)

    def ready(instance: dict[str, Any]) -> Any:
        log = cases.log(dag_id, "long_job")
        found = re.findall(r"job-[0-9a-f]{16}", log) if "it has begun" in log else []
        return (instance, found[0]) if found and instance["state"] == state else None

    found: tuple[dict[str, Any], str] = cases.reach(dag_id, "long_job", ready, f"to be {state} with a job")
    return found


def leave(cases: Cases, instance: dict[str, Any]) -> None:
    """Let the worker die before it hears that its task is over, and delete the run."""
    worker = cases.task_process(instance)
    os.kill(worker, signal.SIGSTOP)
    run = f"/dags/{instance['dag_id']}/dagRuns/{instance['dag_run_id']}"
    cases.api.call("PATCH", f"{run}/taskInstances/long_job", {"new_state": "failed"})
    os.kill(worker, signal.SIGKILL)
    cases.airflow.until(lambda: cases.api.call("GET", run)["state"] == "failed", PATIENCE, "the run to fail")
    cases.api.call("DELETE", run)


def cancelled(cases: Cases, job_id: str, store: str = "kinetic") -> bool:
    """Wait for the end of the job."""
    reference = find(LocalBackend(cases.airflow.home / store), job_id)
    assert reference is not None
    backend = backend_of(reference, default_connections())
    cases.airflow.until(
        lambda: observe(backend, reference).is_terminal, PATIENCE, f"{job_id} to be cancelled"
    )
    return observe(backend, reference).status is JobStatus.CANCELLED


def printed(cases: Cases, component: str) -> str:
    return Path(cases.airflow.home, "components", f"{component}.log").read_text()


@pytest.mark.promise("scale: Orphans are found though no plugin is loaded in the triggerer")
@pytest.mark.attack
def test_a_deleted_runs_job_ends_while_no_task_is_deferred(plain: Cases) -> None:
    """The triggerer knows nothing of Kinetic: the API server searches."""
    instance, job_id = begun(plain, "left")
    leave(plain, instance)
    assert cancelled(plain, job_id)
    assert f"cancelling {job_id}" in printed(plain, "api-server")


@pytest.mark.promise("scale: Orphans are found though no plugin is loaded in the triggerer")
@pytest.mark.attack
def test_a_trigger_ends_what_others_left_elsewhere(plain: Cases) -> None:
    """The API server's settings do not name the store; a triggerer looks wherever a task has noted."""
    deferred, its_own = begun(plain, "deferred", "deferred")
    instance, job_id = begun(plain, "left_elsewhere")
    leave(plain, instance)
    assert cancelled(plain, job_id, "another/kinetic")
    assert f"cancelling {job_id}" not in printed(plain, "api-server")
    assert plain.jobs("deferred", "long_job") == ["RUNNING"]
    run = f"/dags/deferred/dagRuns/{deferred['dag_run_id']}"
    plain.api.call("PATCH", f"{run}/taskInstances/long_job", {"new_state": "failed"})
    assert cancelled(plain, its_own)


@pytest.mark.attack
def test_servers_that_start_together_make_one_name(tmp_path: Path) -> None:
    """Jobs with another name would be found by nobody."""
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    for command in (["-m", "airflow", "db", "migrate"], ["-c", MAKING]):
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.promise("scale: Orphans are found though no plugin is loaded in the triggerer")
def test_the_triggerer_has_imported_no_plugin_and_no_page(plain: Cases) -> None:
    refused = Path(plain.airflow.home, "refused").read_text().split()
    assert set(refused) == {"airflow_provider.plugins"}
