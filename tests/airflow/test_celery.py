"""Tasks under CeleryExecutor: on two workers, when one is lost, and over an upgrade of the provider."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, Cases

from kinetic_core.backends.base import backend_of
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.connections import default_connections
from kinetic_core.jobs.observe import find, observe

pytestmark = [pytest.mark.celery, pytest.mark.timeout(5400)]
ROOT = HERE.parent.parent
PATIENCE = 2400.0
"""Seconds for a hundred tasks on two cores that others use too."""
NEWER = "0.1.99"


@pytest.fixture(scope="module")
def celery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    """An Airflow with the DAGs of `celery_dags/` and `fan_out`; nothing of it lives on."""
    from celery_airflow import CeleryAirflow
    from demo_processes import processes_of

    home = tmp_path_factory.mktemp("celery").resolve()
    dags = home / "project"
    shutil.copytree(HERE / "celery_dags", dags, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "example_dags" / "fan_out.py", dags)
    (dags / "pyproject.toml").write_text("[project]\nname = 'celery-cases'\nversion = '0'\n")
    airflow = CeleryAirflow(home, dags, extra={"XDG_CACHE_HOME": str(home / "cache")})
    try:
        airflow.start()
        yield Cases(airflow)
    finally:
        airflow.stop()
    assert processes_of(home) == set()


def jobs(cases: Cases, before: Collection[str] = ()) -> dict[str, str]:
    """The states of all jobs there ever were, by their ids, but for those of before."""
    backend = LocalBackend(cases.airflow.home / "kinetic")
    handles = (cases.airflow.home / "kinetic" / "store").glob("jobs/*/handle.json")
    found = {each.parent.name: find(backend, each.parent.name) for each in handles}
    return {
        job_id: observe(backend_of(reference, default_connections()), reference).status.value
        for job_id, reference in found.items()
        if reference is not None and job_id not in before
    }


def have_one_job_each(cases: Cases, dag_id: str, task_id: str, before: Collection[str]) -> None:
    """Every instance of a task has had one job, which has succeeded, and there was no other job."""
    records = cases.values(dag_id, task_id, "kinetic_job")
    ids = [record["reference"]["job_id"] for record in records]
    assert jobs(cases, before) == dict.fromkeys(ids, "SUCCEEDED")
    assert len(set(ids)) == len(cases.instances(dag_id, task_id))


def executions(cases: Cases, dag_id: str) -> Counter[int]:
    """How often the user's function began, by its number."""
    signs = (cases.airflow.home / "signs" / dag_id).glob("execution-*")
    return Counter(int(each.name.split("-")[1]) for each in signs)


def states(cases: Cases, dag_id: str) -> Counter[str]:
    """The states of a run's task instances."""
    return Counter(each["state"] for each in cases.instances(dag_id, "wait_for_sign"))


def until_states(cases: Cases, dag_id: str, wanted: Mapping[str, int]) -> None:
    """Wait for these states, asking seldom: many task instances keep the API server busy."""

    def ask() -> bool:
        time.sleep(5)
        return states(cases, dag_id) == wanted

    cases.airflow.until(ask, PATIENCE, f"tasks of {dag_id} to be {dict(wanted)}")


def give_sign(cases: Cases, dag_id: str) -> None:
    (cases.airflow.home / "signs" / dag_id / "go").touch()


def job_processes(cases: Cases) -> set[int]:
    """The living processes of jobs."""
    from demo_processes import carried_by, processes_of

    mark = f"KINETIC_STORE=file://{cases.airflow.home}"
    pids = processes_of(cases.airflow.home)
    return {pid for pid in pids if any(word.startswith(mark) for word in carried_by(pid))}


def ends_with_one_job_each(cases: Cases, dag_id: str, count: int, before: Collection[str]) -> None:
    """Wait for the run: each of `count` tasks has succeeded with its one job, of which nothing is left."""
    assert cases.end(dag_id, PATIENCE) == "success", states(cases, dag_id)
    assert states(cases, dag_id) == Counter(success=count)
    have_one_job_each(cases, dag_id, "wait_for_sign", before)
    assert executions(cases, dag_id) == Counter(range(count))
    assert cases.values(dag_id, "wait_for_sign") == [
        each["map_index"] for each in cases.instances(dag_id, "wait_for_sign")
    ]
    cases.airflow.until(lambda: not job_processes(cases), 60, "no process of a job to be left")


