"""What is measured is what is documented and what the dashboard shows."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider import telemetry as metrics
from airflow_provider.telemetry import METRICS, StateBoard, Stats, WorkerClock
from kinetic_core.counters import count, listen
from kinetic_core.job import JobObservation, JobStatus
from kinetic_core.jobs.warm import WorkerSummary
from tests.airflow_provider.stats_client import Client

ROOT = Path(__file__).parents[2]


@pytest.fixture
def client() -> Iterator[Client]:
    sys.modules["a_stats_module"] = Client("a_stats_module")
    yield sys.modules["a_stats_module"]  # type: ignore[misc]
    del sys.modules["a_stats_module"]


@pytest.mark.promise("page: Documented")
def test_the_page_about_metrics_lists_them_all() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\S+)` \| (\w+) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    told = [(name, kind, tuple(re.findall(r"`(\w+)`", tags)), meaning) for name, kind, tags, meaning in rows]
    assert told == [(each.name, each.kind, each.tags, each.meaning) for each in METRICS]


@pytest.mark.promise("page: JSON for Grafana")
def test_the_dashboard_shows_them_all_and_nothing_else() -> None:
    panels = json.loads((ROOT / "dashboards" / "kinetic.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    used = {name for expr in asked for name in re.findall(r"airflow_(kinetic_[a-z_]+)", expr)}
    known = {each.name.replace(".", "_"): each for each in METRICS}
    bare = {re.sub(r"(_milliseconds)?_(sum|count|total)$", "", name) for name in used}
    assert bare == set(known)
    tags = {each for expr in asked for by in re.findall(r"by \(([\w, ]+)\)", expr) for each in by.split(", ")}
    assert tags <= {tag for each in METRICS for tag in each.tags}


@pytest.mark.promise("page: Named as Airflow names its own")
@pytest.mark.parametrize("metric", METRICS, ids=lambda each: each.name)
def test_names_are_as_airflow_wants_them(metric: metrics.Metric) -> None:
    assert re.fullmatch(r"kinetic(\.[a-z_]+)+", metric.name)
    assert len(f"airflow.{metric.name}") <= 63


def test_each_kind_goes_its_way(client: Client) -> None:
    stats = Stats("a_stats_module")
    stats.count(metrics.SHIPPED, {"dag_id": "d"}, 1000)
    stats.count(metrics.FENCED, {"dag_id": "d"}, 0)
    stats.set(metrics.RUNNING, {"hostname": "h"}, 0)
    stats.time(metrics.PHASE, {"phase": "image"}, 2.5)
    assert client.got == [
        ("kinetic.job.shipped_bytes", 1000, {"dag_id": "d"}),
        ("kinetic.jobs.running", 0, {"hostname": "h"}),
        ("kinetic.job.phase.duration", 2.5, {"phase": "image"}),
    ]


def test_the_gauges_follow_the_jobs(client: Client) -> None:
    board = StateBoard(Stats("a_stats_module"), lambda: "h")

    def waits(reason: str) -> JobObservation:
        return JobObservation(JobStatus.PENDING, reason)

    board.seen("a", waits("Unschedulable"))
    board.seen("b", waits("Unschedulable"))
    board.seen("b", waits("Unschedulable"))
    board.seen("a", JobObservation(JobStatus.RUNNING, "Running"))
    board.seen("a", JobObservation(JobStatus.SUCCEEDED))
    board.gone("b")
    board.gone("b")
    told = [(name.rpartition(".")[2], value, tags.get("reason")) for name, value, tags in client.got]
    assert told == [
        ("waiting", 1, "Unschedulable"),
        ("waiting", 2, "Unschedulable"),
        ("waiting", 1, "Unschedulable"),
        ("running", 1, None),
        ("running", 0, None),
        ("waiting", 0, "Unschedulable"),
    ]
    assert {tags["hostname"] for _, _, tags in client.got} == {"h"}


def test_the_time_of_workers_is_counted_between_looks(client: Client) -> None:
    now = [0.0]
    clock = WorkerClock(Stats("a_stats_module"), lambda: "h", lambda: now[0])

    def worker(*, is_idle: bool, status: JobStatus = JobStatus.RUNNING) -> WorkerSummary:
        return WorkerSummary("job-1", JobObservation(status), "tpu-v5p-8", 600.0, 1, is_idle)

    clock.seen("a", [worker(is_idle=True)])
    for at, found in (
        (10.4, [worker(is_idle=True), worker(is_idle=False)]),
        (20.6, [worker(is_idle=True), worker(is_idle=False, status=JobStatus.PENDING)]),
        (30.0, []),
    ):
        now[0] = at
        clock.seen("a", found)
    clock.seen("b", [worker(is_idle=True)])
    told = [(name, value, tags["phase"]) for name, value, tags in client.got]
    assert told == [
        ("kinetic.worker.seconds", 10, "idle"),
        ("kinetic.worker.seconds", 10, "calls"),
        ("kinetic.worker.seconds", 10, "idle"),
    ]
    assert client.got[0][2] == {"hostname": "h", "accelerator": "tpu-v5p-8", "phase": "idle"}


def test_a_worker_counts_from_its_start(client: Client) -> None:
    """Where nobody has looked for an hour, and a worker began a minute ago."""
    now = [1000.0]
    clock = WorkerClock(Stats("a_stats_module"), lambda: "h", lambda: now[0])
    clock.seen("a", [])
    now[0] += 3600
    began = JobObservation(JobStatus.RUNNING, started_at=now[0] - 60)
    clock.seen("a", [WorkerSummary("job-1", began, "cpu", 600.0, 1, is_idle=True)])
    assert [value for _, value, _ in client.got] == [60]


def test_who_listens_is_told_once() -> None:
    told: list[Any] = []

    def listener(event: str, kinds: Any) -> None:
        told.append((event, kinds))

    listen(listener)
    listen(listener)
    count("tests.only", kind="Job")
    assert told == [("tests.only", {"kind": "Job"})]
