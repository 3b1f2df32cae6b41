"""What it costs to know how a job has failed: three requests, whoever wrote it down."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import wire
from kinetic_core.cluster.connecting import Target
from kinetic_core.configuration import read_settings
from kinetic_core.gke.backend import GkeBackend
from kinetic_core.gke.lookup import Later
from kinetic_core.lifecycle.backends import Found
from kinetic_core.lifecycle.observing import found
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.packing import pack
from kinetic_core.lifecycle.preparing import address
from kinetic_core.lifecycle.settling import is_over, look, outcome_key, settle
from kinetic_core.lifecycle.submission import submit
from kinetic_core.model.job import JobObservation
from kinetic_core.model.states import JobStatus
from kinetic_core.testing import MemoryObjectStore
from kinetic_core.testing import pod_behaviour as behaviours
from kinetic_core.testing.fake_cluster import FakeCluster
from tests.conftest import wait_for

ID = "job-00000000000000bb"


def answer() -> int:
    return 42


class Place:
    """A cluster on which one job has been submitted, and the way of a new process to it."""

    def __init__(self, fake: FakeCluster, folder: Path) -> None:
        self.fake, self.store = fake, MemoryObjectStore("gs://bucket")
        target = Target(str(fake.write_kubeconfig(folder / "kubeconfig")))
        self.backend = GkeBackend(target, "bucket", read_settings())
        self.backend.store = self.store  # type: ignore[assignment]
        settings = replace(read_settings(), cache=folder / "cache", package_root=str(Path(__file__).parent))
        asked = RunOptions.checked("cpu", container_image="python:3.11")
        self.reference = submit(address(pack(answer, asked, settings, backend=self.backend), job_id=ID))

    def look(self) -> JobObservation:
        return look(self.backend, self.reference)

    def status(self) -> tuple[JobObservation, list[object]]:
        """What `kinetic jobs status` finds, and the requests it makes."""
        before = len(self.fake.faults.requests)
        self.store.requests.clear()
        seen = look(self.backend, found(self.backend, ID))
        return seen, [*self.store.requests, *(one.line for one in self.fake.faults.requests[before:])]


def commit(place: Place, there: Found) -> None:
    """The outcome of an attempt that failed, as its runner writes it."""
    failure = wire.Failure(wire.FailureClass.USER_ERROR, "mine", "execute")
    header = {"protocol": wire.PROTOCOL, "state": "failed", "codec": "none", "failure": failure.to_dict()}
    frame = wire.encode_frame({**header, "attempt": 1, "times": {"started": 12.5}}, {}, outcome_key(there[0]))
    place.store.create(wire.result_object(ID), frame, {wire.STATE: "failed"})


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with FakeCluster(lambda _: behaviours.runs_until_stopped()) as fake:
        yield (made := Place(fake, tmp_path))
        made.backend.close("default")


def test_after_a_cancellation_that_an_observer_wrote_down(place: Place) -> None:
    wait_for(lambda: place.look().status is JobStatus.RUNNING)
    running, there = place.look(), place.backend.get("default", ID)
    assert there is not None
    assert running.started_at is not None
    place.backend.delete("default", ID)
    failure = wire.Failure(wire.FailureClass.CANCELLED, "the job was cancelled", last_lines=("last",))
    settle(place.backend, place.reference, there, replace(running, failure=failure))
    seen, asked = place.status()
    assert len(asked) == 3, asked
    assert (seen.status, seen.failure) == (JobStatus.FAILED, failure)
    assert (seen.started_at, seen.finished_at is None) == (running.started_at, False)


def test_after_one_that_nobody_wrote_down(place: Place) -> None:
    place.backend.delete("default", ID)
    assert place.look().message == "the job was cancelled"
    seen, asked = place.status()
    assert (len(asked), seen.message) == (3, "the job was cancelled"), asked


def test_after_a_failure_that_the_runner_wrote_down(place: Place) -> None:
    place.backend.delete("default", ID)
    there = place.backend.get("default", ID)
    assert there is not None
    commit(place, there)
    seen, asked = place.status()
    assert len(asked) == 3, asked
    assert (seen.message, seen.attempt, seen.started_at) == ("mine", 1, 12.5)


def test_a_job_that_does_not_say_yet_that_it_is_over(place: Place) -> None:
    """Its runner has committed, its pods have ended, and the Job's controller is late."""
    wait_for(lambda: place.look().status is JobStatus.RUNNING)
    there = place.backend.get("default", ID)
    assert there is not None
    job, living = there
    ended = [{**pod, "status": {**pod["status"], "phase": "Succeeded"}} for pod in living]
    assert not is_over(place.store, place.reference, (job, ended))
    commit(place, there)
    assert not is_over(place.store, place.reference, (job, living))
    assert is_over(place.store, place.reference, (job, ended))


def test_objects_are_asked_for_once_and_by_who_looks() -> None:
    asked: list[float] = []

    def ask() -> Sequence[dict[str, Any]]:
        asked.append(time.monotonic())
        return [{"n": 1}, {"n": 2}]

    later = Later(ask)
    assert asked == []
    assert (len(later), list(later), later[-1], later[:1]) == (2, [{"n": 1}, {"n": 2}], {"n": 2}, [{"n": 1}])
    assert len(asked) == 1