@pytest.mark.promise("scale: CeleryExecutor, two workers, Redis, PostgreSQL: the fan-out")
def test_the_fan_out_runs_on_celery(celery: Cases) -> None:
    before = set(jobs(celery))
    assert celery.end("fan_out", PATIENCE) == "success"
    assert celery.value("fan_out", "add_up") == 63_951
    have_one_job_each(celery, "fan_out", "count_primes", before)


@pytest.mark.promise("scale: CeleryExecutor, two workers, Redis, PostgreSQL: the fan-out")
def test_each_worker_runs_tasks_of_its_queue(celery: Cases) -> None:
    assert celery.end("queues", PATIENCE) == "success"
    for worker, task_id in (("celery-1", "first"), ("celery-2", "second")):
        told = (celery.airflow.logs / f"{worker}.log").read_text(errors="replace")
        ran = [line for line in told.splitlines() if "Executing workload" in line and "queues" in line]
        assert [f"task_id='{task_id}'" in line for line in ran] == [True]


@pytest.mark.promise("scale: … scale-in")
def test_tasks_of_a_worker_that_is_killed_adopt_their_jobs(celery: Cases) -> None:
    """One of two is lost while its tasks wait for their jobs and others wait for a slot."""
    before = set(jobs(celery))
    celery.start("scale_in")
    until_states(celery, "scale_in", {"running": 12, "queued": 4})
    celery.airflow.until(lambda: len(jobs(celery, before)) == 12, PATIENCE, "their jobs to be there")
    celery.airflow.end_worker("celery-1", signal.SIGKILL)
    give_sign(celery, "scale_in")
    ends_with_one_job_each(celery, "scale_in", 16, before)
    tries = Counter(each["try_number"] for each in celery.instances("scale_in", "wait_for_sign"))
    assert tries == Counter({1: 10, 2: 6})
    celery.airflow.start_workers()


def newer_version(folder: Path) -> Path:
    """A folder with this package in a later version, as an installation of it would be."""
    for name in ("kinetic_core", "airflow_provider"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    init = folder / "kinetic_core" / "__init__.py"
    found = distribution("airflow-provider-kinetic")
    init.write_text(init.read_text().replace(f'"{found.version}"', f'"{NEWER}"'))
    metadata = folder / f"airflow_provider_kinetic-{NEWER}.dist-info"
    metadata.mkdir()
    told = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    assert f"\nVersion: {found.version}\n" in told
    (metadata / "METADATA").write_text(told.replace(f"Version: {found.version}", f"Version: {NEWER}", 1))
    (metadata / "entry_points.txt").write_text(found.read_text("entry_points.txt") or "")
    return folder


def installed(cases: Cases) -> tuple[list[str], str]:
    """The versions of this package that a worker and the API server have."""
    cases.runs.pop("version", None)
    assert cases.end("version", PATIENCE) == "success"
    providers = cases.api.call("GET", "/providers?limit=100")["providers"]
    (ours,) = (each for each in providers if each["package_name"] == "airflow-provider-kinetic")
    return cases.value("version", "installed"), ours["version"]


def restart(airflow: Any, folder: Path) -> None:
    """Stop every component, workers last, and start all with the package in a folder."""
    from celery_airflow import WORKERS
    from demo_airflow import COMPONENTS

    for name in ("dag-processor", "scheduler", "triggerer", "api-server"):
        process = airflow.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(600)
    for name in WORKERS:
        airflow.end_worker(name, signal.SIGTERM)
    airflow.environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(folder), airflow.environment.get("PYTHONPATH")))
    )
    for name in COMPONENTS:
        airflow.start_component(name)
    airflow.until(lambda: not airflow.api.unhealthy(), 900, "Airflow to be healthy with the newer version")
    airflow.start_workers()


@pytest.mark.promise("scale: … an upgrade of the provider while 100 tasks are deferred")
def test_an_upgrade_while_a_hundred_tasks_are_deferred(celery: Cases, tmp_path: Path) -> None:
    assert NEWER not in installed(celery)[0]
    before = set(jobs(celery))
    celery.start("hundred")
    airflow = celery.airflow
    until_states(celery, "hundred", {"deferred": 100})
    assert len(jobs(celery, before)) == 100
    restart(airflow, newer_version(tmp_path))
    assert installed(celery) == ([NEWER, NEWER], NEWER)
    assert states(celery, "hundred") == {"deferred": 100}
    give_sign(celery, "hundred")
    ends_with_one_job_each(celery, "hundred", 100, before)
    assert {each["try_number"] for each in celery.instances("hundred", "wait_for_sign")} == {1}
