"""Bounds of a leg's patience: triggers that break, and workers that are told to stop. No Airflow starts."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_legs import Task

pytestmark = [pytest.mark.airflow, pytest.mark.attack]


def wait_for_sign(sign: str) -> str:
    while not Path(sign).exists():
        time.sleep(0.02)
    return "the job is done"


class Waiting(Task):
    """A task whose job runs until its operator says a certain thing, and whose XComs are kept."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, until: str, **options: Any) -> None:
        from airflow_provider.job_of_task import TaskIdentity
        from airflow_provider.records import KEY, JobRecord

        monkeypatch.setenv("KINETIC_LOCAL_STORE", str(folder / "kinetic"))
        self.sign = folder / "sign"
        super().__init__(wait_for_sign, ended=False, argument=str(self.sign), **options)
        self.xcoms: dict[str, Any] = {}
        ti = self.context["ti"]
        ti.xcom_push = lambda key, value: self.xcoms.update({key: value})
        ti.xcom_pull = lambda **asked: self.xcoms.get(asked["key"])
        self.xcoms[KEY] = JobRecord.of(TaskIdentity.of(self.context), self.reference).to_dict()
        self.operator.trigger_retries = 1
        kind = type(self.operator)
        log = _Log(until, self.sign.touch)
        self.operator.__class__ = type(kind.__name__, (kind,), {"log": log})

        self._before = copy.copy(self.operator)

    def in_another_worker(self) -> Any:
        """The operator as a worker has it that knows nothing of earlier legs."""
        return copy.copy(self._before)

    def after_broken(self) -> Any:
        """The leg that Airflow starts when a trigger has failed."""
        return self.in_another_worker().resume_execution("__fail__", {"error": "gone"}, self.context)

    def deferred(self, leg: Callable[[], Any]) -> dict[str, Any]:
        """Let a leg defer; what Airflow gives to the next one."""
        from airflow.providers.common.compat.sdk import TaskDeferred

        with pytest.raises(TaskDeferred) as told:
            leg()
        return dict(told.value.kwargs or {})


class _Log(logging.Logger):
    def __init__(self, until: str, act: Callable[[], object]) -> None:
        super().__init__("of an operator")
        self._until, self._act = until, act

    def handle(self, record: logging.LogRecord) -> None:
        if self._until in record.getMessage():
            self._act()


BROKEN = "waiting in this worker"


def test_after_the_last_trigger_the_worker_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `trigger_retries=1` one trigger that breaks is replaced, and the second one is not."""
    task = Waiting(tmp_path, monkeypatch, BROKEN)
    assert task.deferred(task.after_broken)["broken"] == 1
    assert task.after_broken() == "the job is done"


@pytest.mark.parametrize("limit", [None, timedelta(hours=1)])
def test_a_trigger_that_fires_between_two_resets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: timedelta | None
) -> None:
    """Or triggers that break in turn with others would be replaced without end."""
    task = Waiting(tmp_path, monkeypatch, BROKEN)
    if limit is not None:
        task.event["deadline"] = time.time() + limit.total_seconds()
    given = task.deferred(task.after_broken)
    again = task.in_another_worker()
    given = task.deferred(partial(again.execute_complete, task.context, task.event, **given))
    assert given["broken"] == 1
    assert task.after_broken() == "the job is done"


def test_an_image_that_was_built_resets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Waiting(tmp_path, monkeypatch, BROKEN)
    event = {"status": "built", "deadline": None}
    given = task.deferred(partial(task.operator.execute_after_build, task.context, event, 1, broken=1))
    assert given["broken"] == 1
    assert task.after_broken() == "the job is done"


def test_triggers_of_an_earlier_try_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Waiting(tmp_path, monkeypatch, "nothing that is said")
    task.deferred(task.after_broken)
    task.context["ti"].try_number = 2
    assert task.deferred(task.after_broken)["broken"] == 1
    task.sign.touch()


def test_a_worker_leaves_its_job_to_a_next_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.common.compat.sdk import AirflowException

    task = Waiting(tmp_path, monkeypatch, "nothing that is said", deferrable=False)
    task.operator.on_kill()
    with pytest.raises(AirflowException, match="the next try adopts it"):
        task.last_leg()
    task.sign.touch()


def test_without_a_next_try_a_worker_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it is allowed to live: if it left, nobody would collect what its job returns."""
    task = Waiting(tmp_path, monkeypatch, "This worker has been told to stop", deferrable=False)
    task.context["ti"].try_number = 2
    task.operator.on_kill()
    assert task.operator.execute_complete(task.context, task.event, 2) == "the job is done"
