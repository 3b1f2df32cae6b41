"""Batches through `kinetic_core.compat`, option by option; on a cluster in test_compat_nightly.py."""

from __future__ import annotations

import time
from typing import Any

import pytest

import kinetic_core.compat as kinetic
from kinetic_core.compat.job_status import JobStatus
from tests.conftest import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_jobs")]
on_cpu = kinetic.run(accelerator="cpu")


@on_cpu
def echo(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """What it was called with; `wrong` and `slow` are for what a test needs."""
    if args[:1] == ("wrong",):
        raise ValueError("wrong from the start")
    if args[:1] == ("slow",):
        time.sleep(600)
    return args, kwargs


@on_cpu
def attempts() -> str:
    import os

    if os.environ["KINETIC_FAILED_COUNT"] == "0":
        raise RuntimeError("the first time")
    return os.environ["JOB_ID"]


def test_every_mode_of_inputs() -> None:
    items = [[1, 2], (3,), {"a": 4}]
    single = echo.run_async_map(items, input_mode="single")
    args = echo.run_async_map([[1, 2], (3,), {"a": 4}], input_mode="args")
    kwargs = echo.run_async_map([{"a": 4}, [1]], input_mode="kwargs")
    auto = echo.run_async_map([{"a": 4}, {"not a name": 5}, {1: 6}, {"class": 7}, 8])
    assert single.results(timeout=300) == [((item,), {}) for item in items]
    assert auto.results(timeout=300) == [
        ((), {"a": 4}),
        (({"not a name": 5},), {}),
        (({1: 6},), {}),
        (({"class": 7},), {}),
        ((8,), {}),
    ]
    for batch, index in ((args, 2), (kwargs, 1)):
        with pytest.raises(kinetic.BatchError) as caught:
            batch.results(timeout=300)
        assert list(caught.value.submission_failures) == [index]
        assert isinstance(caught.value.submission_failures[index], TypeError)
    for batch in (single, args, kwargs, auto):
        batch.cleanup()


def test_more_than_a_hundred_at_once_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    batch = echo.run_async_map([("slow",)] * 101, max_concurrent=None)
    assert len(batch.jobs) == 101
    batch.cancel()
    batch.cleanup()
    assert any("101 jobs with no limit" in message for message in caplog.messages)


def test_retries_are_attempts_of_an_input() -> None:
    batch = kinetic.collections.map(attempts.run_async, [(), ()], retries=1)
    first = [job.job_id for job in batch.jobs if job is not None]
    values = batch.results(timeout=300, cleanup=False)
    assert values == [job.job_id for job in batch.jobs if job is not None]
    assert values[: len(first)] == first, "a retried input is the same job"
    batch.cleanup()


def test_after_a_failure_nothing_is_launched() -> None:
    batch = echo.run_async_map([("wrong",), 1, 2, 3], max_concurrent=1, fail_fast=True)
    with pytest.raises(kinetic.BatchError) as caught:
        batch.results(timeout=300)
    assert [job.group_index for job in caught.value.failures] == [0]
    assert caught.value.partial_results[3] is None
    assert dict(batch.statuses()).get(3, JobStatus.NOT_FOUND) is JobStatus.NOT_FOUND
    batch.cleanup()


def test_after_a_failure_what_runs_is_cancelled() -> None:
    batch = echo.run_async_map([("slow",), ("wrong",)], fail_fast=True, cancel_running_on_fail=True)
    with pytest.raises(kinetic.BatchError) as caught:
        batch.results(timeout=300)
    assert caught.value.partial_results == [None, None]
    assert 1 in [job.group_index for job in caught.value.failures]
    assert dict(batch.statuses()).get(0, JobStatus.NOT_FOUND) is JobStatus.NOT_FOUND
    batch.cleanup()


def test_one_at_a_time_and_as_many_as_there_are() -> None:
    batch = echo.run_async_map([("slow",), ("slow",)], max_concurrent=1)
    wait_for(lambda: batch.status_counts().get("RUNNING") == 1, 120)
    assert batch.status_counts().get("RUNNING") == 1
    batch.cleanup()
    unlimited = echo.run_async_map([1, 2], max_concurrent=None)
    assert unlimited.results(timeout=300) == [((1,), {}), ((2,), {})]
    unlimited.cleanup()


def test_waiting_for_a_batch_ends_in_time() -> None:
    batch = echo.run_async_map([1, ("slow",)])
    for wait in (batch.wait, batch.results, lambda timeout: list(batch.as_completed(timeout=timeout))):
        with pytest.raises(TimeoutError):
            wait(timeout=0.5)
    assert batch.status_counts().get("FAILED") is None
    batch.cleanup()


def test_results_in_the_order_of_their_ends() -> None:
    batch = echo.run_async_map([1, ("wrong",), 2])
    values = batch.results(timeout=300, ordered=False, return_exceptions=True, cleanup=False)
    assert len(values) == 3
    assert {str(value) for value in values} == {"((1,), {})", "((2,), {})", "wrong from the start"}
    with pytest.raises(kinetic.BatchError) as caught:
        batch.results(ordered=False, cleanup=False)
    assert [value for value in caught.value.partial_results if value is not None] == [((1,), {}), ((2,), {})]
    assert [job.group_index for job in batch.failures()] == [1]
    batch.cleanup()


def test_children_know_their_batch() -> None:
    batch = echo.run_async_map([1], name="named", tags={"team": "vision"})
    batch.wait(timeout=300)
    again = kinetic.attach_batch(batch.group_id, poll_interval=1, poll_timeout=None)
    assert (again.name, again.tags, again.unavailable_children) == ("named", {"team": "vision"}, {})
    (job,) = again.jobs
    assert job is not None
    assert (job.group_id, job.group_kind, job.group_index) == (batch.group_id, "map", 0)
    assert again.results(timeout=300, cleanup=False) == batch.results(cleanup=False) == [((1,), {})]
    batch.cleanup()


@pytest.mark.parametrize("max_concurrent", [2, None])
def test_a_manifest_outlives_the_collected_values(max_concurrent: int | None) -> None:
    batch = echo.run_async_map([1, 2, 3], max_concurrent=max_concurrent)
    batch.results(timeout=300)
    assert {job.status() for job in batch.jobs if job is not None} == {JobStatus.NOT_FOUND}
    again = kinetic.attach_batch(batch.group_id)
    assert set(again.status_counts()) <= {"NOT_FOUND"}
    again.cleanup()
    with pytest.raises(FileNotFoundError):
        kinetic.attach_batch(batch.group_id)
