"""A writer of the bucket, and submitters who meet what that one has put there. On a fake cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.kubernetes.chunks import variable
from kinetic_core.batches.definition import manifest_object
from kinetic_core.batches.indexed import attach_indexed
from kinetic_core.errors import (
    ClusterError,
    ConfigurationError,
    JobConflict,
    MalformedObject,
    OtherNamespace,
)
from kinetic_core.jobs.inputs import read_manifest
from kinetic_core.jobs.prepare import address
from kinetic_core.jobs.submit import Prepared, submit
from kinetic_core.testing import kubelet as behaviours
from tests.batches.places import PLAN, Place

pytestmark = pytest.mark.attack
ID = "job-00000000000000aa"


def prepared(here: Place) -> Prepared:
    return address(here.packed(), (2,), job_id=ID)


def payload_of(job: Any) -> str:
    return variable(job, "KINETIC_PAYLOAD_SHA256") or ""


def planted(place: Place, genuine: bytes) -> bytes:
    """A payload that claims to be the same call, and runs something else."""
    header, _ = wire.decode_frame(genuine)
    del header["parts"]
    return wire.encode_frame(header, {"function": b"cos\nsystem\n(S'id'\ntR.", "function_copies": b""})


def test_no_payload_but_ones_own_gets_into_a_batchs_job(place: Any) -> None:
    """As it was reproduced: the finished batch's payload is replaced, and the user repeats the call."""
    here = place()
    here.submit([1, 2])
    (job,) = here.jobs()
    own = payload_of(job)
    name = object_names.batch_payload("grp-a", own)
    genuine = here.store.read(name)
    evil = planted(here, genuine)
    for victim in (name, "batches/grp-a/payload", object_names.batch_payload("grp-a", wire.digest(evil))):
        here.store.delete(victim)
        here.store.create_if_absent(victim, evil)
    here.fake.objects.remove("Job", "default", job["metadata"]["name"])
    here.store.delete(object_names.finished("grp-a"))
    here.submit([1, 2])
    (again,) = here.jobs()
    assert payload_of(again) == own == wire.digest(genuine)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"store_uri": "gs://theirs"}, MalformedObject),
        ({"namespace": "theirs"}, OtherNamespace),
        ({"spec_digest": "another"}, JobConflict),
        ({"job_id": "grp-b", "group_id": "grp-b"}, MalformedObject),
    ],
)
def test_a_planted_manifest_leads_nowhere(place: Any, changed: dict[str, str], error: type) -> None:
    here = place()
    here.submit([1, 2])
    name = manifest_object("grp-a")
    manifest = json.loads(here.store.read(name))
    manifest["reference"] |= changed
    for stale in (name, *(info.name for info in here.store.list("index/"))):
        here.store.delete(stale)
    here.store.create_if_absent(name, json.dumps(manifest).encode())
    with pytest.raises(error):
        here.submit([1, 2])
    assert list(here.store.list("index/")) == []


def test_no_payload_but_ones_own_gets_into_a_job(place: Any) -> None:
    here = place()
    one = prepared(here)
    evil = planted(here, one.payload)
    for name in (f"jobs/{ID}/payload.pkl", object_names.payload(ID, wire.digest(one.payload))):
        here.store.create_if_absent(name, evil)
    submit(one)
    (job,) = here.jobs()
    assert payload_of(job) == wire.digest(one.payload)


def test_equal_calls_with_other_bytes_make_one_job(place: Any) -> None:
    """Two submitters whose pickles differ: the second adopts the Job, and needs nobody's payload."""
    here = place()
    first = prepared(here)
    submit(first)
    here.store.delete(object_names.payload(ID, wire.digest(first.payload)))
    submit(other_bytes(first))
    (job,) = here.jobs()
    assert payload_of(job) == wire.digest(first.payload)


def other_bytes(one: Prepared) -> Prepared:
    """The same call, whose pickle another process wrote in other bytes."""
    other = replace(one, payload=one.payload.replace(b'"cwd"', b'"Cwd"'))
    assert other.payload != one.payload
    return other


def test_a_job_names_a_payload_that_is_stored(place: Any) -> None:
    """A submission that failed leaves a payload: an equal call with other bytes stores its own."""
    here = place()
    first = prepared(here)
    here.fake.faults.answer("POST .*/jobs", 403, times=1)
    with pytest.raises((ClusterError, ConfigurationError)):
        submit(first)
    submit(other_bytes(first))
    (job,) = here.jobs()
    assert wire.digest(here.store.read(object_names.payload(ID, payload_of(job)))) == payload_of(job)


