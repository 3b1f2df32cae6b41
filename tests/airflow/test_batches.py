"""Many inputs in one task, seen through Airflow's own API."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.backends.kubernetes.names import GROUP_ID
from kinetic_core.backends.kubernetes.verdict import observe
from kinetic_core.backends.local.backend import LocalBackend

pytestmark = pytest.mark.airflow


def living(cases: Any, group_id: str) -> int:
    """How many jobs of a batch have not ended."""
    backend = LocalBackend(cases.airflow.home / "kinetic")
    jobs = backend.all("default").values()
    own = [found for found in jobs if found[0]["metadata"]["labels"].get(GROUP_ID) == group_id]
    return sum(not observe(*found).is_terminal for found in own)


def clear(cases: Any, dag_id: str, task_id: str) -> None:
    body = {"dry_run": False, "dag_run_id": cases.runs[dag_id], "task_ids": [task_id], "only_failed": False}
    cases.api.call("POST", f"/dags/{dag_id}/clearTaskInstances", body)


def begun(cases: Any) -> str:
    """The id of the batch of a task that is deferred while its jobs run."""
    cases.start("long_batch")
    log = "no worker is held"
    instance = cases.reach(
        "long_batch",
        "long_job",
        lambda found: (
            found if found["state"] == "deferred" and log in cases.log("long_batch", "long_job") else None
        ),
        "to be deferred",
    )
    group_id: str = cases.api.xcom(instance, "kinetic_batch")["reference"]["job_id"]
    cases.airflow.until(lambda: living(cases, group_id) == 3, 300, "the inputs to live")
    return group_id


@pytest.mark.promise("scale: `@task.kinetic_batch`, `KineticBatchOperator`: one task instance, one batch")
@pytest.mark.promise("scale: Over a list, an XComArg, a reference, a generator, a `gs://` file")
@pytest.mark.promise("scale: It defers once")
@pytest.mark.promise("scale: The value is a lazy sequence: index, iterate, `.expand`")
def test_every_kind_of_input_and_use(cases: Any) -> None:
    assert cases.end("batched") == "success"
    assert cases.value("batched", "used") == ["BatchValues", 3, {"square": 10}, [2, 5, 10]]
    assert cases.values("batched", "single") == [2, 5, 10]
    assert cases.value("batched", "total") == 1
    assert cases.value("batched", "opened_ones") == ["BatchValues", 2, {"square": 100}, [0, 100]]
    assert cases.instance("batched", "nothing")["state"] == "skipped"
    assert cases.log("batched", "square").count("Pausing task as DEFERRED") == 1
    assert cases.instance("batched", "square")["try_number"] == 1


@pytest.mark.promise("scale: `max_failures=`")
@pytest.mark.promise("scale: The log says which inputs failed and why, the first ten by cause")
@pytest.mark.promise("scale: *Clear* runs again only inputs without a value")
def test_failed_inputs_are_told_and_run_again(cases: Any) -> None:
    assert cases.end("half_failing") == "failed"
    log = cases.log("half_failing", "odd")
    assert "2 x ValueError: it is odd (inputs 1, 3)" in log
    assert "1 x ValueError: 5 is odd (inputs 5)" in log
    assert "3 of 6 inputs of grp-" in log
    assert cases.value("half_failing", "used") == [[0, 2, 4], [0, 2, 4], [1, 3, 5]]
    folder = Path(cases.value("half_failing", "folder"))
    before = {place.name: len(place.read_text()) for place in folder.glob("calls-*")}
    (folder / "go").touch()
    clear(cases, "half_failing", "odd")
    cases.reach("half_failing", "odd", lambda found: found["state"] == "success", "to succeed once cleared")
    after = {place.name: len(place.read_text()) for place in folder.glob("calls-*")}
    assert [after[f"calls-{number}"] - before[f"calls-{number}"] for number in range(6)] == [0, 1, 0, 1, 0, 1]


@pytest.mark.promise("scale: *Clear* runs again only inputs without a value")
@pytest.mark.promise("scale: … and everything if `rerun` says so")
def test_a_clear_runs_again_what_rerun_says(cases: Any) -> None:
    """Inputs without a value, all inputs because a Variable says so, and all because the DAG does."""
    folders = {name: Path(cases.airflow.home, f"rerun-{name}") for name in ("as_told", "all")}
    for folder in folders.values():
        folder.mkdir()

    def calls(name: str) -> list[int]:
        return [len((folders[name] / f"calls-{number}").read_text()) for number in range(3)]

    def cleared(name: str) -> list[int]:
        cases.end("rerun_batch")  # a run that the scheduler is about to end stays so, whatever is cleared
        before = cases.instance("rerun_batch", name)["try_number"]
        clear(cases, "rerun_batch", name)
        cases.reach(
            "rerun_batch",
            name,
            lambda found: found["try_number"] > before and found["state"] in ("success", "failed"),
            "to end once cleared",
        )
        assert cases.instance("rerun_batch", name)["state"] == "success"
        return calls(name)

    assert cases.end("rerun_batch") == "failed"
    assert calls("as_told") == calls("all") == [1, 1, 1]
    for folder in folders.values():
        (folder / "go").touch()
    assert cleared("as_told") == [1, 2, 1]
    assert cleared("as_told") == [1, 2, 1]
    assert cleared("all") == [2, 2, 2]
    cases.api.call("POST", "/variables", {"key": "rerun_counted", "value": "all"})
    assert cleared("as_told") == [2, 3, 2]


@pytest.mark.promise("scale: No client: chunks of Indexed Jobs; it lives when worker or triggerer dies")
def test_a_killed_triggerer_ends_no_batch_a_person_does(cases: Any) -> None:
    group_id = begun(cases)
    triggerer = cases.airflow.processes["triggerer"]
    triggerer.kill()
    triggerer.wait(90)
    cases.airflow.start_component("triggerer")
    cases.reach(
        "long_batch",
        "long_job",
        lambda _: cases.log("long_batch", "long_job").count("no worker is held") > 1,
        "to be watched again",
    )
    assert living(cases, group_id) == 3
    instance = cases.instance("long_batch", "long_job")
    path = f"/dags/long_batch/dagRuns/{instance['dag_run_id']}/taskInstances/long_job"
    cases.api.call("PATCH", path, {"new_state": "failed"})
    cases.airflow.until(lambda: living(cases, group_id) == 0, 300, "the batch to end")


@pytest.mark.slow
def test_execution_timeout_while_deferred_cancels_the_batch(cases: Any) -> None:
    assert cases.end("late_batch") == "failed"
    (record,) = cases.values("late_batch", "long_job", "kinetic_batch")
    assert living(cases, record["reference"]["job_id"]) == 0
    log = cases.log("late_batch", "long_job")
    assert log.index("execution_timeout has passed: cancelling grp-") < log.index("Trigger fired event")


@pytest.mark.promise("scale: No client: chunks of Indexed Jobs; it lives when worker or triggerer dies")
@pytest.mark.slow
def test_a_killed_worker_leaves_its_batch_to_the_next_try(cases: Any) -> None:
    cases.start("adopted_batch")
    folder = Path(cases.airflow.home, "adopted-batch")
    cases.airflow.until(lambda: any(folder.glob("calls-*")), 300, "an input to begin")
    os.kill(cases.task_process(cases.instance("adopted_batch", "long_job")), signal.SIGKILL)
    cases.reach("adopted_batch", "long_job", lambda found: found["try_number"] == 2, "to be tried again")
    (folder / "go").touch()
    assert cases.end("adopted_batch") == "success"
    assert "adopted grp-" in cases.log("adopted_batch", "long_job", 2)
    assert [len((folder / f"calls-{number}").read_text()) for number in range(3)] == [1, 1, 1]


@pytest.mark.slow
def test_triggers_that_break_end_no_batch_and_lose_no_value(cases: Any) -> None:
    assert cases.end("breaking_batch") == "success"
    log = cases.log("breaking_batch", "runs")
    assert "trigger 1 of this try broke, another one waits" in log
    assert "all 3 inputs of grp-" in log
    assert cases.instance("breaking_batch", "runs")["try_number"] == 1


@pytest.mark.promise("scale: No client: chunks of Indexed Jobs; it lives when worker or triggerer dies")
@pytest.mark.promise("scale: It defers once")
@pytest.mark.promise("scale: `max_failures=`")
@pytest.mark.slow
def test_inputs_as_pods_of_the_cluster(cases: Any, cluster: Any) -> None:
    assert cases.end("pod_batch", 600) == "success"
    (record,) = cases.values("pod_batch", "boxed", "kinetic_batch")
    group_id = record["reference"]["job_id"]  # of its Jobs the failed input's evidence is left
    cluster.delete_all("Job", "default", f"{GROUP_ID}={group_id}")
    assert cases.value("pod_batch", "used") == ["BatchValues", [0, 10, 30]]
    log = cases.log("pod_batch", "boxed")
    assert "1 x ValueError: it is two (inputs 2)" in log
    assert "which max_failures=1 allows" in log
    assert log.count("Pausing task as DEFERRED") == 1
