"""Tasks whose jobs wait too long tell somebody. Only the last test needs a running Airflow."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from test_batch_legs import SIZE, BatchTask, fired, home
from test_legs import Task

from kinetic_core.errors import InvalidRequest
from tests.conftest import all_slots_taken, wait_for

__all__ = ["home"]
pytestmark = pytest.mark.airflow
SOON = timedelta(milliseconds=1)


def alert(callback: str, file: Path, after: timedelta = SOON, **kwargs: Any) -> Any:
    from airflow.sdk.definitions.deadline import AsyncCallback
    from stand_ins import platform_team

    from airflow_provider.waiting_alert import WaitingAlert

    return WaitingAlert(after, AsyncCallback(getattr(platform_team, callback), {"file": str(file), **kwargs}))


REASONS = ("Created", "Starting", "WaitingForSlot")
"""What a job says that has no slot: the last once its agent has looked for one."""


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


async def here(context: Any) -> None:
    """A callback in a module that a triggerer may have."""


async def in_dag_file(context: Any) -> None:
    """A callback where Airflow has imported a DAG's file."""


in_dag_file.__module__ = f"unusual_prefix_{'0' * 40}_nightly"


def nested() -> Any:
    async def within(context: Any) -> None: ...

    return within


@pytest.mark.parametrize(
    ("after", "callback", "kwargs", "text"),
    [
        (30, here, {}, "after=30 must be a timedelta above zero"),
        (timedelta(0), here, {}, "must be a timedelta above zero"),
        (SOON, None, {}, "must be an AsyncCallback of Airflow's"),
        (SOON, in_dag_file, {}, r"WaitingAlert: nightly\.in_dag_file is defined in the file of the DAG"),
        (
            SOON,
            nested(),
            {},
            r"nested\.<locals>\.within is defined in the file of the DAG or within a function",
        ),
        (SOON, here, {"at": timedelta(1)}, "the arguments of .*here travel to the triggerer as JSON"),
    ],
)
def test_an_alert_that_cannot_be_sent_is_refused(
    after: Any, callback: Any, kwargs: dict[str, Any], text: str
) -> None:
    from airflow.sdk.definitions.deadline import AsyncCallback

    from airflow_provider.waiting_alert import WaitingAlert

    with pytest.raises(InvalidRequest, match=text):
        WaitingAlert(after, callback and AsyncCallback(callback, kwargs))


@pytest.mark.parametrize("name", ["kinetic", "kinetic_batch"])
@pytest.mark.parametrize("given", [timedelta(minutes=30), "{{ params.alert }}"], ids=str)
def test_what_is_no_alert_is_refused_in_the_dag(name: str, given: Any) -> None:
    from airflow.sdk import task

    with pytest.raises(InvalidRequest, match=r"waiting_alert=.* must be a WaitingAlert"):
        getattr(task, name)(waiting_alert=given)


def test_a_dag_gives_an_alert_to_all_its_tasks(tmp_path: Path) -> None:
    """Airflow stores the text of a mapped task's alert, which must not differ from parse to parse."""
    from airflow.sdk import DAG

    from airflow_provider.operators.batch import KineticBatchOperator
    from airflow_provider.operators.kinetic import KineticOperator

    given = alert("tell", tmp_path / "told")
    with DAG("dag", schedule=None, default_args={"waiting_alert": given}):
        one = KineticOperator(task_id="one", python_callable=abs, op_args=[1])
        many = KineticBatchOperator(task_id="many", python_callable=until_told, op_args=[["a"]])
        mapped = KineticOperator.partial(task_id="mapped", python_callable=abs).expand(op_args=[[1], [2]])
    instance: Any = mapped.unmap({"op_args": [1]})
    assert one.waiting_alert is many.waiting_alert is instance.waiting_alert is given
    assert str(given) == str(alert("tell", tmp_path / "told")) == f"WaitingAlert(after={SOON!r})"


def until_told(folder: str) -> str:
    import time

    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return "done"


def deferred(task: Task) -> Any:
    """The trigger to which a task defers whose job waits, as a triggerer makes it later."""
    from airflow.providers.common.compat.sdk import TaskDeferred
    from airflow.sdk.module_loading import import_string

    with pytest.raises(TaskDeferred) as raised:
        task.last_leg()
    path, kwargs = raised.value.trigger.serialize()
    return import_string(path)(**{**json.loads(json.dumps(kwargs)), "deferred_at": 0.0})


def test_of_two_triggers_at_once_one_tells(tmp_path: Path, no_slot_is_free: Callable[[], None]) -> None:
    told = tmp_path / "told"
    task = Task(until_told, ended=False, argument=str(tmp_path), waiting_alert=alert("tell", told))

    async def both() -> list[Any]:
        events = [asyncio.ensure_future(anext(deferred(task).run())) for _ in range(2)]
        async with asyncio.timeout(60):
            while not lines(told):
                await asyncio.sleep(0.02)
        no_slot_is_free()
        (tmp_path / "go").touch()
        return await asyncio.gather(*events)

    assert [event.payload["status"] for event in asyncio.run(both())] == ["ended", "ended"]
    assert task.last_leg() == "done"
    (line,) = lines(told)
    context = json.loads(line)
    assert context["ti"]["task_id"] == "task"
    assert context["waiting"]["job_id"] == task.reference.job_id
    assert context["waiting"]["reason"] in REASONS


