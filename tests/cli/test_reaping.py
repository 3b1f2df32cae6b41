"""What reap finds on the local backend, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kinetic_core
from airflow_provider.job_of_task import Origin, TaskIdentity, start_or_adopt
from kinetic_core._runner import object_names
from kinetic_core.backends.base import open_backend
from kinetic_core.connections import default_connections
from kinetic_core.jobs.cancel import index_object
from kinetic_core.jobs.signing import UNVERIFIED
from kinetic_core.jobs.submit import Call
from kinetic_core.options import RunOptions
from kinetic_core.settings import read_settings
from tests.conftest import Kinetic, wait_for


@kinetic_core.run(accelerator="cpu")
def sleep(seconds: float) -> None:
    import time

    print("asleep", flush=True)
    time.sleep(seconds)


def test_a_job_that_was_stored_and_is_not_there(kinetic: Kinetic, own_jobs: None) -> None:
    """As a submitter leaves it that dies before it creates the Job."""
    handle = sleep.run_async(60)
    handle.cancel()
    backend = open_backend("local", default_connections())
    backend.remove(handle.namespace, handle.job_id)
    for name in (object_names.result(handle.job_id), object_names.cancel(handle.job_id)):
        backend.store.delete(name)
    assert handle.job_id not in kinetic("reap").out
    assert handle.job_id in kinetic("reap", "--older-than", "0").out
    told = kinetic("reap", "--older-than", "0", "--apply", "--json").json
    assert (told["removed"], [one["job_id"] for one in told["orphans"]]) == (True, [handle.job_id])
    assert kinetic("jobs", "status", handle.job_id).code == 2


def test_a_submitter_that_died_before_its_handle_was_stored(kinetic: Kinetic, own_jobs: None) -> None:
    """Payload, handle and index entry are stored at the same time."""
    handle = sleep.run_async(0)
    handle.result()
    store = open_backend("local", default_connections()).store
    entry = index_object(handle)
    store.delete_all(f"jobs/{handle.job_id}/")
    assert handle.job_id in kinetic("reap", "--older-than", "0").out
    assert kinetic("reap", "--older-than", "0", "--apply").code == 0
    assert store.find(entry) is None


def test_an_outcome_that_nobody_can_verify_now_is_kept(
    kinetic: Kinetic, own_jobs: None, tmp_path: Path
) -> None:
    handle = sleep.run_async(0)
    handle.result(cleanup=False)
    backend = open_backend("local", default_connections())
    backend.remove(handle.namespace, handle.job_id)
    (secret,) = (tmp_path / "own").rglob("signing-secret")
    secret.write_bytes(secret.read_bytes()[::-1])
    assert kinetic("jobs", "list", "--json").json["jobs"][0]["reason"] == UNVERIFIED
    assert kinetic("reap", "--older-than", "0", "--apply").out == "nothing to remove\n"
    assert backend.store.find(object_names.result(handle.job_id)) is not None
    told = kinetic("reap", "--keep-days", "0", "--apply", "--json").json
    assert [one["job_id"] for one in told["orphans"]] == [handle.job_id]
    assert backend.store.find(object_names.result(handle.job_id)) is None


@pytest.mark.promise("command: `reap`: orphans of dead clients, dry run first")
def test_a_client_that_died_while_it_cancelled(kinetic: Kinetic, own_jobs: None) -> None:
    handle, alive = sleep.run_async(60), sleep.run_async(60)
    wait_for(lambda: handle.logs())  # from then on its runner no longer asks whether it was cancelled
    open_backend("local", default_connections()).store.create_if_absent(
        object_names.cancel(handle.job_id), b"{}"
    )
    told = kinetic("reap", "--apply").out
    assert handle.job_id in told
    assert alive.job_id not in told
    assert handle.status() is kinetic_core.JobStatus.CANCELLED
    assert not alive.status().is_terminal
    alive.cancel()


@pytest.mark.promise("gke: Retention and TTLs")
def test_what_has_been_kept_long_enough(kinetic: Kinetic, own_jobs: None) -> None:
    handle, alive = sleep.run_async(0), sleep.run_async(60)
    handle.result(cleanup=False)
    assert kinetic("reap").out == "nothing to remove\n"
    told = kinetic("reap", "--keep-days", "0", "--apply", "--json").json
    assert [one["job_id"] for one in told["orphans"]] == [handle.job_id]
    backend = open_backend("local", default_connections())
    assert not any(backend.store.list(f"jobs/{handle.job_id}/"))
    assert not alive.status().is_terminal
    alive.cancel()


def break_handle(job_id: str, forget: bool) -> None:
    """Nobody can read the job's handle any more; with `forget` its index entry says nothing either."""
    store = read_settings().local_store / "store"
    (store / "jobs" / job_id / "handle.json").write_text("{")
    (described,) = (store / ".metadata" / "index").glob(f"*{job_id}*")
    if forget:
        described.unlink()


@pytest.mark.promise("command: A store with 1,000 jobs and 50 broken handles")
@pytest.mark.parametrize("forget", [False, True])
def test_broken_handles_stop_nothing(forget: bool, kinetic: Kinetic, own_jobs: None) -> None:
    fine, broken = sleep.run_async(0), sleep.run_async(0)
    for handle in (fine, broken):
        handle.result(cleanup=False)
    break_handle(broken.job_id, forget)
    assert kinetic("reap").out == "nothing to remove\n"
    done = kinetic("reap", "--keep-days", "0", "--apply", "--json")
    expected = {fine.job_id} if forget else {fine.job_id, broken.job_id}
    assert {one["job_id"]: one["problem"] for one in done.json["orphans"]} == dict.fromkeys(expected, "")
    left = {broken.job_id} if forget else set()  # how old it is nobody can say
    assert (done.code, {job["job_id"] for job in kinetic("jobs", "list", "--json").json["jobs"]}) == (0, left)


