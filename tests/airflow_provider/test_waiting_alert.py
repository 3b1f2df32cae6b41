"""When a task's alert is due, and that it is sent once; without Airflow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.waiting_alert import AlertClock
from kinetic_core.errors import StoreError
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.airflow_provider.records_of_jobs import reference

JOB = reference("job-0123456789abcdef", project="lab", zone="us-central2-b", cluster_name="tpus")
BATCH = reference("grp-0123456789abcdef", group_id="grp-0123456789abcdef")
TI = {
    "dag_id": "nightly",
    "task_id": "train",
    "run_id": "manual",
    "map_index": 2,
    "try_number": 1,
    "log_url": "https://airflow/log",
}
MISSING = "Insufficient google.com/tpu on 5 nodes"
NEVER = float("inf")

told: list[tuple[str, Any]] = []


@pytest.fixture(autouse=True)
def nobody_is_told_yet() -> Iterator[None]:
    yield
    told.clear()


async def tell(channel: str, context: dict[str, Any]) -> None:
    told.append((channel, context))


async def tell_plainly(channel: str) -> None:
    told.append((channel, None))


async def break_down(**_: Any) -> None:
    raise ValueError("the channel is gone")


async def hang(**_: Any) -> None:
    await asyncio.Event().wait()


def pending(**fields: Any) -> JobObservation:
    return JobObservation(JobStatus.PENDING, "Unschedulable", MISSING, **{"created_at": 1000.0, **fields})


RUNNING = JobObservation(JobStatus.RUNNING, "Running", created_at=1000.0, started_at=1100.0)


class Wait:
    """A job that waits: its store, the time, and what was logged; `clock()` is that of another process."""

    def __init__(self, callback: str = "tell", job: JobReference = JOB, **changes: Any) -> None:
        kwargs = {"channel": "#tpus"} if callback.startswith("tell") else {}
        self.alert = {
            "after": 600,
            "callback": f"{__name__}.{callback}",
            "kwargs": kwargs,
            "name": "train[2]",
        }
        self.alert |= {"ti": {**TI, **changes}}
        self.job, self.now, self.log = job, 1000.0, list[str]()
        self.store: Any = MemoryObjectStore("memory://jobs")

    def clock(self, **options: Any) -> AlertClock:
        backend: Any = SimpleNamespace(store=self.store)
        alert = json.loads(json.dumps(self.alert))
        return AlertClock(alert, backend, self.job, clock=lambda: self.now, **options)

    def send(self, clock: AlertClock) -> None:
        asyncio.run(clock.send(lambda text, *values, **_: self.log.append(text % values)))

    def sent(self, clock: AlertClock) -> int:
        """How often somebody has been told after this clock's alert is due."""
        clock.see(pending())
        self.now = 1700.0
        assert clock.due == 0
        self.send(clock)
        return len(told)


def test_a_first_wait_begins_with_the_job() -> None:
    wait = Wait()
    wait.now = 1300.0
    clock = wait.clock()
    assert clock.due == NEVER
    clock.see(pending())
    assert clock.due == 300.0
    wait.now = 1400.0
    clock.see(pending())
    assert clock.due == 200.0
    clock.see(RUNNING)
    assert clock.due == NEVER


@pytest.mark.parametrize("again", [{"attempt": 1}, {"started_at": 1100.0}, {"created_at": None}], ids=str)
def test_a_later_wait_begins_when_it_is_seen(again: dict[str, Any]) -> None:
    wait = Wait()
    clock = wait.clock()
    clock.see(RUNNING)
    wait.now = 5000.0
    clock.see(pending(**again))
    assert clock.due == 600.0


def test_what_is_not_known_is_no_wait() -> None:
    wait = Wait()
    clock = wait.clock()
    clock.see(None)
    assert clock.due == NEVER


def test_a_task_without_an_alert_has_a_clock_that_rests() -> None:
    backend: Any = SimpleNamespace(store=None)
    clock = AlertClock(None, backend, JOB)
    clock.see(pending())
    assert clock.due == NEVER


