"""A sensor of jobs that other programs have started: with Airflow's packages alone, and in a real Airflow."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import pytest

from kinetic_core import JobStatus
from kinetic_core.errors import JobNotFound
from tests.batches.places import watch_that_is_refused

if TYPE_CHECKING:
    from airflow_provider.hooks.kinetic import KineticHook

pytestmark = pytest.mark.airflow


def wait(path: str) -> int:
    while not Path(path).exists():
        time.sleep(0.02)
    return 7


def fail() -> None:
    raise ValueError("no such shard")


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KineticHook:
    """A hook whose connection alone says that jobs run here."""
    from airflow_provider.hooks.kinetic import KineticHook

    conn_id = f"lab_{token_hex(4)}"  # hooks of one connection share a client
    text = json.dumps({"conn_type": "kinetic", "extra": {"backend": "local"}})
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", text)
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "kinetic"))
    return KineticHook(conn_id)


def sensor(hook: KineticHook, job_id: str, **arguments: Any) -> Any:
    from airflow_provider.sensors.kinetic import KineticJobSensor

    return KineticJobSensor(task_id="wait", job_id=job_id, conn_id=hook.conn_id, **arguments)


def deferred(task: Any) -> Any:
    """The trigger of the task's first leg, as its triggerer makes it."""
    from airflow.providers.common.compat.sdk import TaskDeferred

    with pytest.raises(TaskDeferred) as raised:
        task.execute({})
    path, arguments = raised.value.trigger.serialize()
    assert path == "airflow_provider.triggers.job_end.KineticJobEndTrigger"
    return type(raised.value.trigger)(**json.loads(json.dumps(arguments)))


def fired(trigger: Any) -> Any:
    async def first() -> Any:
        return (await anext(trigger.run())).payload

    return asyncio.run(first())


def test_a_job_that_may_not_be_seen_is_a_workers_matter(hook: KineticHook, tmp_path: Path) -> None:
    """Whoever may not look at a job never hears of its end: the worker asks, and says what is refused."""
    from airflow_provider.access import Access
    from airflow_provider.hooks.kinetic import clients
    from kinetic_core.backends.base import open_backend

    job_id = hook.submit(wait, [str(tmp_path / "go")], accelerator="cpu").job_id
    trigger = deferred(sensor(hook, job_id))
    watch_that_is_refused(open_backend("local", clients.get(Access(hook.conn_id))))
    assert fired(trigger)["status"] == "ended"
    (tmp_path / "go").touch()


@pytest.mark.promise("scale: A sensor of jobs started elsewhere")
def test_it_waits_in_a_trigger_and_succeeds_with_the_job(hook: KineticHook, tmp_path: Path) -> None:
    job_id = hook.submit(wait, [str(tmp_path / "go")], accelerator="cpu").job_id
    task = sensor(hook, job_id)
    trigger = deferred(task)
    (tmp_path / "go").touch()
    event = fired(trigger)
    assert event["status"] == "ended"
    assert task.execute_complete({}, event) is None
    assert sensor(hook, job_id).execute({}) is None, "a job that has ended defers nothing"


@pytest.mark.promise("scale: A sensor of jobs started elsewhere")
@pytest.mark.parametrize("deferrable", [True, False])
def test_a_failed_job_fails_it_for_good(hook: KineticHook, deferrable: bool) -> None:
    from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException

    job_id = hook.submit(fail, accelerator="cpu").job_id
    with pytest.raises(ValueError, match="no such shard"):
        hook.result(job_id, timeout=60)
    with pytest.raises(AirflowFailException, match=f"{job_id} is FAILED: .*no such shard"):
        sensor(hook, job_id, deferrable=deferrable).execute({})
    with pytest.raises(AirflowSkipException):
        sensor(hook, job_id, deferrable=deferrable, soft_fail=True).execute({})


