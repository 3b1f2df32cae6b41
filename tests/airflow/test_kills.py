"""Jobs follow their tasks: killed with them, and only with them."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE

from airflow_provider.job_of_task import Origin
from kinetic_core import JobStatus
from kinetic_core.backends.base import backend_of
from kinetic_core.backends.kubernetes.names import ORIGIN
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.connections import default_connections
from kinetic_core.jobs.observe import find, observe

pytestmark = pytest.mark.airflow


def begun(cases: Any, dag_id: str, state: str) -> Any:
    """Start a DAG and wait until its job runs and a worker or a trigger, as asked, waits for it."""
    cases.start(dag_id)
    signs = [f"{dag_id} has begun"] + (["no worker is held"] if state == "deferred" else [])

    def ready(instance: dict[str, Any]) -> Any:
        log = cases.log(dag_id, "long_job")
        return instance if instance["state"] == state and all(sign in log for sign in signs) else None

    return cases.reach(dag_id, "long_job", ready, f"to be {state} with its job running")


def ends(cases: Any, dag_id: str, jobs: list[str]) -> None:
    """Wait until the task's jobs have these states."""
    what = f"'s jobs to be {jobs}"
    cases.reach(dag_id, "long_job", lambda _: cases.jobs(dag_id, "long_job") == jobs, what)


def job_ids(cases: Any, dag_id: str) -> set[str]:
    """The jobs that the task's log names."""
    return set(re.findall(r"job-[0-9a-f]{16}", cases.log(dag_id, "long_job")))


def mark_failed(cases: Any, instance: dict[str, Any]) -> None:
    path = f"/dags/{instance['dag_id']}/dagRuns/{instance['dag_run_id']}/taskInstances/{instance['task_id']}"
    cases.api.call("PATCH", path, {"new_state": "failed"})


def is_recorded(cases: Any, dag_id: str) -> None:
    """Wait until the task's record, which the page shows, has the end of the job."""

    def ended(_: object) -> bool:
        (record,) = cases.values(dag_id, "long_job", "kinetic_job")
        return record["end"] is not None and record["end"]["status"] == "CANCELLED"

    cases.reach(dag_id, "long_job", ended, "'s record to say that its job is cancelled")


def clear(cases: Any, instance: dict[str, Any]) -> None:
    body = {
        "dry_run": False,
        "dag_run_id": instance["dag_run_id"],
        "task_ids": [instance["task_id"]],
        "only_failed": False,
    }
    cases.api.call("POST", f"/dags/{instance['dag_id']}/clearTaskInstances", body)


def test_marking_a_deferred_task_failed_cancels_its_job(cases: Any) -> None:
    instance = begun(cases, "marked", "deferred")
    assert cases.jobs("marked", "long_job") == ["RUNNING"]
    mark_failed(cases, instance)
    ends(cases, "marked", ["CANCELLED"])
    assert cases.end("marked") == "failed"
    is_recorded(cases, "marked")


def test_marking_a_waiting_task_failed_cancels_its_job(cases: Any) -> None:
    instance = begun(cases, "held", "running")
    mark_failed(cases, instance)
    ends(cases, "held", ["CANCELLED"])
    assert cases.end("held") == "failed"
    is_recorded(cases, "held")


@pytest.mark.attack
def test_a_marked_task_whose_worker_dies_at_once_leaves_no_job(cases: Any) -> None:
    """The worker, which stands still, never hears that its task was marked: the search for orphans ends the
    job, in the store that workers and triggerers share.
    """
    instance = begun(cases, "held_and_killed", "running")
    worker = cases.task_process(instance)
    os.kill(worker, signal.SIGSTOP)
    mark_failed(cases, instance)
    os.kill(worker, signal.SIGKILL)
    ends(cases, "held_and_killed", ["CANCELLED"])
    assert cases.end("held_and_killed") == "failed"


@pytest.mark.attack
def test_a_worker_killed_with_its_new_job_leaves_none(cases: Any) -> None:
    """Its job is the first in its store, of which only its task's note tells: a trigger looks there."""
    searching = begun(cases, "beside", "deferred")
    cases.start("killed_with_a_new_job")
    folder = Path(cases.airflow.home, "unused")
    cases.airflow.until((folder / "created").exists, PATIENCE, "a job to be created")
    (record,) = (folder / "kinetic" / "cluster").glob("*/job-*.json")
    reference = find(LocalBackend(folder / "kinetic"), record.stem)
    assert reference is not None
    backend = backend_of(reference, default_connections())
    cases.airflow.until(
        lambda: observe(backend, reference).status is JobStatus.RUNNING, PATIENCE, f"{record.stem} to run"
    )
    instance = cases.instance("killed_with_a_new_job", "long_job")
    worker = cases.task_process(instance)
    os.kill(worker, signal.SIGSTOP)
    mark_failed(cases, instance)
    os.kill(worker, signal.SIGKILL)
    cases.airflow.until(
        lambda: observe(backend, reference).is_terminal, PATIENCE, f"{record.stem} to be cancelled"
    )
    assert observe(backend, reference).status is JobStatus.CANCELLED
    assert cases.end("killed_with_a_new_job") == "failed"
    mark_failed(cases, searching)
    assert cases.end("beside") == "failed"


