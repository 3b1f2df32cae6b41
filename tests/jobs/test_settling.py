"""What it costs to know how a job has failed: three requests, whoever wrote it down."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.base import Found
from kinetic_core.backends.kubernetes.backend import GkeBackend
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.job_objects import Later
from kinetic_core.connections import Connections, default_connections
from kinetic_core.job import JobObservation, JobStatus
from kinetic_core.jobs.bundle import pack
from kinetic_core.jobs.facts import is_over, observed
from kinetic_core.jobs.observe import found
from kinetic_core.jobs.prepare import address
from kinetic_core.jobs.reconcile import reconcile, record_failure
from kinetic_core.jobs.signing import outcome_key
from kinetic_core.jobs.submit import submit
from kinetic_core.options import RunOptions
from kinetic_core.settings import read_settings
from kinetic_core.testing import MemoryObjectStore
from kinetic_core.testing import kubelet as behaviours
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
        self.backend = GkeBackend(target, "bucket", default_connections())
        self.backend.store = self.store  # type: ignore[assignment]
        settings = replace(read_settings(), package_root=str(Path(__file__).parent))
        asked = RunOptions.checked("cpu", container_image="python:3.11")
        self.reference = submit(
            address(pack(answer, asked, Connections(settings), backend=self.backend), job_id=ID)
        )

    def reconcile(self) -> JobObservation:
        return reconcile(self.backend, self.reference)

    def status(self) -> tuple[JobObservation, list[object]]:
        """What `kinetic jobs status` finds, and the requests it makes."""
        before = len(self.fake.faults.requests)
        self.store.requests.clear()
        seen = observed(self.backend, found(self.backend, ID))
        return seen, [*self.store.requests, *(one.line for one in self.fake.faults.requests[before:])]


def commit(place: Place, there: Found) -> None:
    """The outcome of an attempt that failed, as its runner writes it."""
    failure = wire.Failure(wire.FailureClass.USER_ERROR, "mine", "execute")
    header = {"protocol": wire.PROTOCOL, "job_id": ID, "state": "failed", "codec": "none"}
    told = {"failure": failure.to_dict(), "attempt": 1, "times": {"started": 12.5}}
    frame = wire.encode_frame({**header, **told}, {}, outcome_key(there[0]))
    place.store.create_if_absent(object_names.result(ID), frame, {wire.STATE: "failed"})


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with FakeCluster(lambda _: behaviours.runs_until_stopped()) as fake:
        yield (made := Place(fake, tmp_path))
        made.backend.end_watch("default")


def test_after_a_cancellation_that_an_observer_wrote_down(place: Place) -> None:
    wait_for(lambda: place.reconcile().status is JobStatus.RUNNING)
    running, there = place.reconcile(), place.backend.get("default", ID)
    assert there is not None
    assert running.started_at is not None
    place.backend.delete("default", ID)
    failure = wire.Failure(wire.FailureClass.CANCELLED, "the job was cancelled", last_lines=("last",))
    record_failure(place.backend, place.reference, there, running, failure)
    seen, asked = place.status()
    assert len(asked) == 3, asked
    assert (seen.status, seen.failure) == (JobStatus.CANCELLED, failure)
    assert (seen.started_at, seen.finished_at is None) == (running.started_at, False)


@pytest.mark.promise("gke: Every failure: class, exit code, reason, last lines, before deletion")
def test_after_one_that_nobody_wrote_down(place: Place) -> None:
    place.backend.delete("default", ID)
    assert place.reconcile().message == "the job was cancelled"
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
    wait_for(lambda: place.reconcile().status is JobStatus.RUNNING)
    there = place.backend.get("default", ID)
    assert there is not None
    job, living = there
    ended = [{**pod, "status": {**pod["status"], "phase": "Succeeded"}} for pod in living]
    assert not is_over(place.backend, place.reference, (job, ended))
    commit(place, there)
    assert not is_over(place.backend, place.reference, (job, living))
    assert is_over(place.backend, place.reference, (job, ended))


def test_objects_are_asked_for_once_and_by_who_looks() -> None:
    asked: list[float] = []

    def ask() -> Sequence[dict[str, Any]]:
        asked.append(time.monotonic())
        return [{"n": 1}, {"n": 2}]

    later = Later(ask)
    assert asked == []
    assert (len(later), list(later), later[-1], later[:1]) == (2, [{"n": 1}, {"n": 2}], {"n": 2}, [{"n": 1}])
    assert len(asked) == 1
