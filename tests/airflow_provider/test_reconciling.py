"""Jobs whose tasks are over, and which nobody watches: real jobs on the local backend."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider.job_of_task import Origin
from airflow_provider.orphans import Reconciler, place_key
from kinetic_core import JobStatus
from kinetic_core.backends.base import Backend, backend_of
from kinetic_core.connections import default_connections
from kinetic_core.job import JobReference
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.observe import find, observe, wait, watch
from kinetic_core.jobs.submit import Call, prepare, submit
from kinetic_core.jobs.warm import WorkerSummary
from kinetic_core.options import RunOptions
from tests.airflow_provider.forgotten import Told, job

pytestmark = pytest.mark.usefixtures("local_jobs")


def looks(reference: JobReference, told: Told, times: int = 2) -> list[list[str]]:
    """What each of several looks cancels."""
    reconciler = Reconciler(backend_of(reference, default_connections()), reference.namespace, "ours", told)

    async def look() -> list[list[str]]:
        return [await reconciler.reconcile() for _ in range(times)]

    return asyncio.run(look())


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed", "upstream_failed"])
def test_the_job_of_an_ended_task_is_cancelled_in_time(tmp_path: Path, state: str) -> None:
    with job(tmp_path) as reference:
        assert looks(reference, Told({"r": {"train": state}})) == [[], [reference.job_id]]
        assert observe(backend_of(reference, default_connections()), reference).status is JobStatus.CANCELLED


@pytest.mark.promise("command: … and of dead DAG runs", "by itself in the triggerer")
def test_so_is_that_of_a_run_that_was_deleted(tmp_path: Path) -> None:
    with job(tmp_path) as reference:
        assert looks(reference, Told({})) == [[], [reference.job_id]]


@pytest.mark.attack
@pytest.mark.parametrize("state", ["awaiting_input", "a state of a later Airflow"])
def test_a_task_in_an_unknown_state_keeps_its_job(tmp_path: Path, state: str) -> None:
    with job(tmp_path) as reference:
        assert looks(reference, Told({"r": {"train": state}})) == [[], []]


@pytest.mark.attack
def test_a_task_a_0_is_not_instance_0_of_a(tmp_path: Path) -> None:
    """Airflow's answer has the same key for both."""

    async def ask(dag_id: str, run_id: str, task_ids: list[str]) -> Mapping[str, object]:
        states: dict[str, dict[str, object]] = {"a": {"a_0": "failed"}, "a_0": {"a_0": "running"}}
        return {key: state for task_id in task_ids for key, state in states[task_id].items()}

    with job(tmp_path, map_index=0, task_id="a") as over, job(tmp_path, task_id="a_0") as lives:
        reconciler = Reconciler(backend_of(over, default_connections()), over.namespace, "ours", ask)

        async def look() -> list[list[str]]:
            return [await reconciler.reconcile(), await reconciler.reconcile()]

        assert asyncio.run(look()) == [[], [over.job_id]]
        assert not observe(backend_of(lives, default_connections()), lives).is_terminal


@pytest.mark.parametrize("state", [None, "scheduled", "queued", "running", "deferred", "up_for_retry"])
def test_a_task_that_goes_on_keeps_its_job(tmp_path: Path, state: str | None) -> None:
    with job(tmp_path) as reference:
        assert looks(reference, Told({"r": {"train": state}})) == [[], []]
        assert not observe(backend_of(reference, default_connections()), reference).is_terminal


def test_a_task_that_is_over_for_one_look_only_keeps_its_job(tmp_path: Path) -> None:
    with job(tmp_path) as reference:
        told = Told({})
        reconciler = Reconciler(
            backend_of(reference, default_connections()), reference.namespace, "ours", told
        )
        assert asyncio.run(reconciler.reconcile()) == []
        told.states = {"r": {"train": "running"}}
        assert asyncio.run(reconciler.reconcile()) == []
        told.states = {}
        assert asyncio.run(reconciler.reconcile()) == []


def test_watched_jobs_and_other_airflows_jobs_are_let_be(tmp_path: Path) -> None:
    with job(tmp_path, deployment="theirs") as theirs, job(tmp_path, run_id="watched") as watched:
        subscription = watch(backend_of(watched, default_connections()), watched, lambda _: None)
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


def test_an_origin_that_airflow_cannot_be_asked_of_is_none() -> None:
    good = Origin("mine", "d", "r", "train", -1)
    assert Origin.from_text(good.to_text()) == good
    assert Origin.from_text(replace(good, dag_id="caf\udce9").to_text()) is None


def test_each_search_counts_the_time_of_warm_workers() -> None:
    looked: list[tuple[str, list[tuple[str, bool]]]] = []

    class Clock:
        def seen(self, place: str, workers: list[WorkerSummary]) -> None:
            looked.append((place, [(each.job_id, each.is_idle) for each in workers]))

    options = RunOptions.checked(accelerator="cpu", warm=60)
    prepared = prepare(Call(print, ("hello",), {}), options, default_connections())
    reference = submit(prepared)
    backend = backend_of(reference, default_connections())
    wait(backend, reference)
    reconciler = Reconciler(backend, reference.namespace, "ours", Told({}), Clock())  # type: ignore[arg-type]
    assert asyncio.run(reconciler.reconcile()) == []
    ((place, workers),) = looked
    assert place == place_key(backend, reference.namespace)
    assert workers == [(reference.worker, True)]
    cancel(backend, found(backend, reference.worker))


def found(backend: Backend, job_id: str) -> JobReference:
    reference = find(backend, job_id)
    assert reference is not None
    return reference
