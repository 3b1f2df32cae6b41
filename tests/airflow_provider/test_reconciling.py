"""Jobs whose tasks are over, and which nobody watches: real jobs on the local backend."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from airflow_provider.origin import Origin
from airflow_provider.reconciling import Reconciler
from kinetic_core import JobStatus
from kinetic_core.lifecycle.backends import backend_of
from kinetic_core.lifecycle.observing import observe, watch
from kinetic_core.model.job import JobReference
from tests.airflow_provider.forgotten import Told, job

pytestmark = pytest.mark.usefixtures("local_jobs")


def looks(reference: JobReference, told: Told, times: int = 2) -> list[list[str]]:
    """What each of several looks cancels."""
    reconciler = Reconciler(backend_of(reference), reference.namespace, "ours", told)

    async def look() -> list[list[str]]:
        return [await reconciler.look() for _ in range(times)]

    return asyncio.run(look())


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed", "upstream_failed"])
def test_the_job_of_a_task_that_is_over_is_cancelled_at_the_second_look(tmp_path: Path, state: str) -> None:
    with job(tmp_path) as reference:
        assert looks(reference, Told({"r": {"train": state}})) == [[], [reference.job_id]]
        assert observe(reference).status is JobStatus.FAILED


def test_so_is_that_of_a_run_that_was_deleted(tmp_path: Path) -> None:
    with job(tmp_path) as reference:
        assert looks(reference, Told({})) == [[], [reference.job_id]]


@pytest.mark.parametrize("state", [None, "scheduled", "queued", "running", "deferred", "up_for_retry"])
def test_a_task_that_goes_on_keeps_its_job(tmp_path: Path, state: str | None) -> None:
    with job(tmp_path) as reference:
        assert looks(reference, Told({"r": {"train": state}})) == [[], []]
        assert not observe(reference).is_terminal


def test_a_task_that_is_over_for_one_look_only_keeps_its_job(tmp_path: Path) -> None:
    with job(tmp_path) as reference:
        told = Told({})
        reconciler = Reconciler(backend_of(reference), reference.namespace, "ours", told)
        assert asyncio.run(reconciler.look()) == []
        told.states = {"r": {"train": "running"}}
        assert asyncio.run(reconciler.look()) == []
        told.states = {}
        assert asyncio.run(reconciler.look()) == []


def test_jobs_of_another_airflow_and_jobs_that_somebody_watches_are_let_be(tmp_path: Path) -> None:
    with job(tmp_path, deployment="theirs") as theirs, job(tmp_path, run_id="watched") as watched:
        subscription = watch(watched, lambda _: None)
        told = Told({})
        assert looks(theirs, told) == [[], []]
        assert told.asked == []
        subscription.close()


def test_one_question_for_all_instances_of_a_run(tmp_path: Path) -> None:
    with job(tmp_path, map_index=0) as first, job(tmp_path, map_index=1) as second:
        told = Told({"r": {"train_0": "deferred", "train_1": "failed"}})
        assert looks(first, told) == [[], [second.job_id]]
        assert told.asked == [("d", "r", ["train"])] * 2


@pytest.mark.parametrize("text", ["", "[]", '{"dag_id": 1}', '{"deployment": "x"}', "null"])
def test_an_annotation_of_somebody_else_is_no_origin(text: str) -> None:
    assert Origin.from_text(text) is None
