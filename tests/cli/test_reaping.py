"""What reap finds on the local backend, and what it leaves alone."""

from __future__ import annotations

import kinetic_core
from kinetic_core._runner import wire
from kinetic_core.configuration import read_settings
from kinetic_core.lifecycle.backends import open_backend
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
    backend = open_backend("local", read_settings())
    backend.remove(handle.namespace, handle.job_id)
    for name in (wire.result_object(handle.job_id), wire.cancel_object(handle.job_id)):
        backend.store.delete(name)
    assert handle.job_id not in kinetic("reap").out
    assert handle.job_id in kinetic("reap", "--older-than", "0").out
    told = kinetic("reap", "--older-than", "0", "--apply", "--json").json
    assert (told["removed"], [one["job_id"] for one in told["orphans"]]) == (True, [handle.job_id])
    assert kinetic("jobs", "status", handle.job_id).code == 2


def test_a_client_that_died_while_it_cancelled(kinetic: Kinetic, own_jobs: None) -> None:
    handle, alive = sleep.run_async(60), sleep.run_async(60)
    wait_for(lambda: handle.logs())  # from then on its runner no longer asks whether it was cancelled
    open_backend("local", read_settings()).store.create(wire.cancel_object(handle.job_id), b"{}")
    told = kinetic("reap", "--apply").out
    assert handle.job_id in told
    assert alive.job_id not in told
    assert handle.status() is kinetic_core.JobStatus.FAILED
    assert not alive.status().is_terminal
    alive.cancel()


def test_what_has_been_kept_long_enough(kinetic: Kinetic, own_jobs: None) -> None:
    handle, alive = sleep.run_async(0), sleep.run_async(60)
    handle.result(cleanup=False)
    assert kinetic("reap").out == "nothing to remove\n"
    told = kinetic("reap", "--keep-days", "0", "--apply", "--json").json
    assert [one["job_id"] for one in told["orphans"]] == [handle.job_id]
    backend = open_backend("local", read_settings())
    assert not any(backend.store.list(f"jobs/{handle.job_id}/"))
    assert not alive.status().is_terminal
    alive.cancel()