@pytest.mark.promise("scale: A sensor of jobs started elsewhere")
def test_its_timeout_leaves_the_job_alone(hook: KineticHook, tmp_path: Path) -> None:
    from airflow.providers.common.compat.sdk import AirflowSensorTimeout

    job_id = hook.submit(wait, [str(tmp_path / "go")], accelerator="cpu").job_id
    task = sensor(hook, job_id, timeout=3600)
    trigger = deferred(task)
    assert 3500 < trigger.remaining <= 3600
    trigger.deadline = time.time() + 0.1  # an hour later
    event = fired(trigger)
    assert event["status"] == "timeout"
    with pytest.raises(AirflowSensorTimeout, match=f"{job_id} has not ended within 3600 s"):
        task.execute_complete({}, event)
    assert not hook.status(job_id).is_terminal
    (tmp_path / "go").touch()
    assert hook.result(job_id, timeout=60) == 7


def test_a_trigger_that_is_cancelled_leaves_the_job_alone(hook: KineticHook, tmp_path: Path) -> None:
    job_id = hook.submit(wait, [str(tmp_path / "go")], accelerator="cpu").job_id
    trigger = deferred(sensor(hook, job_id))

    async def cancelled() -> None:
        waiting = asyncio.ensure_future(anext(trigger.run()))
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.wait({waiting})

    asyncio.run(cancelled())
    (tmp_path / "go").touch()
    assert hook.result(job_id, timeout=60) == 7
    assert hook.status(job_id) is JobStatus.SUCCEEDED


def test_an_unknown_job_is_told(hook: KineticHook) -> None:
    from airflow_provider.triggers.job_end import KineticJobEndTrigger

    with pytest.raises(JobNotFound):
        sensor(hook, f"job-{0:016x}").execute({})
    trigger = KineticJobEndTrigger(f"job-{0:016x}", 0.0, None, hook.conn_id)
    assert fired(trigger)["status"] == "ended", "a worker looks, and says that it is gone"


def test_only_where_a_scheduler_is_an_event_is_held(hook: KineticHook, capsys: Any) -> None:
    """The trigger of `dag.test()` has no id, and no scheduler that could fail its task."""
    from airflow_provider.triggers.job_end import KineticJobEndTrigger

    arguments = f"job-{0:016x}", time.time() + 3600, None, hook.conn_id
    assert fired(KineticJobEndTrigger(*arguments))["status"] == "ended"
    trigger = KineticJobEndTrigger(*arguments)
    trigger.trigger_id = 7

    async def waits() -> None:
        await asyncio.wait_for(anext(trigger.run()), 2)

    with pytest.raises(TimeoutError):
        asyncio.run(waits())
    assert "a worker goes on in 36" in "".join(capsys.readouterr())


@pytest.mark.promise("scale: A sensor of jobs started elsewhere")
def test_a_real_triggerer_waits_for_a_job(cases: Any) -> None:
    """Of two jobs, started through a connection, one succeeds, and the other one's sensor is not retried."""
    extra = json.dumps({"backend": "local"})
    connection = {"connection_id": "sensed_here", "conn_type": "kinetic", "extra": extra}
    cases.api.call("POST", "/connections", connection)
    cases.start("sensed")
    for task_id in ("sensor", "failing_sensor"):
        cases.reach("sensed", task_id, lambda found: found["state"] == "deferred", "to be deferred")
    Path(cases.airflow.home, "sensed-ends").touch()
    assert cases.end("sensed") == "failed"
    assert cases.instance("sensed", "sensor")["state"] == "success"
    assert cases.value("sensed", "value") == 7
    log = cases.log("sensed", "sensor")
    assert log.count("Pausing task as DEFERRED") == 1, log
    assert cases.instance("sensed", "failing_sensor")["try_number"] == 1
    log = cases.log("sensed", "failing_sensor")
    assert f"{cases.value('sensed', 'start_failing')} is FAILED: " in log
    assert "no such shard" in log
