"""The id of a task instance's job: the same from any process, another for any other task instance."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.job_of_task import TaskIdentity

ONE = TaskIdentity("dag", "run", "2026-01-01T00:00:00+00:00", "task", -1, 1)
PARTS_OF_THE_ID = ("dag_id", "run_id", "run_began", "task_id", "map_index", "try_number")


def context(try_number: int, max_tries: int, retries: int = 2, clear_number: int = 0, day: int = 1) -> Any:
    names: dict[str, Any] = {"dag_id": "dag", "run_id": "run", "task_id": "task", "map_index": None}
    task = SimpleNamespace(retries=retries)
    ti = SimpleNamespace(**names, max_tries=max_tries, try_number=try_number, task=task)
    began = datetime(2026, 1, day, tzinfo=UTC)
    return {"ti": ti, "dag_run": SimpleNamespace(start_date=began, clear_number=clear_number)}


def test_it_is_read_from_the_context() -> None:
    assert replace(TaskIdentity.of(context(1, 2)), counts_clears=True) == ONE


def test_the_id_is_a_job_id_and_the_same_in_any_process() -> None:
    assert re.fullmatch(r"job-[0-9a-f]{16}", ONE.job_id())
    program = f"from airflow_provider.job_of_task import TaskIdentity; print({ONE!r}.job_id())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ONE.job_id()


@pytest.mark.promise("airflow: Key, generation and adoption as the design says")
@pytest.mark.parametrize("name", PARTS_OF_THE_ID)
def test_every_part_of_the_key_makes_another_job(name: str) -> None:
    value = getattr(ONE, name)
    other = replace(ONE, **{name: value + 1 if isinstance(value, int) else value + "x"})
    assert other.job_id() != ONE.job_id()


def test_a_changed_call_has_an_id_of_its_own() -> None:
    assert len({ONE.job_id(), ONE.job_id("a" * 64), ONE.job_id("b" * 64)}) == 3


def test_what_airflow_counts_beside_the_try_makes_no_other_job() -> None:
    assert replace(ONE, first_try=3, clear_number=7, team="red").job_id() == ONE.job_id()


def test_its_tries_are_those_so_far_newest_first() -> None:
    assert [each.try_number for each in replace(ONE, try_number=3).tries()] == [3, 2, 1]


@pytest.mark.attack
def test_an_automatic_retry_may_adopt_all_tries() -> None:
    assert [TaskIdentity.of(context(3, 2)).may_adopt(number) for number in (1, 2, 3)] == [True] * 3


@pytest.mark.promise("airflow: Key, generation and adoption as the design says")
@pytest.mark.attack
@pytest.mark.parametrize("retries", [0, 1, 2, 5])
def test_a_cleared_task_adopts_no_try_before_the_clearing(retries: int) -> None:
    """Two tries of a task with two retries, then a person clears it, after editing its retries: with one
    retry less Airflow's `max_tries` is what it was.
    """
    cleared = TaskIdentity.of(context(3, max_tries=2 + retries, retries=retries, clear_number=1))
    assert [cleared.may_adopt(number, clear_number=0) for number in (1, 2)] == [False, False]
    retried = TaskIdentity.of(context(4, max_tries=2 + retries, retries=retries, clear_number=1))
    assert [retried.may_adopt(number) for number in (2, 3)] == [False, True]


@pytest.mark.promise("airflow: Key, generation and adoption as the design says")
@pytest.mark.attack
def test_a_clearing_that_airflow_does_not_count_is_seen() -> None:
    """Airflow 3.1 leaves `clear_number` as it was when a task of a running DAG run is cleared."""
    counted = TaskIdentity.of(context(2, max_tries=3, clear_number=0))
    cleared = replace(counted, counts_clears=False)
    assert cleared.first_try == 2
    assert not cleared.may_adopt(1, clear_number=0)
    assert cleared.may_adopt(2, clear_number=0)


@pytest.mark.attack
def test_retries_edited_during_a_run_lose_no_living_job() -> None:
    retried = replace(TaskIdentity.of(context(2, max_tries=2, retries=0)), counts_clears=True)
    assert retried.may_adopt(1, clear_number=0)


@pytest.mark.attack
def test_clearing_another_task_of_the_run_loses_no_job() -> None:
    retried = TaskIdentity.of(context(2, max_tries=2, clear_number=4))
    assert retried.may_adopt(1, clear_number=3)
    assert retried.job_id() == TaskIdentity.of(context(2, max_tries=2)).job_id()


@pytest.mark.attack
def test_a_leg_keeps_its_job_when_the_run_begins_anew() -> None:
    first = TaskIdentity.of(context(1, 2))
    later = TaskIdentity.of(context(1, 2, clear_number=1, day=2), first.run_began)
    assert later.owns(first.job_id(), "d")


def test_a_task_owns_the_jobs_of_its_tries_and_no_others() -> None:
    mine = TaskIdentity("dag", "run", "began", "task", -1, 3, first_try=2)
    earlier, other = replace(mine, try_number=2), replace(mine, task_id="other")
    assert mine.owns(mine.job_id(), "d")
    assert mine.owns(earlier.job_id("d"), "d")
    assert not mine.owns(other.job_id(), "d")
    assert not mine.owns(replace(mine, try_number=1).job_id(), "d")
