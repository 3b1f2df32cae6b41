"""A thousand jobs at a glance: few requests, whatever state the store is in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core.job import JobStatus
from kinetic_core.jobs.cancel import index_object
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.listing import index_metadata, summaries
from kinetic_core.testing.memory_store import MemoryObjectStore

SECRET = bytes(32)
ENDED = [{"type": "Complete", "status": "True"}]


class Place:
    """A cluster's backend with a store in memory; `jobs` are the Jobs it has."""

    name = "gke"
    cluster = ("p", "z", "c")
    namespace = None
    parts = None

    def __init__(self) -> None:
        self.store = MemoryObjectStore("gs://b")
        self.jobs: dict[str, Any] = {}

    def all(self, namespace: str, *, fresh: bool = True) -> Mapping[str, Any]:
        return self.jobs if namespace == "n" else {}

    def states(self, namespace: str, _job_ids: object, *, and_alive: bool = False) -> Mapping[str, Any]:
        return self.all(namespace)

    def signing_secret(self, _namespace: str) -> bytes:
        return SECRET


def reference(number: int, **changed: Any) -> JobHandle:
    fields = {
        "job_id": f"job-{number:016x}",
        "backend": "gke",
        "project": "p",
        "zone": "z",
        "cluster_name": "c",
        "namespace": "n",
        "bucket_name": "",
        "k8s_name": f"kinetic-job-{number:016x}",
        "image_uri": "",
        "accelerator": "cpu",
        "func_name": "f",
        "display_name": "",
        "created_at": f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}Z",
        "store_uri": "gs://b",
    }
    return JobHandle(**{**fields, **changed})


def store(place: Place, handle: JobHandle, *, metadata: bool = True) -> None:
    place.store.create_if_absent(object_names.handle(handle.job_id), json.dumps(handle.to_dict()).encode())
    place.store.create_if_absent(index_object(handle), b"", index_metadata(handle) if metadata else None)


def end(place: Place, number: int, state: str, *, metadata: bool = True) -> None:
    """What the runner of a job stores whose Kubernetes object is gone by now."""
    job_id = f"job-{number:016x}"
    key_id = f"{job_id}::0"
    key = wire.signing_key(SECRET, key_id)
    header: dict[str, object] = {"protocol": wire.PROTOCOL, "job_id": job_id, "key_id": key_id}
    frame = wire.encode_frame({**header, "state": state}, {}, key)
    sealed = {wire.STATE: wire.sealed_state(job_id, state, key_id, key)}
    place.store.create_if_absent(object_names.result(job_id), frame, sealed if metadata else None)


@pytest.fixture
def place() -> Place:
    return Place()


def listed(place: Any, **options: Any) -> list[Any]:
    return summaries(place, **options)


@pytest.mark.promise("gke: `status`, `logs`, `result`, `attach`, `list_jobs` from any machine")
def test_a_thousand_jobs_cost_two_listings_of_the_store(place: Place) -> None:
    for number in range(1000):
        store(place, reference(number))
        if number % 2:
            end(place, number, "failed" if number % 3 else "succeeded")
    place.store.requests.clear()
    found = listed(place)
    assert place.store.requests == [("list", "index/"), ("list", "jobs/")]
    assert [job.job_id for job in found] == [f"job-{number:016x}" for number in reversed(range(1000))]
    assert [job.status for job in found[:4]] == [
        JobStatus.SUCCEEDED,
        JobStatus.NOT_FOUND,
        JobStatus.FAILED,
        JobStatus.NOT_FOUND,
    ]
    assert len(listed(place, limit=7)) == 7


def test_broken_handles_are_listed_as_such(place: Place) -> None:
    store(place, reference(1), metadata=False)
    for number in range(52, 1001):
        store(place, reference(number))
    for number in range(2, 52):
        handle = reference(number)
        place.store.create_if_absent(object_names.handle(handle.job_id), b"{broken" if number % 2 else b"[]")
        place.store.create_if_absent(index_object(handle), b"")
    found = listed(place)
    assert len(found) == 1000
    assert [job.func_name for job in found if not job.problem] == 950 * ["f"]
    assert sum("unreadable" in job.problem for job in found) == 50


