"""A task instance has one job, whoever asks and however often; real jobs on the local backend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.adoption import Started, latest, start_or_adopt
from airflow_provider.identity import TaskIdentity
from kinetic_core import JobStatus
from kinetic_core._runner import wire
from kinetic_core.configuration import read_settings
from kinetic_core.lifecycle.backends import open_backend
from kinetic_core.lifecycle.ending import cancel, cleanup
from kinetic_core.lifecycle.observing import observe, wait
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.submission import Call
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("local_jobs")
OPTIONS = RunOptions.checked(accelerator="cpu")


def until_told(folder: str) -> str:
    import time

    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return "done"


def fail() -> None:
    raise ValueError("no luck")


@pytest.fixture
def identity(request: pytest.FixtureRequest) -> TaskIdentity:
    return TaskIdentity("dag", request.node.nodeid, "", "task", -1, 2, 1)


def call_until_told(tmp_path: Path) -> Call:
    return Call(until_told, (str(tmp_path),), {})


def status(reference: Any) -> JobStatus:
    return observe(reference).status


def test_a_second_leg_gets_the_job_of_the_first(tmp_path: Path, identity: TaskIdentity) -> None:
    call = call_until_told(tmp_path)
    first = start_or_adopt(call, OPTIONS, identity)
    second = start_or_adopt(call, OPTIONS, identity)
    assert (first.adopted, second.adopted) == (False, True)
    assert second.reference == first.reference == latest(OPTIONS, identity)
    (tmp_path / "go").touch()
    assert wait(first.reference).status is JobStatus.SUCCEEDED


def test_the_next_try_gets_it_too_even_when_it_has_succeeded(tmp_path: Path, identity: TaskIdentity) -> None:
    call = call_until_told(tmp_path)
    first = start_or_adopt(call, OPTIONS, identity)
    running = start_or_adopt(call, OPTIONS, replace(identity, try_number=2))
    (tmp_path / "go").touch()
    wait(first.reference)
    ended = start_or_adopt(call, OPTIONS, replace(identity, try_number=3))
    assert running.reference == ended.reference == first.reference
    assert ended.observation.status is JobStatus.SUCCEEDED


def test_a_job_that_failed_is_not_adopted(identity: TaskIdentity) -> None:
    call = Call(fail, (), {})
    first = start_or_adopt(call, OPTIONS, identity)
    assert wait(first.reference).status is JobStatus.FAILED
    second = start_or_adopt(call, OPTIONS, replace(identity, try_number=2))
    assert not second.adopted
    assert second.reference.job_id != first.reference.job_id
    wait(second.reference)


def test_a_try_knows_the_jobs_of_the_tries_before(tmp_path: Path, identity: TaskIdentity) -> None:
    first = start_or_adopt(Call(fail, (), {}), OPTIONS, identity)
    wait(first.reference)
    call = call_until_told(tmp_path)
    second = start_or_adopt(call, OPTIONS, replace(identity, try_number=2))
    third = start_or_adopt(call, OPTIONS, replace(identity, try_number=3))
    cleared = start_or_adopt(call, OPTIONS, replace(identity, try_number=4, generation=5))
    (tmp_path / "go").touch()
    wait(cleared.reference)

    def told(started: Started) -> list[tuple[int, str, JobStatus]]:
        return [(each.try_number, each.reference.job_id, each.observation.status) for each in started.earlier]

    before = (1, first.reference.job_id, JobStatus.FAILED)
    assert told(first) == []
    assert told(second) == [before]
    assert (third.reference, told(third)) == (second.reference, [before])
    assert told(cleared) == [(2, second.reference.job_id, JobStatus.FAILED), before]
    assert "no luck" in second.earlier[0].observation.message


def test_an_older_job_that_cannot_be_read_keeps_nobody_from_adopting(
    tmp_path: Path, identity: TaskIdentity
) -> None:
    call = call_until_told(tmp_path)
    second = start_or_adopt(call, OPTIONS, replace(identity, try_number=2))
    store = open_backend("local", read_settings()).store
    store.create(wire.handle_object(identity.job_id()), b"what a later version writes")
    third = start_or_adopt(call, OPTIONS, replace(identity, try_number=3))
    assert (third.reference, third.earlier) == (second.reference, ())
    (tmp_path / "go").touch()
    wait(second.reference)


def test_the_same_try_of_a_changed_call_starts_another_once_the_first_is_dead(
    tmp_path: Path, identity: TaskIdentity
) -> None:
    first = start_or_adopt(call_until_told(tmp_path), OPTIONS, identity)
    wait_for(lambda: status(first.reference) is JobStatus.RUNNING)
    changed = Call(until_told, (str(tmp_path / "other"),), {})
    second = start_or_adopt(changed, OPTIONS, identity)
    assert status(first.reference) is JobStatus.FAILED
    assert not second.adopted
    third = start_or_adopt(changed, OPTIONS, identity)
    assert third.adopted
    assert third.reference == second.reference
    cancel(second.reference)


def test_clearing_cancels_the_job_of_the_earlier_generation(tmp_path: Path, identity: TaskIdentity) -> None:
    call = call_until_told(tmp_path)
    first = start_or_adopt(call, OPTIONS, identity)
    second = start_or_adopt(call, OPTIONS, replace(identity, generation=3, try_number=2))
    assert not second.adopted
    assert status(first.reference) is JobStatus.FAILED
    (tmp_path / "go").touch()
    assert wait(second.reference).status is JobStatus.SUCCEEDED


def test_a_job_somebody_removed_is_no_job(tmp_path: Path, identity: TaskIdentity) -> None:
    (tmp_path / "go").touch()
    first = start_or_adopt(call_until_told(tmp_path), OPTIONS, identity)
    wait(first.reference)
    cleanup(first.reference)
    assert latest(OPTIONS, identity) is None
    again = start_or_adopt(call_until_told(tmp_path), OPTIONS, identity)
    assert not again.adopted
    wait(again.reference)


def trace_parent() -> str | None:
    import os

    return os.environ.get("TRACEPARENT")


def test_a_new_job_sees_the_trace_it_belongs_to_and_is_the_same_call_in_another(
    identity: TaskIdentity,
) -> None:
    from kinetic_core.lifecycle.collecting import collect

    call = Call(trace_parent, (), {})
    first = start_or_adopt(call, OPTIONS, identity, environment={"TRACEPARENT": "00-abc-def-01"})
    wait(first.reference)
    assert collect(first.reference).value_or_raise() == "00-abc-def-01"
    second = start_or_adopt(call, OPTIONS, identity, environment={"TRACEPARENT": "00-xyz-def-01"})
    assert (second.adopted, second.reference) == (True, first.reference)
