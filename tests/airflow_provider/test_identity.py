"""The id of a task instance's job: the same from any process, another for any other task instance."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields, replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from airflow_provider.identity import TaskIdentity

ONE = TaskIdentity("dag", "run", "2026-01-01T00:00:00+00:00", "task", -1, 2, 1)


def test_it_is_read_from_the_context() -> None:
    ti = SimpleNamespace(
        dag_id="dag", run_id="run", task_id="task", map_index=None, max_tries=2, try_number=1
    )
    run = SimpleNamespace(start_date=datetime(2026, 1, 1, tzinfo=UTC))
    assert TaskIdentity.of({"ti": ti, "dag_run": run}) == ONE


def test_the_id_is_a_job_id_and_the_same_in_any_process() -> None:
    assert re.fullmatch(r"job-[0-9a-f]{16}", ONE.job_id())
    program = f"from airflow_provider.identity import TaskIdentity; print({ONE!r}.job_id())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ONE.job_id()


@pytest.mark.parametrize("name", [field.name for field in fields(TaskIdentity)])
def test_every_part_of_the_key_makes_another_job(name: str) -> None:
    value = getattr(ONE, name)
    other = replace(ONE, **{name: value + 1 if isinstance(value, int) else value + "x"})
    assert other.job_id() != ONE.job_id()


def test_a_changed_call_has_an_id_of_its_own() -> None:
    assert len({ONE.job_id(), ONE.job_id("a" * 64), ONE.job_id("b" * 64)}) == 3


def test_siblings_are_the_tries_so_far_newest_first() -> None:
    third = replace(ONE, try_number=3)
    assert [sibling.try_number for sibling in third.siblings()] == [3, 2, 1]
    assert {sibling.generation for sibling in third.siblings()} == {2}


def test_ancestors_are_earlier_generations_of_earlier_tries() -> None:
    """Two retries were allowed; after two tries a person cleared the task, which allows two more."""
    cleared = replace(ONE, generation=4, try_number=3)
    before = {(each.generation, each.try_number) for each in cleared.ancestors()}
    assert (2, 2) in before
    assert (2, 1) in before
    assert all(generation < 4 and number < 3 for generation, number in before)
    assert list(ONE.ancestors()) == []


def test_a_task_owns_the_jobs_of_its_tries_and_no_others() -> None:
    mine = TaskIdentity("dag", "run", "began", "task", -1, 2, 3)
    earlier, other = replace(mine, try_number=1), replace(mine, task_id="other")
    assert mine.owns(mine.job_id(), "d")
    assert mine.owns(earlier.job_id("d"), "d")
    assert not mine.owns(other.job_id(), "d")
    assert not mine.owns(replace(mine, generation=1).job_id(), "d")