@pytest.mark.promise("command: Job of another version")
def test_jobs_of_another_version_cluster_and_namespace(place: Place) -> None:
    later = reference(1, protocol=wire.PROTOCOL + 1)
    store(place, later, metadata=False)
    store(place, reference(2, cluster_name="other"))
    store(place, reference(3, cluster_name="other"), metadata=False)
    store(place, reference(4, namespace="m"))
    assert [job.job_id for job in listed(place, namespace="m") if not job.problem] == [f"job-{4:016x}"]
    found = listed(place)
    assert [job.job_id for job in found] == [f"job-{4:016x}", f"job-{1:016x}"]
    assert "speaks wire protocol" in found[1].problem


def test_what_lives_says_why_it_waits(place: Place) -> None:
    store(place, reference(1))
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
    pod = {"metadata": {}, "status": {"conditions": [condition]}}
    place.jobs[f"job-{1:016x}"] = ({"metadata": {}}, [pod])
    (job,) = listed(place)
    assert (job.status, job.reason) == (JobStatus.PENDING, "Unschedulable")


def test_what_lives_is_listed_beside_the_newest(place: Place) -> None:
    for number in range(9):
        store(place, reference(number))
        if number != 3:
            end(place, number, "succeeded")
    place.jobs[f"job-{3:016x}"] = ({"metadata": {}, "status": {}}, [])
    place.jobs[f"job-{2:016x}"] = ({"metadata": {}, "status": {"succeeded": 1, "conditions": ENDED}}, [])
    found = listed(place, namespace="n", limit=2, and_alive=True)
    assert [job.job_id for job in found] == [f"job-{number:016x}" for number in (8, 7, 3)]
    assert found[-1].status is JobStatus.PENDING
    assert len(listed(place, namespace="n", limit=2)) == 2


def test_an_outcome_without_its_state_is_read(place: Place) -> None:
    store(place, reference(1))
    end(place, 1, "succeeded", metadata=False)
    assert listed(place)[0].status is JobStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (wire.CANCELLED, JobStatus.CANCELLED),
        (wire.DROPPED, JobStatus.CANCELLED),
        ("strange", JobStatus.FAILED),
    ],
)
def test_how_it_ended_when_its_job_is_gone(place: Place, state: str, status: JobStatus) -> None:
    store(place, reference(1))
    end(place, 1, state)
    assert listed(place)[0].status is status


@pytest.mark.attack
def test_an_outcome_that_nobody_signed_is_no_state(place: Place) -> None:
    """Of jobs whose Kubernetes objects are gone, whoever can write to the bucket can write outcomes."""
    for number in range(1, 6):
        store(place, reference(number))
    forged = wire.encode_frame({"protocol": wire.PROTOCOL, "state": "succeeded"}, {}, None)
    name = [object_names.result(f"job-{number:016x}") for number in range(6)]
    place.store.create_if_absent(name[1], forged, {wire.STATE: "succeeded"})
    place.store.create_if_absent(name[2], forged)
    end(place, 3, "failed")
    (theirs,) = place.store.list(name[3])
    changed = theirs.metadata[wire.STATE].replace("failed", "succeeded")
    place.store.create_if_absent(name[4], forged, {wire.STATE: changed})  # another's key id
    place.store.create_if_absent(
        name[5], forged, {wire.STATE: changed.replace(f"job-{3:016x}", f"job-{5:016x}")}
    )
    found = [(job.status, job.reason) for job in reversed(listed(place))]
    nothing = (JobStatus.NOT_FOUND, "Unverified")
    assert found == [nothing, nothing, (JobStatus.FAILED, ""), nothing, nothing]


@pytest.mark.attack
def test_of_lists_only_states_are_not_believed(place: Place) -> None:
    store(place, reference(1, func_name="theirs", accelerator="tpu-v5e-8"))
    planted = {**index_metadata(reference(1)), wire.STATE: "succeeded"}
    assert planted != index_metadata(reference(1))
    place.store.create_if_absent(index_object(reference(2)), b"", planted)
    shown = {job.job_id: job for job in listed(place)}
    assert {job.status for job in shown.values()} == {JobStatus.NOT_FOUND}
    assert (shown["job-0000000000000001"].func_name, shown["job-0000000000000001"].accelerator) == (
        "theirs",
        "tpu-v5e-8",
    )
