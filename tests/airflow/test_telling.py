"""What real tasks tell of their jobs: the page's records, and metrics from workers and triggerers alike."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kinetic_core.backends.local.layout import Layout
from kinetic_core.backends.local.slots import take_slots

pytestmark = pytest.mark.airflow


def shown(cases: Any, dag_id: str, job_id: str = "") -> dict[str, Any]:
    """What the page shows of a DAG's run, or of a job that is opened there."""
    url = f"{cases.api.url}/kinetic/api/dags/{dag_id}/runs/{quote(cases.runs[dag_id])}/jobs/{job_id}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url.rstrip("/"), timeout=60) as answer:
        told: dict[str, Any] = json.loads(answer.read())
    assert told["troubles"] == []
    return told


def jobs(cases: Any, dag_id: str) -> dict[str, dict[str, Any]]:
    """The rows of a DAG's run, by task and map index."""
    return {f"{each['task_id']}[{each['map_index']}]": each for each in shown(cases, dag_id)["jobs"]}


def time_of(told: str) -> float:
    return datetime.fromisoformat(told).timestamp()


@pytest.mark.promise("page: Waiting time by cause as a small timeline")
def test_first_waits_of_tasks_that_a_worker_ends(cases: Any) -> None:
    """Airflow overwrites their times when the worker gets the task again."""
    assert cases.end("resumed") == "success"
    rows = jobs(cases, "resumed")
    told = shown(cases, "resumed", rows["at_once[-1]"]["job_id"])
    first, second = told["airflow"]["before"]
    assert (first["name"], second["name"]) == ("airflow scheduler and queue", "airflow worker")
    began = time_of(cases.instance("resumed", "prepare")["end_date"])
    assert first["began"] == pytest.approx(began, abs=1e-3)
    phases = [*told["airflow"]["before"], *told["phases"], *told["airflow"]["after"]]
    whole = time_of(cases.instance("resumed", "at_once")["end_date"]) - began
    assert sum(each["seconds"] for each in phases) == pytest.approx(whole, rel=0.01)
    names = [each["name"] for each in told["airflow"]["after"]]
    assert names[-3:] == ["airflow scheduler", "airflow queue", "airflow worker"], "of the leg that ended it"

    row = rows["at_last[-1]"]
    assert (row["try_number"], row["job_try"]) == (2, 2)
    first, second = shown(cases, "resumed", row["job_id"])["airflow"]["before"]
    assert (first["name"], second["name"]) == ("airflow retry", "airflow worker")
    assert first["seconds"] > 1, "the delay between its tries"


@pytest.mark.promise("page: For a DAG run and for a task: its jobs")
def test_the_page_knows_every_job_of_a_run(cases: Any) -> None:
    assert cases.end("shapes") == "success"
    rows = jobs(cases, "shapes")
    assert {"add[0]", "add[1]", "add[2]", "one[-1]", "total[-1]"} <= set(rows)
    assert "pairs[-1]" not in rows  # no job of ours
    assert {each["status"] for each in rows.values()} == {"SUCCEEDED"}
    assert {each["attempts"] for each in rows.values()} == {1}
    assert all("function" in [phase["name"] for phase in each["phases"]] for each in rows.values())


@pytest.mark.promise("page: State, reason, attempts")
def test_a_deferred_task_and_one_that_failed_tell_the_same_way(cases: Any) -> None:
    assert cases.end("waiting") == "success"
    assert {each["status"] for each in jobs(cases, "waiting").values()} == {"SUCCEEDED"}
    assert cases.end("failing") == "failed"
    rows = jobs(cases, "failing")
    assert (rows["builtin[-1]"]["status"], rows["builtin[-1]"]["reason"]) == ("FAILED", "user error")
    assert (rows["builtin[-1]"]["try_number"], rows["builtin[-1]"]["job_try"]) == (2, 2)
    (first,) = rows["builtin[-1]"]["earlier"]
    assert (first["try_number"], first["status"], first["reason"]) == (1, "FAILED", "user error")
    assert "no luck" in first["message"]
    assert "no luck" in rows["builtin[-1]"]["message"]
    assert rows["unpicklable[-1]"]["status"] == "NEVER"


@pytest.mark.promise(
    "page: through Airflow's stats interface: submitted, bytes shipped, finished by class, seconds by phase"
)
def test_metrics_come_from_tasks(cases: Any) -> None:
    for dag_id in ("waiting", "failing"):
        cases.end(dag_id)
    lines = Path(cases.airflow.home, "metrics").read_text().splitlines()
    names = {re.split("[, ]", line)[0] for line in lines}
    assert {
        "airflow.kinetic.job.submitted",
        "airflow.kinetic.job.shipped_bytes",
        "airflow.kinetic.job.finished",
        "airflow.kinetic.job.phase.duration",
    } <= names
    ends = [line for line in lines if ".job.finished" in line]
    assert any("dag_id=failing" in line and "failure_class=user_error" in line for line in ends)
    functions = [line for line in lines if "phase=function" in line and "task_id=count" in line]
    assert any(float(line.split()[-1]) > 4 for line in functions)


@pytest.mark.promise("page: Waiting by reason, running")
def test_the_triggerer_counts_a_job_that_waits_and_then_runs(cases: Any) -> None:
    """It waits while this test holds one of the cores of which it needs all."""
    (held,) = take_slots(Layout(str(cases.airflow.home / "kinetic")).slots, 1)
    try:
        cases.start("crowded")
        waits = re.compile(r"airflow\.kinetic\.jobs\.waiting,.*reason=WaitingForSlot\S* 1")
        metrics = Path(cases.airflow.home, "metrics")
        cases.airflow.until(lambda: waits.search(metrics.read_text()), 300, "a job to be counted as waiting")
    finally:
        os.close(held)
    assert cases.end("crowded") == "success"
    running = [line for line in metrics.read_text().splitlines() if ".jobs.running" in line]
    assert any(line.endswith(" 1") for line in running)
    assert running[-1].endswith(" 0")


@pytest.mark.promise("command: … per DAG run", "a real Airflow, jobs of the local backend")
def test_the_command_says_what_a_run_has_cost(cases: Any) -> None:
    assert cases.end("shapes") == "success"
    rows = {each["job_id"]: each for each in jobs(cases, "shapes").values()}
    origin = ("--origin", "dag_id=shapes", "--origin", f"run_id={cases.runs['shapes']}")
    kinetic = str(Path(sys.executable).with_name("kinetic"))
    done = subprocess.run(
        [kinetic, "cost", *origin, "--json", "--backend", "local"],
        env=cases.airflow.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert {each["job_id"] for each in told["jobs"]} == set(rows)
    assert all(each["problem"] == "" and each["seconds"]["running"] > 0 for each in told["jobs"])
