"""What is believed of a job whose Kubernetes object is gone: only what its namespace's secret signs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core._runner import codec, object_names, wire
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.connections import default_connections
from kinetic_core.errors import UnverifiedResult
from kinetic_core.job import JobReference
from kinetic_core.jobs.cancel import drop_payloads
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.listing import summaries
from kinetic_core.jobs.logs import follow_log, last_lines
from kinetic_core.jobs.observe import find, observe
from kinetic_core.jobs.signing import Keys, key_id_of, new_worker_key, outcome_key, vouches
from kinetic_core.provision.namespaces import LEADER_RULES, RULES
from kinetic_core.store.protocol import ObjectInfo
from tests.conftest import wait_for

pytestmark = [pytest.mark.attack, pytest.mark.usefixtures("local_jobs")]


@kinetic_core.run(accelerator="cpu", backend="local")
def double(number: int) -> int:
    return number * 2


@kinetic_core.run(accelerator="cpu", backend="local")
def until_told(folder: str) -> None:
    import time

    Path(folder, "begun").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)


@kinetic_core.run(accelerator="cpu", backend="local")
def says_that_it_began(folder: str) -> str:
    import time

    Path(folder, "began").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return "value"


def forged(job_id: str, value: Any, **header: Any) -> bytes:
    """What anybody can write who knows the id."""
    told = {"protocol": wire.PROTOCOL, "job_id": job_id, "attempt": 0, "state": "succeeded", **header}
    return wire.encode_frame({**told, "codec": "typed"}, codec.encode(value))


def overwrite(handle: JobHandle, frame: bytes) -> None:
    store = handle.place.store
    store.delete(object_names.result(handle.job_id))
    store.create_if_absent(object_names.result(handle.job_id), frame, {wire.STATE: "succeeded"})


def is_refused(handle: JobHandle) -> None:
    seen = observe(handle.place, handle)
    assert (seen.status, seen.reason) == (JobStatus.NOT_FOUND, "Unverified")
    with pytest.raises(UnverifiedResult):
        handle.result(cleanup=False)


def test_a_signed_outcome_outlives_its_job() -> None:
    handle = double.run_async(4)
    assert handle.result() == 8  # which removes its Job
    again = kinetic_core.attach(handle.job_id, backend="local")
    assert again.place.get(again.namespace, again.job_id) is None
    assert (again.status(), again.result()) == (JobStatus.SUCCEEDED, 8)
    listed = {job.job_id: job.status for job in summaries(again.place)}
    assert listed[again.job_id] is JobStatus.SUCCEEDED


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_a_planted_job_has_no_state_and_no_value(state: str) -> None:
    own = double.run_async(4)
    own.result()
    job_id = f"job-{0xBAD:016x}"
    theirs = JobHandle.from_dict({**own.to_dict(), "job_id": job_id, "k8s_name": f"kinetic-{job_id}"})
    store = own.place.store
    store.delete_all(f"jobs/{theirs.job_id}/")
    store.create_if_absent(object_names.handle(theirs.job_id), json.dumps(theirs.to_dict()).encode())
    store.create_if_absent(object_names.result(theirs.job_id), forged(theirs.job_id, "owned", state=state))
    planted = kinetic_core.attach(theirs.job_id, backend="local")
    is_refused(planted)
    assert planted.explain().observation.status is JobStatus.NOT_FOUND
    if state == "succeeded":
        assert planted.result(cleanup=False, trust_store=True) == "owned"


def test_a_signature_counts_for_its_own_job_and_call() -> None:
    victim, other = double.run_async(1), double.run_async(2)
    frames = []
    for handle in (victim, other):
        handle.result()
        frames.append(handle.place.store.read(object_names.result(handle.job_id)))
    overwrite(victim, frames[1])
    is_refused(victim)
    header, _ = wire.decode_frame(frames[0])
    overwrite(victim, forged(victim.job_id, "owned", key_id=header["key_id"]))
    is_refused(victim)
    overwrite(victim, frames[0])
    assert observe(victim.place, victim).status is JobStatus.SUCCEEDED
    is_refused(JobHandle.from_dict({**victim.to_dict(), "spec_digest": other.spec_digest}))


def test_what_an_attempt_has_signed_is_no_state(tmp_path: Path) -> None:
    """Neither while the job lives nor when it is over, nor in a list, which reads what has no metadata."""
    handle = until_told.run_async(str(tmp_path))
    backend, name = handle.place, object_names.result(handle.job_id)
    found = backend.get(handle.namespace, handle.job_id)
    assert found is not None
    told = {"protocol": 1, "job_id": handle.job_id, "attempt": 0, "state": "failed", "codec": "none"}
    place = object_names.attempt_outcome(handle.job_id, 0)
    signed = {**told, "key_id": key_id_of(found[0]), "object": place}
    frame = wire.encode_frame(signed, {}, outcome_key(found[0]))
    backend.store.create_if_absent(name, frame)
    assert not observe(handle.place, handle).is_terminal
    (tmp_path / "go").touch()
    handle.result()
    overwrite(handle, frame)
    is_refused(handle)
    backend.store.delete(name)
    backend.store.create_if_absent(name, frame)
    (listed,) = (job for job in summaries(backend) if job.job_id == handle.job_id)
    assert listed.status is JobStatus.NOT_FOUND


def test_the_log_of_a_gone_pod_is_as_the_bucket_has_it() -> None:
    handle = _logged("a planted line\n")
    assert handle.logs() == "a planted line\n"
    assert (handle.status(), handle.result()) == (JobStatus.SUCCEEDED, 8)


def test_the_last_lines_of_a_failure_are_as_the_bucket_has_them() -> None:
    """They are stored, and signed, with the failure of a job whose pod is gone, or that ran on a worker."""
    handle = _logged("a planted line\n")
    assert last_lines(handle.place, handle, 0) == ("a planted line",)


def test_the_log_of_a_living_call_is_as_the_bucket_has_it() -> None:
    """A call has no pod of its own whose log the cluster has."""
    handle = _logged("a planted line\n")
    reference = find(handle.place, handle.job_id)
    assert reference is not None
    followed = follow_log(handle.place, replace(reference, worker="job-00000000000000bb"), lambda: False)
    assert next(followed) == "a planted line\n"


def _logged(text: str) -> JobHandle:
    """A job whose pod is gone, with that text as its log."""
    handle = double.run_async(4)
    assert handle.result() == 8  # which removes its Job
    store = handle.place.store
    for number in range(10):
        store.delete(object_names.log(handle.job_id, 0, number))
    store.create_if_absent(object_names.log(handle.job_id, 0, 0), text.encode())
    return handle


def test_a_planted_cancellation_is_no_state(tmp_path: Path) -> None:
    """It asks a runner that is about to start; of one that runs it says nothing."""
    handle = says_that_it_began.run_async(str(tmp_path))
    wait_for((tmp_path / "began").exists, 30)
    backend = handle.place
    backend.store.create_if_absent(object_names.cancel(handle.job_id), b"{}")
    assert observe(handle.place, handle).status is JobStatus.RUNNING
    (listed,) = (job for job in summaries(backend) if job.job_id == handle.job_id)
    assert listed.status is JobStatus.RUNNING
    (tmp_path / "go").touch()
    assert handle.result() == "value"


def test_any_change_of_a_sealed_state_is_seen() -> None:
    handle = until_told.run_async("/")
    backend = handle.place
    found = backend.get(handle.namespace, handle.job_id)
    handle.cancel()
    assert found is not None
    key, key_id = outcome_key(found[0]), key_id_of(found[0])
    assert key is not None
    sealed = wire.sealed_state(handle.job_id, "failed", key_id, key)
    keys = Keys(backend, handle.namespace)

    def state(told: str, name: str = handle.job_id) -> str:
        return keys.state_of(ObjectInfo(object_names.result(name), 0, 0.0, {wire.STATE: told}))

    assert state(sealed) == "failed"
    changed = [sealed[:at] + "0" + sealed[at + 1 :] for at in range(len(sealed)) if sealed[at] != "0"]
    assert {state(each) for each in [*changed, "", "succeeded", "failed", sealed + " "]} == {""}
    assert state(sealed, f"job-{0:016x}") == ""
    ids = [f"{handle.job_id}:{'0' * length}" for length in (64, 400)]
    assert [keys.of(each, handle.job_id) is not None for each in ids] == [True, False], "a long id is no id"


def test_a_planted_outcome_ends_no_living_job(tmp_path: Path) -> None:
    handle = until_told.run_async(str(tmp_path))
    wait_for((tmp_path / "begun").exists)  # one that is cancelled earlier has an outcome of its own
    handle.place.store.create_if_absent(
        object_names.result(handle.job_id), forged(handle.job_id, "owned"), {wire.STATE: "succeeded"}
    )
    assert not observe(handle.place, handle).is_terminal
    assert {job.status for job in summaries(handle.place) if job.job_id == handle.job_id} <= {
        JobStatus.PENDING,
        JobStatus.RUNNING,
    }
    handle.cancel()
    assert observe(handle.place, handle).status is JobStatus.CANCELLED
    with pytest.raises(UnverifiedResult):
        handle.result(cleanup=False)


def test_without_the_secret_nothing_is_believed_later() -> None:
    handle = double.run_async(4)
    handle.result()
    backend = handle.place
    assert isinstance(backend, LocalBackend)
    secret = Path(backend.store.uri.removeprefix("file://")).parent / "signing-secret"
    content = secret.read_bytes()
    secret.unlink()
    try:
        is_refused(kinetic_core.attach(handle.job_id, backend="local"))
    finally:
        secret.write_bytes(content)
        secret.chmod(0o600)
    assert handle.status() is JobStatus.SUCCEEDED
    drop_payloads(default_connections(), [handle])


def test_only_users_may_read_what_signs() -> None:
    secrets = [rule for rule in RULES if "secrets" in rule["resources"]]
    named = [rule.get("resourceNames") for rule in secrets if set(rule["verbs"]) - {"create"}]
    assert named == [["kinetic-signing"]]
    assert not [rule for rule in LEADER_RULES if rule["resources"] != ["leaderworkersets"]]


def test_the_key_of_a_worker_signs_for_no_other_job() -> None:
    """Whoever has it, as an image with a runner of its own, can make keys of calls that it was not given."""
    victim = double.run_async(2)
    assert victim.result(cleanup=False) == 4
    header = wire.decode_head(victim.place.store.read(object_names.result(victim.job_id)))
    worker_key_id, key = new_worker_key(victim.place, victim.namespace, f"job-{1:016x}", "identity")
    told = f"{victim.job_id}:{header['key_id'].split(':')[1]}:00"
    drop_payloads(default_connections(), [victim])
    for key_id in (f"{told}@{worker_key_id}", f"{told}:{'0' * 32}@{worker_key_id}"):
        signing = wire.call_key(bytes.fromhex(key), key_id)
        overwrite(victim, wire.encode_frame({**header, "key_id": key_id}, codec.encode("owned"), signing))
        is_refused(victim)


def test_the_key_of_one_job_signs_for_no_other(local_jobs: object) -> None:
    """The key of a call is derived from its worker's. Whoever knows his own job's key has no worker's."""
    mine, victim = double.run_async(1), double.run_async(2)
    assert [mine.result(cleanup=False), victim.result(cleanup=False)] == [2, 4]
    found = mine.place.get(mine.namespace, mine.job_id)
    assert found is not None
    key = outcome_key(found[0])
    assert key is not None
    header = wire.decode_head(victim.place.store.read(object_names.result(victim.job_id)))
    key_id = f"{victim.job_id}:{header['key_id'].split(':')[1]}:00@{key_id_of(found[0])}"
    told = {"protocol": wire.PROTOCOL, "job_id": victim.job_id, "attempt": 0, "state": "succeeded"}
    frame = wire.encode_frame(
        {**told, "codec": "typed", "key_id": key_id}, codec.encode("owned"), wire.call_key(key, key_id)
    )
    drop_payloads(default_connections(), [victim])
    overwrite(victim, frame)
    is_refused(victim)


def test_an_outcome_confirms_function_and_outputs() -> None:
    handle = double.run_async(4)
    handle.result(cleanup=False)
    frame = handle.place.store.read(object_names.result(handle.job_id))
    key_id = str(wire.decode_head(frame)["key_id"])
    assert Keys(handle.place, handle.namespace).of_frame(frame, handle) is not None
    assert vouches(key_id, handle)
    for changed in ({"func_name": "other"}, {"output_dir": "/elsewhere"}):
        assert not vouches(key_id, JobReference.from_dict({**handle.to_dict(), **changed}))
    assert not vouches(f"{handle.job_id}:{handle.spec_digest}:0", handle), "as an earlier version made them"