def test_a_callback_that_fails_fails_no_task(tmp_path: Path, no_slot_is_free: Callable[[], None]) -> None:
    told = tmp_path / "told"
    task = Task(until_told, ended=False, argument=str(tmp_path), waiting_alert=alert("break_down", told))
    (tmp_path / "go").touch()
    threading.Thread(target=when, args=(told, no_slot_is_free)).start()
    assert fired(deferred(task))["status"] == "ended"
    assert task.last_leg() == "done"
    assert lines(told) == ["called"]


def when(told: Path, act: Callable[[], None]) -> None:
    """Act when somebody was told."""
    wait_for(lambda: lines(told))
    act()


def test_a_worker_that_waits_tells(tmp_path: Path, no_slot_is_free: Callable[[], None]) -> None:
    told = tmp_path / "told"
    given = alert("TeamNotifier", told, text="{{ ti.task_id }}: {{ waiting.reason }}")
    options: dict[str, Any] = {"deferrable": False, "waiting_alert": given}
    task = Task(until_told, ended=False, argument=str(tmp_path), **options)
    (tmp_path / "go").touch()
    threading.Thread(target=when, args=(told, no_slot_is_free)).start()
    assert task.last_leg() == "done"
    assert lines(told) in [[f"task: {reason}"] for reason in REASONS]


@pytest.mark.promise("scale: A notifier when a job waits too long")
@pytest.mark.parametrize("deferrable", [True, False])
def test_a_batch_tells_once(home: Path, deferrable: bool) -> None:
    told = home / "told"
    task = BatchTask(home, waiting_alert=alert("tell", told), deferrable=deferrable)
    (home / "go").touch()
    with all_slots_taken(home.parent / "kinetic") as release:
        threading.Thread(target=when, args=(told, release)).start()
        values = task.last_leg(task.deferred()) if deferrable else task.operator.execute(task.context)
    assert len(values) == SIZE
    (line,) = lines(told)
    waiting = json.loads(line)["waiting"]
    assert waiting["job_id"].startswith("grp-")
    assert waiting["reason"] in REASONS


def test_no_alert_for_a_job_that_runs_in_time(tmp_path: Path, local_jobs: Path) -> None:
    told = tmp_path / "told"
    (tmp_path / "go").touch()
    options: dict[str, Any] = {"deferrable": False, "waiting_alert": alert("tell", told, timedelta(hours=1))}
    assert Task(until_told, ended=False, argument=str(tmp_path), **options).last_leg() == "done"
    assert lines(told) == []


@pytest.mark.promise("scale: A notifier when a job waits too long")
def test_tasks_of_a_real_airflow_tell_once(cases: Any) -> None:
    """Mapped, notified, in a worker, with a callback that fails, and a batch."""
    names = ("mapped", "notified", "inline", "broken", "batch")
    expected = {"mapped": 2, "notified": 1, "inline": 1, "broken": 1, "batch": 1}

    def told() -> dict[str, list[str]]:
        return {name: lines(cases.airflow.home / f"told-{name}") for name in names}

    def counts() -> dict[str, int]:
        return {name: len(found) for name, found in told().items()}

    with all_slots_taken(cases.airflow.home / "kinetic"):
        cases.start("alerts")
        cases.airflow.until(lambda: counts() == expected, 600, "everybody to be told")
    assert cases.end("alerts") == "success"
    assert counts() == expected
    run_id = cases.runs["alerts"]
    contexts = [json.loads(line) for line in told()["mapped"]]
    assert {context["ti"]["map_index"] for context in contexts} == {0, 1}
    for context in contexts:
        ti, waiting = context["ti"], context["waiting"]
        assert (ti["dag_id"], ti["task_id"], ti["run_id"]) == ("alerts", "mapped", run_id)
        assert f"/dags/alerts/runs/{run_id.replace(':', '%3A').replace('+', '%2B')}/" in ti["log_url"]
        assert waiting["text"].startswith(
            f"mapped[{ti['map_index']}] (number={ti['map_index'] + 1}) of DAG alerts"
        )
        assert waiting["hardware"] == "cpu"
        assert waiting["reason"] in REASONS
    for name in ("notified", "inline"):
        (line,) = told()[name]
        assert line.endswith(tuple(f" of {name} in {run_id}: {reason}" for reason in REASONS))
    assert "the waiting alert failed, and is not repeated: platform_team.break_down" in cases.log(
        "alerts", "broken"
    )
    assert "the channel is gone" in cases.log("alerts", "broken")
    assert cases.value("alerts", "broken") == 5
