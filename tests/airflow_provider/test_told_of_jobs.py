"""What tasks measure, and tell the page: with real jobs of the local backend."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.access import Access
from airflow_provider.job_of_task import Started, TaskIdentity, start_or_adopt
from airflow_provider.records import (
    EARLIER_KEY,
    KEY,
    JobRecord,
    record_of_cancelled,
    tell_end,
    tell_start,
)
from airflow_provider.telemetry import IN_TASKS
from kinetic_core._runner import object_names
from kinetic_core.backends.base import backend_of, open_backend
from kinetic_core.connections import default_connections
from kinetic_core.job import JobStatus
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.collect import collect
from kinetic_core.jobs.observe import wait
from kinetic_core.jobs.submit import Call
from kinetic_core.options import RunOptions
from tests.airflow_provider.stats_client import Client

pytestmark = pytest.mark.usefixtures("local_jobs")
OPTIONS = RunOptions.checked(accelerator="cpu")
TASK = {"dag_id": "dag", "task_id": "train"}


def double(number: int) -> int:
    return 2 * number


def fail() -> None:
    raise ValueError("no luck")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client(IN_TASKS)
    monkeypatch.setitem(sys.modules, IN_TASKS, made)
    return made


class Task:
    """A running task instance, as far as it is asked; it keeps what it pushes."""

    def __init__(self, run_id: str, try_number: int = 1) -> None:
        self.pushed: dict[str, Any] = {}
        ti = {**TASK, "run_id": run_id, "map_index": None, "max_tries": 2, "try_number": try_number}
        began = SimpleNamespace(start_date=datetime(2026, 1, 1, tzinfo=UTC))
        self.context = {"ti": SimpleNamespace(**ti, xcom_push=self._push), "dag_run": began}
        self.identity = TaskIdentity.of(self.context)

    def _push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    def starts(self, call: Call) -> Started:
        started = start_or_adopt(call, OPTIONS, default_connections(), self.identity)
        tell_start(self.context, self.identity, started, Access("theirs"))
        return started

    def ends(self, started: Started) -> None:
        reference, backend = started.reference, backend_of(started.reference, default_connections())
        seen = wait(backend, reference)
        outcome = collect(backend, reference, allow_pickle=False)
        identity = TaskIdentity.of(self.context)
        tell_end(self.context, identity, backend, reference, seen, outcome, Access("theirs"))


@pytest.fixture
def run_id(request: pytest.FixtureRequest) -> str:
    return str(request.node.nodeid)


@pytest.mark.promise(
    "page: through Airflow's stats interface: submitted, bytes shipped, finished by class, seconds by phase"
)
def test_a_job_that_is_started_and_succeeds(client: Client, run_id: str) -> None:
    task = Task(run_id)
    started = task.starts(Call(double, (21,), {}))
    assert client.of("kinetic.job.submitted") == [(1, {**TASK, "accelerator": "cpu"})]
    assert client.of("kinetic.job.shipped_bytes") == [(started.shipped, TASK)]
    assert started.shipped > 100
    task.ends(started)
    assert client.of("kinetic.job.finished") == [(1, {**TASK, "state": "succeeded", "failure_class": "none"})]
    told = {tags["phase"]: value for value, tags in client.of("kinetic.job.phase.duration")}
    assert "function" in told
    assert all(value >= 0 for value in told.values())
    assert client.of("kinetic.job.fenced") == client.of("kinetic.job.adopted") == []
    record = JobRecord.from_value(task.pushed[KEY])
    assert record is not None
    assert (record.reference, record.conn_id) == (started.reference, "theirs")
    assert record.end is not None
    assert record.end.status is JobStatus.SUCCEEDED
    assert EARLIER_KEY not in task.pushed


def test_a_job_that_is_adopted_ships_nothing(client: Client, run_id: str) -> None:
    Task(run_id).starts(Call(double, (21,), {}))
    client.got.clear()
    later = Task(run_id, 2)
    assert later.starts(Call(double, (21,), {})).adopted
    assert client.got == [("kinetic.job.adopted", 1, TASK)]


@pytest.mark.promise("page: Fenced")
def test_a_pod_that_was_turned_away_is_counted(client: Client, run_id: str) -> None:
    task = Task(run_id)
    store = open_backend("local", default_connections()).store
    store.create_if_absent(object_names.claim(task.identity.job_id(), 0), b'{"pod_uid": "another", "at": 0}')
    task.ends(task.starts(Call(double, (21,), {})))
    assert client.of("kinetic.job.fenced") == [(1, TASK)]
    ((_, tags),) = client.of("kinetic.job.finished")
    assert tags["state"] == "succeeded", "its successor ran the job"


def test_the_next_try_tells_of_the_job_before(client: Client, run_id: str) -> None:
    first, second = Task(run_id), Task(run_id, 2)
    failed = first.starts(Call(fail, (), {}))
    first.ends(failed)
    second.ends(second.starts(Call(double, (21,), {})))
    (told,) = second.pushed[EARLIER_KEY]
    assert (told["try_number"], told["job_id"], told["status"]) == (
        1,
        failed.reference.job_id,
        "FAILED",
    )
    record = JobRecord.from_value(second.pushed[KEY])
    assert record is not None
    assert record == replace(record, try_number=2)


def wait_long() -> None:
    import time

    time.sleep(600)


def test_the_end_of_a_job_that_was_cancelled_with_its_task(client: Client, run_id: str) -> None:
    task = Task(run_id)
    reference = task.starts(Call(wait_long, (), {})).reference
    backend, told = backend_of(reference, default_connections()), task.pushed[KEY]
    assert record_of_cancelled(told, backend, reference) is None  # it goes on
    cancel(backend, reference)
    record = record_of_cancelled(told, backend, reference)
    assert record is not None
    assert record.end is not None
    assert (record.end.status, record.end.message) == (JobStatus.CANCELLED, "cancelled by a user")
    assert record.end.phases
    assert (record.try_number, record.conn_id) == (1, "theirs")
    assert client.of("kinetic.job.finished") == []
    assert record_of_cancelled(record.to_dict(), backend, reference) is None  # it is recorded
    assert record_of_cancelled(told, backend, replace(reference, job_id="job-00000000000000ff")) is None
    assert record_of_cancelled("forged", backend, reference) is None