@pytest.mark.promise("airflow: *Clear* means run again, never a result that the task has had")
def test_clearing_a_deferred_task_starts_another_job(cases: Any) -> None:
    instance = begun(cases, "cleared", "deferred")
    clear(cases, instance)
    ends(cases, "cleared", ["CANCELLED", "RUNNING"])
    begun(cases, "cleared", "deferred")
    mark_failed(cases, instance)
    ends(cases, "cleared", ["CANCELLED", "CANCELLED"])


def test_execution_timeout_while_deferred_cancels_the_job(cases: Any) -> None:
    cases.start("late")
    assert cases.end("late") == "failed"
    ends(cases, "late", ["CANCELLED"])
    log = cases.log("late", "long_job")
    assert log.index("execution_timeout has passed: cancelling job-") < log.index("Trigger fired event")
    assert log.lower().count("cancelling job-") == 1, "the worker goes on with what the trigger has said"
    (event,) = (line for line in log.splitlines() if "Trigger fired event" in line)
    assert len(event) < 250, event
    (record,) = cases.values("late", "long_job", "kinetic_job")
    assert (record["end"]["status"], record["end"]["message"]) == (
        "CANCELLED",
        "execution_timeout has passed",
    )


@pytest.mark.promise("airflow: A worker killed anywhere and run again adopts its job")
@pytest.mark.promise("page: Adopted")
def test_a_worker_that_is_killed_leaves_its_job_to_the_next_try(cases: Any) -> None:
    instance = begun(cases, "adopted", "running")
    os.kill(cases.task_process(instance), signal.SIGKILL)
    assert cases.end("adopted") == "success"
    assert cases.instance("adopted", "long_job")["try_number"] == 2
    assert "adopted a job" in cases.log("adopted", "long_job", 2)
    assert cases.jobs("adopted", "long_job") == ["SUCCEEDED"]
    assert cases.value("adopted", "long_job") == "adopted is done"
    metrics = Path(cases.airflow.home, "metrics").read_text().splitlines()
    assert "airflow.kinetic.job.adopted,dag_id=adopted,task_id=long_job 1" in metrics


@pytest.mark.promise("airflow: Triggerer SIGTERM, kill -9, stall and failover")
def test_a_triggerer_that_is_stopped_kills_no_job(cases: Any) -> None:
    begun(cases, "moved", "deferred")
    triggerer = cases.airflow.processes["triggerer"]
    triggerer.terminate()
    triggerer.wait(90)
    assert cases.jobs("moved", "long_job") == ["RUNNING"]
    cases.airflow.start_component("triggerer")
    assert cases.end("moved") == "success"
    assert cases.jobs("moved", "long_job") == ["SUCCEEDED"]


@pytest.mark.promise("airflow: Trigger that breaks (`__fail__`) loses no result, ends no job")
@pytest.mark.attack
def test_triggers_that_break_end_no_job_and_lose_no_result(cases: Any) -> None:
    """The job gets another trigger; the second that breaks is the last one, and the worker waits."""
    cases.start("breaking")
    last = "trigger 2 of this try broke, waiting in this worker"
    cases.reach("breaking", "runs", lambda _: last in cases.log("breaking", "runs"), "'s worker to wait")
    Path(cases.airflow.home, "breaking-ends").touch()
    assert cases.end("breaking") == "success"
    assert cases.value("breaking", "ends") == "the job is done"
    assert "trigger 1 of this try broke, another one waits" in cases.log("breaking", "ends")
    assert cases.value("breaking", "runs") == "the job is done"
    assert cases.instance("breaking", "runs")["try_number"] == 1
    assert cases.jobs("breaking", "runs") == ["SUCCEEDED"]


@pytest.mark.promise("airflow: No orphan pod 60 s after a triggerer is alive")
def test_the_job_of_a_run_deleted_unseen_is_cancelled(
    cases: Any,
) -> None:
    """By the API server, or the triggerer that comes back if it has triggers of other tasks."""
    instance = begun(cases, "forgotten", "deferred")
    (job_id,) = job_ids(cases, "forgotten")
    backend = LocalBackend(cases.airflow.home / "kinetic")
    reference = find(backend, job_id)
    assert reference is not None
    found = backend.get(reference.namespace, job_id)
    assert found is not None
    origin = Origin.from_text(found[0]["metadata"]["annotations"][ORIGIN])
    assert origin is not None
    assert origin.deployment.endswith(cases.airflow.environment["AIRFLOW__API__BASE_URL"])
    triggerer = cases.airflow.processes.pop("triggerer")
    triggerer.terminate()
    triggerer.wait(90)
    mark_failed(cases, instance)
    run = f"/dags/forgotten/dagRuns/{instance['dag_run_id']}"
    cases.airflow.until(lambda: cases.api.call("GET", run)["state"] == "failed", 300, "forgotten to fail")
    cases.api.call("DELETE", run)
    cases.airflow.start_component("triggerer")
    cases.airflow.until(
        lambda: observe(backend_of(reference, default_connections()), reference).is_terminal,
        60,
        f"{job_id} to be cancelled",
    )