def test_a_batchs_job_names_a_payload_that_is_stored(place: Any) -> None:
    """Else all inputs fail: what was stored under this name is the payload of a call with other inputs."""
    here = place()
    for items in ([1, 2], [3, 4]):
        here.submit(items)
        (job,) = here.jobs()
        here.fake.objects.remove("Job", "default", job["metadata"]["name"])
        for gone in (manifest_object("grp-a"), object_names.finished("grp-a")):
            here.store.delete(gone)
        here.store.delete_all("index/")
    frame = here.store.read(object_names.batch_payload("grp-a", payload_of(job)))
    assert wire.digest(frame) == payload_of(job)
    header, _ = wire.decode_frame(frame)
    inputs = here.store.read(header["inputs"]["object"])
    assert all(
        wire.digest(inputs[start : start + size]) == sha256
        for _, start, size, sha256 in header["inputs"]["blocks"]
    )


def test_who_fails_takes_nothing_from_who_has_adopted(place: Any) -> None:
    """The first submitter's Job is refused after the second has found payload and handle."""
    here = place()
    here.fake.faults.answer("POST .*/jobs", 403, times=1)
    with pytest.raises((ClusterError, ConfigurationError)):
        submit(prepared(here))
    stored = {info.name for info in here.store.list("")}
    one = prepared(here)
    assert {object_names.handle(ID), object_names.payload(ID, wire.digest(one.payload))} <= stored
    submit(one)
    (job,) = here.jobs()
    assert here.store.find(object_names.payload(ID, payload_of(job))) is not None


def test_of_an_id_that_was_drawn_nothing_is_left(place: Any) -> None:
    here = place()
    here.fake.faults.answer("POST .*/jobs", 403, times=1)
    with pytest.raises((ClusterError, ConfigurationError)):
        submit(address(here.packed(), (2,)))
    assert list(here.store.list("jobs/")) == list(here.store.list("index/")) == []


def test_a_batch_that_another_has_adopted_is_not_undone(place: Any) -> None:
    here = place()
    here.fake.faults.answer("POST .*/jobs", 403, times=1)
    with pytest.raises((ClusterError, ConfigurationError)):
        here.submit([1, 2], PLAN)
    here.submit([1, 2], PLAN)
    (job,) = here.jobs()
    assert here.store.find(object_names.batch_payload("grp-a", payload_of(job))) is not None


def changed_manifest(here: Place, **changed: Any) -> dict[str, Any]:
    name = manifest_object("grp-a")
    manifest = json.loads(here.store.read(name))
    here.store.delete(name)
    here.store.create_if_absent(name, json.dumps({**manifest, **changed}).encode())
    return read_manifest(here.store, "grp-a")


def test_whoever_attaches_reads_what_stops_a_batch_from_its_jobs(place: Any) -> None:
    """Else inputs start after the container of one has died, whose runner could not stop them."""
    here: Place = place(lambda _: behaviours.exits(65))
    here.submit([1, 2, 3], replace(PLAN, max_concurrent=1, fail_fast=True))
    manifest = changed_manifest(here, fail_fast=False)
    batch = attach_indexed(here.backend, "grp-a", manifest, 0.1, None)
    batch.wait(timeout=90)
    assert here.store.find(object_names.stop("grp-a")) is not None


def test_a_manifest_of_fewer_inputs_than_its_jobs_is_refused(place: Any) -> None:
    """Else the values of some would be shown as those of all."""
    here: Place = place()
    here.submit([1, 2, 3])
    manifest = changed_manifest(here, total_expected=2)
    with pytest.raises(MalformedObject, match="it names 2 inputs, its Jobs have 3"):
        attach_indexed(here.backend, "grp-a", manifest, 0.1, None)


def test_without_its_jobs_a_batch_is_as_its_manifest_says(place: Any) -> None:
    here: Place = place()
    here.submit([1, 2, 3])
    (job,) = here.jobs()
    here.fake.objects.remove("Job", "default", job["metadata"]["name"])
    manifest = changed_manifest(here, total_expected=2)
    assert len(attach_indexed(here.backend, "grp-a", manifest, 0.1, None).jobs) == 2


def test_a_planted_end_of_submission_starts_nothing(place: Any) -> None:
    """The batch seems to be submitted, and none of its inputs runs."""
    here: Place = place()
    here.store.create_if_absent(object_names.finished("grp-a"), b'{"dropped": []}')
    here.submit([1, 2])
    assert here.jobs() == []