def test_the_callback_gets_the_facts() -> None:
    wait = Wait()
    assert wait.sent(wait.clock()) == 1
    ((channel, context),) = told
    waiting = context["waiting"]
    assert (channel, context["ti"], context["run_id"]) == ("#tpus", TI, "manual")
    assert waiting["job_url"].startswith(
        "https://console.cloud.google.com/kubernetes/job/us-central2-b/tpus/"
    )
    assert waiting["logs_url"].startswith("https://console.cloud.google.com/logs/")
    text = (
        "train[2] of DAG nightly has waited 11 min 40 s for tpu-v6e-8: job-0123456789abcdef: Unschedulable: "
        f"{MISSING}"
    )
    assert {name: value for name, value in waiting.items() if not name.endswith("_url")} == {
        "job_id": JOB.job_id,
        "hardware": "tpu-v6e-8",
        "backend": "gke",
        "cluster": "tpus",
        "namespace": "default",
        "reason": "Unschedulable",
        "message": MISSING,
        "seconds": 700,
        "since": "1970-01-01T00:16:40+00:00",
        "text": text,
    }
    assert wait.log == [f"{text}; calling {__name__}.tell"]


def test_a_callback_need_not_take_the_context() -> None:
    wait = Wait("tell_plainly")
    wait.sent(wait.clock())
    assert told == [("#tpus", None)]


def test_nobody_is_told_twice() -> None:
    """By the same process, by one that comes after it, or by that of the next try."""
    wait = Wait()
    first = wait.clock()
    assert wait.sent(first) == 1
    first.see(pending())
    assert first.due == NEVER
    wait.alert["ti"] = {**TI, "try_number": 2}
    second = wait.clock()
    assert wait.sent(second) == 1
    assert second.due == NEVER
    assert len(wait.log) == 1


@pytest.mark.attack
def test_a_planted_mark_silences_an_alert() -> None:
    """It is a note for whoever sends the alert, and a writer of the bucket can send no alert with it."""
    wait = Wait()
    wait.store.create_if_absent(f"jobs/{JOB.job_id}/waiting-alert", b"planted")
    assert (wait.sent(wait.clock()), wait.log) == (0, [])


def test_of_a_batch_each_try_tells_once() -> None:
    """It runs again what has no value, which is another wait."""
    wait = Wait(job=BATCH)
    assert [wait.sent(wait.clock()), wait.sent(wait.clock())] == [1, 1]
    wait.alert["ti"] = {**TI, "try_number": 2}
    assert wait.sent(wait.clock()) == 2
    assert told[0][1]["waiting"]["job_url"] == told[0][1]["waiting"]["logs_url"] == ""


@pytest.mark.parametrize(
    ("callback", "said"), [("break_down", "the channel is gone"), ("hang", "TimeoutError"), ("gone", "gone")]
)
def test_a_callback_that_fails_is_logged(callback: str, said: str) -> None:
    wait = Wait(callback)
    clock = wait.clock(patience=0.01)
    assert wait.sent(clock) == 0
    assert len(wait.log) == 2
    assert wait.log[1].startswith(f"the waiting alert failed, and is not repeated: {__name__}.{callback}: ")
    assert said in wait.log[1]
    assert clock.due == NEVER


class Outage(MemoryObjectStore):
    """A store that gives no answer at first."""

    is_away = True

    def create_if_absent(self, name: str, content: bytes | Path, metadata: Any = None) -> bool:
        if self.is_away:
            raise StoreError("no answer")
        return super().create_if_absent(name, content, metadata)


def test_without_a_store_the_alert_is_late() -> None:
    wait = Wait()
    wait.store = store = Outage("memory://jobs")
    clock = wait.clock()
    assert wait.sent(clock) == 0
    assert wait.log == ["the waiting alert is late, because its mark cannot be stored: no answer"]
    assert clock.due == 30.0
    store.is_away = False
    wait.now += 30
    wait.send(clock)
    assert len(told) == 1
