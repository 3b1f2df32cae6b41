"""Tasks with `warm=`: they share workers, and lose nothing with one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_core import JobStatus
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.lanes import lanes_of
from kinetic_core.jobs.observe import found, observe
from kinetic_core.jobs.warm import workers

pytestmark = pytest.mark.airflow


@pytest.fixture(autouse=True, scope="module")
def no_worker_is_left(cases: Any) -> Iterator[None]:
    yield
    backend = LocalBackend(cases.airflow.home / "kinetic")
    for each in list(workers(backend, "default")):
        cancel(backend, found(backend, each.job_id))


def test_mapped_tasks_share_workers_and_outlive_one(cases: Any) -> None:
    assert cases.end("warm") == "success"
    counted = cases.values("warm", "count")
    assert [number for number, _ in counted] == [1, 2, 3, 4, 5]
    used = [worker for _, worker in counted if worker]
    assert 1 <= len(set(used)) <= 2, "two tasks at a time"
    assert len(used) > len(set(used)), "a later task runs where an earlier one did"
    for each in cases.instances("warm", "count"):
        number = each["map_index"] + 1
        assert f"counting {number}\n" in cases.api.log(each).replace("\\n", "\n")
    logs = [cases.api.log(each) for each in cases.instances("warm", "count")]
    assert any("DEFERRED" not in log for log in logs), "a quick call ends in the worker that has submitted it"
    assert cases.value("warm", "survive") == ["alive", 1]
    assert cases.value("warm", "add_up") == [6, 8]
    assert cases.instance("warm", "survive")["try_number"] == 1


def test_a_batch_task_runs_on_workers_and_again(cases: Any) -> None:
    """A clear runs the inputs without a value, on the workers that are there; others use their values."""
    assert cases.end("warm_batch") == "failed"
    log = cases.log("warm_batch", "odd")
    assert "3 x ValueError: it is odd (inputs 1, 3, 5)" in log
    assert log.count("Pausing task as DEFERRED") == 1
    folder = Path(cases.value("warm_batch", "folder"))
    (folder / "go").touch()
    body = {
        "dry_run": False,
        "dag_run_id": cases.runs["warm_batch"],
        "task_ids": ["odd"],
        "only_failed": False,
    }
    cases.api.call("POST", "/dags/warm_batch/clearTaskInstances", {**body, "include_downstream": True})
    cases.reach("warm_batch", "total", lambda each: each["state"] == "success", "to succeed")
    assert cases.value("warm_batch", "used") == ["BatchValues", 12, list(range(12))]
    assert cases.value("warm_batch", "total") == sum(range(12))
    calls = [len((folder / f"calls-{number}").read_text()) for number in range(12)]
    assert calls == [2 if number in (1, 3, 5) else 1 for number in range(12)]


@pytest.mark.slow
def test_a_task_marked_failed_ends_its_lanes(cases: Any) -> None:
    cases.start("long_warm_batch")
    log = "no worker is held"
    instance = cases.reach(
        "long_warm_batch",
        "long_job",
        lambda each: (
            each if each["state"] == "deferred" and log in cases.log("long_warm_batch", "long_job") else None
        ),
        "to be deferred",
    )
    reference = cases.api.xcom(instance, "kinetic_batch")["reference"]
    backend = LocalBackend(cases.airflow.home / "kinetic")
    lanes = lanes_of(backend, reference["job_id"])
    cases.airflow.until(
        lambda: all(observe(backend, lane).status is JobStatus.RUNNING for lane in lanes),
        300,
        "the lanes to run",
    )
    path = f"/dags/long_warm_batch/dagRuns/{instance['dag_run_id']}/taskInstances/long_job"
    cases.api.call("PATCH", path, {"new_state": "failed"})
    cases.airflow.until(
        lambda: all(observe(backend, lane).is_terminal for lane in lanes), 300, "the lanes to end"
    )
    assert {worker.is_idle for worker in workers(backend, "default")} == {True}


@pytest.mark.slow
def test_batch_tasks_share_workers_of_the_cluster(cases: Any, cluster: Any) -> None:
    """Values that XCom cannot carry are references to parts of segments, which other inputs load."""
    assert cases.end("warm_pod_batch", 600) == "success"
    assert cases.value("warm_pod_batch", "used") == ["BatchValues", [n * 10 for n in range(20) if n != 2], 2]
    log = cases.log("warm_pod_batch", "boxed")
    assert "1 x ValueError: it is two (inputs 2)" in log
    assert "which max_failures=1 allows" in log
    assert log.count("Pausing task as DEFERRED") == 1
    (record,) = cases.values("warm_pod_batch", "opened", "kinetic_batch")
    group_id = record["reference"]["job_id"]
    jobs = cluster.list("Job", "default")["items"]
    assert not [each for each in jobs if each["metadata"]["name"].startswith(f"kinetic-{group_id}")]