def test_a_list_and_its_json_say_the_same_of_a_broken_job(kinetic: Kinetic, own_jobs: None) -> None:
    ended, alive = sleep.run_async(0), sleep.run_async(60)
    ended.result(cleanup=False)
    for handle in (ended, alive):
        break_handle(handle.job_id, forget=True)
    listed = {job["job_id"]: job for job in kinetic("jobs", "list", "--json").json["jobs"]}
    assert all("is unreadable" in job["problem"] for job in listed.values())
    assert [listed[one.job_id]["status"] for one in (ended, alive)] == ["SUCCEEDED", "NOT_FOUND"]
    rows = {line.split()[0]: line.split()[1] for line in kinetic("jobs", "list").out.splitlines()}
    assert [rows[one.job_id] for one in (ended, alive)] == ["SUCCEEDED", "?"]
    alive.cancel()


def test_what_cannot_be_removed_is_told_and_keeps_nothing_else(kinetic: Kinetic, own_jobs: None) -> None:
    fine, newer = sleep.run_async(0), sleep.run_async(0)
    for handle in (fine, newer):
        handle.result(cleanup=False)
    stored = read_settings().local_store / "store" / "jobs" / newer.job_id / "handle.json"
    stored.write_text(json.dumps({**newer.to_dict(), "protocol": 99}))
    done = kinetic("reap", "--keep-days", "0", "--apply")
    assert (done.code, done.out.splitlines()[-1]) == (2, "removed 1 of 2")
    assert "speaks wire protocol 99" in done.err
    told = kinetic("reap", "--keep-days", "0", "--apply", "--json")
    (left,) = told.json["orphans"]
    assert (told.code, left["job_id"], "protocol 99" in left["problem"]) == (2, newer.job_id, True)


def test_one_of_several_jobs_that_is_broken(kinetic: Kinetic, own_jobs: None) -> None:
    broken, fine = sleep.run_async(0), sleep.run_async(0)
    for handle in (broken, fine):
        handle.result(cleanup=False)
    break_handle(broken.job_id, forget=False)
    both = (broken.job_id, fine.job_id)
    costs = kinetic("cost", *both, "--json")
    assert costs.code == 3
    assert {job["job_id"]: bool(job["problem"]) for job in costs.json["jobs"]} == {
        broken.job_id: True,
        fine.job_id: False,
    }
    cancelled = kinetic("jobs", "cancel", *both)
    assert (cancelled.code, cancelled.out) == (3, f"{fine.job_id} had ended\n")
    assert f"the handle of {broken.job_id}" in cancelled.err
    cleaned = kinetic("jobs", "cleanup", *both, "--json")
    assert (cleaned.code, cleaned.json["job_ids"], cleaned.err) == (3, [fine.job_id], "")
    assert "is unreadable" in cleaned.json["problems"][broken.job_id]
    neither = kinetic("jobs", "cleanup", broken.job_id, "job-0000000000000000", "--json").json
    assert (neither["schema"], len(neither["notes"])) == ("error/1", 1)


@pytest.mark.promise("airflow: With none alive: the deadline, or `kinetic reap`")
@pytest.mark.promise("command: … and of dead DAG runs", "the run is named with `--origin`")
def test_the_jobs_of_a_dead_dag_run(kinetic: Kinetic, own_jobs: None) -> None:
    def started(run_id: str, seconds: float) -> kinetic_core.JobHandle:
        identity = TaskIdentity("train", run_id, "", "fit", -1, 1)
        origin = Origin.of(identity, "ours")
        call, options = Call(sleep.__wrapped__, (seconds,), {}), RunOptions.checked(accelerator="cpu")
        reference = start_or_adopt(call, options, default_connections(), identity, origin=origin).reference
        return kinetic_core.attach(reference.job_id, backend="local")

    over, other = started("over", 0), started("other", 60)
    over.result(cleanup=False)
    words = ("reap", "--origin", "dag_id=train", "--origin", "run_id=dead")
    assert kinetic(*words, "--apply").out == "nothing to cancel\n"
    dead = started("dead", 60)
    assert f"{dead.job_id}  it is " in kinetic(*words).out
    assert not dead.status().is_terminal  # a dry run
    assert kinetic("reap").out == "nothing to remove\n"  # it merely runs on
    told = kinetic(*words, "--apply", "--json")
    assert (told.code, [one["job_id"] for one in told.json["orphans"]]) == (0, [dead.job_id])
    assert dead.status() is kinetic_core.JobStatus.CANCELLED
    assert not other.status().is_terminal
    every = kinetic("reap", "--origin", "dag_id=train", "--apply").out
    assert (other.job_id in every, over.job_id in every, every.endswith("\ncancelled\n")) == (
        True,
        False,
        True,
    )
    assert kinetic("reap", "--origin", "train").code == 2


def test_a_batch_of_a_dead_dag_run(kinetic: Kinetic, own_jobs: None) -> None:
    batch = sleep.run_async_map([60, 60])
    store = read_settings().local_store / "store" / ".metadata" / "index"
    for entry in store.iterdir():
        entry.write_text(json.dumps({**json.loads(entry.read_text()), "origin": '{"dag_id": "train"}'}))
    told = kinetic("reap", "--origin", "dag_id=train", "--apply")
    assert (told.code, told.out.splitlines()[-1]) == (0, "cancelled")
    assert all(state.is_terminal for _, state in batch.statuses())
