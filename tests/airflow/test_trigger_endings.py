"""Who ends a task in a real Airflow: its trigger, or a worker. See ADR 0065."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.airflow

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An Airflow without traces and listeners, and the run of a DAG that has ended there."""
    from conftest import Cases
    from demo_airflow import DemoAirflow

    home = tmp_path_factory.mktemp("ending").resolve()
    project = home / "project"
    shutil.copytree(HERE / "ending_dags", project / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    (project / "pyproject.toml").write_text("[project]\nname = 'endings'\nversion = '0'\n")
    airflow = DemoAirflow(home, project / "dags", extra={"XDG_CACHE_HOME": str(home / "cache")})
    try:
        airflow.start()
        cases = Cases(airflow)
        assert cases.end("endings") == "failed"
        yield cases
    finally:
        airflow.stop(patience=0)


def legs(cases: Any, instance: dict[str, Any], attempt: int | None = None) -> int:
    """How many workers have had the task in this try: each names the DAG's file that it has read."""
    return cases.api.log(instance, attempt).count("DAG bundles loaded")


@pytest.mark.promise("scale: A trigger ends the task: no second worker, no hold before it resumes")
@pytest.mark.promise("airflow: A task is one leg")
@pytest.mark.parametrize("task_id", ["mapped", "quiet", "unpack", "pack_again"])
def test_a_trigger_ends_a_task_that_succeeds(ended: Any, task_id: str) -> None:
    for instance in ended.instances("endings", task_id):
        log = ended.api.log(instance)
        assert instance["state"] == "success", log
        assert legs(ended, instance) == 1, log


@pytest.mark.promise("scale: … also one whose value becomes a reference; the next task has it")
def test_the_values_are_those_of_a_worker(ended: Any) -> None:
    assert ended.values("endings", "mapped") == [2, 4, 6]
    assert ended.values("endings", "over_two") == [2, 4]
    assert ended.value("endings", "unpack") == [1, 2]
    assert ended.value("endings", "quiet") is None
    packed = [*ended.values("endings", "pack"), ended.value("endings", "pack_again")]
    assert [each["__kinetic_result__"] for each in packed] == [1, 1, 1]
    assert all(each["signature"] for each in packed)
    assert ended.value("endings", "large") == "x" * 100_000


@pytest.mark.promise("scale: A trigger ends the task: no second worker, no hold before it resumes")
def test_the_record_and_the_log_say_how_a_job_ended(ended: Any) -> None:
    for number, record in enumerate(ended.values("endings", "mapped", "kinetic_job"), start=1):
        assert record["end"]["status"] == "SUCCEEDED"
        log = ended.api.log(ended.instances("endings", "mapped")[number - 1])
        assert log.count(f"doubling {number}") == 1
        assert f"{record['reference']['job_id']} is SUCCEEDED" in log


@pytest.mark.promise("scale: Where a worker is needed it ends the task, and the ADR says when")
@pytest.mark.parametrize(
    "task_id", ["with_outlet", "with_callback", "with_hook", "two", "chatter", "large", "over_two"]
)
def test_a_worker_ends_what_needs_one(ended: Any, task_id: str) -> None:
    for instance in ended.instances("endings", task_id):
        log = ended.api.log(instance)
        assert instance["state"] == "success", log
        assert legs(ended, instance) == (1 if task_id == "over_two" else 2), log
    assert ended.log("endings", "chatter").count("chatter 149") == 1


@pytest.mark.promise("scale: … and one that fails without retries")
def test_a_trigger_fails_a_task_without_retries(ended: Any) -> None:
    instance = ended.instance("endings", "fail")
    log = ended.log("endings", "fail")
    assert (instance["state"], legs(ended, instance)) == ("failed", 1), log
    assert log.index('raise ValueError("no luck")') < log.index("Trigger fired event")
    assert ended.value("endings", "fail") is None
    record = ended.values("endings", "fail", "kinetic_job")[0]
    assert record["end"]["status"] == "FAILED"


@pytest.mark.promise("scale: Where a worker is needed it ends the task, and the ADR says when")
def test_a_worker_retries_and_the_last_try_needs_none(ended: Any) -> None:
    instance = ended.instance("endings", "fail_twice")
    assert (instance["state"], instance["try_number"]) == ("failed", 2)
    assert [legs(ended, instance, number) for number in (1, 2)] == [2, 1]
    for number in (1, 2):
        assert "ValueError: no luck" in ended.log("endings", "fail_twice", number)
