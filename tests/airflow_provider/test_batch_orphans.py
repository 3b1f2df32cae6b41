"""Batches whose tasks are over: on this machine, and as chunks of a cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.batch_of_task import cancel_unless_superseded, living
from airflow_provider.job_of_task import Origin, TaskIdentity
from airflow_provider.orphans import Reconciler, batch_of
from kinetic_core.backends.kubernetes.names import CHUNK, JOB_ID, ORIGIN_ID
from kinetic_core.backends.kubernetes.names import ORIGIN as ANNOTATION
from kinetic_core.backends.kubernetes.verdict import observe
from kinetic_core.batches.submit import submit_clientless
from kinetic_core.job import JobStatus
from kinetic_core.testing import kubelet
from tests.airflow_provider.batches import ended, home, start, until_told
from tests.airflow_provider.forgotten import Told
from tests.batches.places import PLAN, Place

IDENTITY = TaskIdentity("d", "r", "", "train", -1, 1)
ORIGIN = Origin.of(IDENTITY, "ours")


def looks(backend: Any, told: Any) -> list[list[str]]:
    """What each of two looks cancels."""
    reconciler = Reconciler(backend, "default", "ours", told)

    async def look() -> list[list[str]]:
        return [await reconciler.reconcile(), await reconciler.reconcile()]

    return asyncio.run(look())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, lambda _: kubelet.stays_pending())
    yield made
    made.close()


def test_chunks_say_whose_they_are(place: Place) -> None:
    submit_clientless(place.packed(), [1, 2], replace(PLAN, origin=ORIGIN.to_text(), environment={"A": "b"}))
    (job,) = place.jobs()
    assert job["metadata"]["labels"][ORIGIN_ID] == ORIGIN.id
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert {"name": "A", "value": "b"} in container["env"]
    (found,) = living(place.backend, "default", ORIGIN)
    assert (found.job_id, found.group_id, found.origin) == ("grp-a-p0", "grp-a", ORIGIN)
    assert list(living(place.backend, "default", replace(ORIGIN, task_id="other"))) == []
    manifest = json.loads(place.store.read("batches/grp-a/manifest.json"))
    assert Origin.from_text(manifest["origin"]) == ORIGIN


@pytest.mark.parametrize(("state", "lives"), [("running", True), ("deferred", True), ("failed", False)])
def test_the_chunks_of_an_ended_task_are_cancelled(place: Place, state: str, lives: bool) -> None:
    submit_clientless(place.packed(), [1, 2], replace(PLAN, origin=ORIGIN.to_text()))
    cancelled = looks(place.backend, Told({"r": {"train": state}}))
    assert cancelled == ([[], []] if lives else [[], ["grp-a-p0"]])
    (job,) = place.jobs()
    assert observe(job, ()).is_terminal is not lives


def test_a_newer_try_keeps_a_batch_that_an_older_ends(place: Place) -> None:
    newer = replace(ORIGIN, try_number=2)
    whole = submit_clientless(place.packed(), [1, 2], replace(PLAN, origin=newer.to_text()))
    assert not cancel_unless_superseded(place.backend, whole, ORIGIN)
    assert not observe(place.jobs()[0], ()).is_terminal
    assert cancel_unless_superseded(place.backend, whole, newer)
    assert observe(place.jobs()[0], ()).status is JobStatus.CANCELLED


def test_a_batch_that_a_cleared_task_runs_again_goes_on(place: Place) -> None:
    """Its task is cleared, and begins, after the second look has heard that it is over."""
    submit_clientless(place.packed(), [1, 2], replace(PLAN, origin=ORIGIN.to_text()))
    (job,) = place.jobs()
    answers: list[str] = []

    async def told(*_: object) -> dict[str, str]:
        answers.append("failed")
        if len(answers) == 2:
            later = replace(ORIGIN, try_number=2).to_text()
            name, labels = "again", {**job["metadata"]["labels"], JOB_ID: "grp-a-p1", CHUNK: "1"}
            metadata = {
                "name": name,
                "labels": labels,
                "annotations": {**job["metadata"]["annotations"], ANNOTATION: later},
            }
            place.fake.objects.create("Job", "default", {**job, "metadata": metadata})
        return {"train": "failed"}

    looks(place.backend, told)
    assert [observe(each, ()).is_terminal for each in place.jobs()] == [False, False]


@pytest.mark.usefixtures("local_jobs")
def test_the_batch_of_an_ended_task_is_cancelled_here(tmp_path: Path, request: Any) -> None:
    identity = TaskIdentity("d", request.node.nodeid, "", "train", -1, 1)
    started = start(identity, [0, 1], tmp_path, function=until_told)
    group_id = started.reference.job_id
    told = Told({request.node.nodeid: {"train": "failed"}})
    _, cancelled = looks(home(started.reference), told)
    assert sorted(cancelled) == [f"{group_id}-0", f"{group_id}-1"]
    assert set(ended(started).states().values()) <= {"cancelled", "dropped"}


def test_ids_of_inputs_and_chunks_name_their_batch() -> None:
    assert [batch_of(each) for each in ("grp-a-7", "grp-a-p0", "job-0123456789abcdef")] == [
        "grp-a",
        "grp-a",
        "",
    ]
