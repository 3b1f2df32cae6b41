"""`kinetic warm`: what is said of workers, and how they are stopped."""

from __future__ import annotations

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core._runner import object_names
from tests.cli.published import PUBLISHED, misfits
from tests.conftest import Kinetic, wait_for

pytestmark = pytest.mark.usefixtures("local_jobs")


def test_workers_are_listed_and_stopped(kinetic: Kinetic) -> None:
    kinetic("warm", "stop", "--all")
    assert kinetic("warm", "list").out == "no workers\n"
    call = kinetic_core.run(accelerator="cpu", warm="1m")(len).run_async("four")
    assert call.result() == 4
    wait_for(lambda: kinetic("warm", "list", "--json").json["workers"][0]["is_idle"])
    told = kinetic("warm", "list", "--json").json
    assert misfits(told, PUBLISHED["warm.list/1"]) == []
    (worker,) = told["workers"]
    assert (worker["job_id"], worker["calls"], worker["idle_seconds"]) == (call.worker, 1, 60.0)
    listed = kinetic("warm", "list").out
    assert f"{call.worker}  idle" in listed
    assert "pod" in listed
    assert "idle" in kinetic("jobs", "explain", call.worker).out
    assert kinetic("warm", "stop").code == 2
    assert "is no worker that runs here" in kinetic("warm", "stop", call.job_id).err
    stopped = kinetic("warm", "stop", "--all", "--json").json
    assert (stopped["job_ids"], misfits(stopped, PUBLISHED["warm.stop/1"])) == ([call.worker], [])
    assert kinetic_core.attach(call.worker).status() is JobStatus.CANCELLED


@pytest.mark.attack
def test_a_worker_whose_handle_is_gone_is_stopped(kinetic: Kinetic) -> None:
    """Whoever can write to the store can remove it: the worker must not outlive the command for that."""
    call = kinetic_core.run(accelerator="cpu", warm="1m")(len).run_async("four")
    assert call.result(cleanup=False) == 4
    call.place.store.delete(object_names.handle(call.worker))
    assert kinetic("warm", "stop", "--all").out == f"stopped {call.worker}\n"
    assert kinetic("warm", "list").out == "no workers\n"


def test_a_worker_that_was_started_runs_the_first_call(kinetic: Kinetic, sample: str) -> None:
    kinetic("warm", "stop", "--all")
    assert "say for how long a worker waits for a call" in kinetic("warm", "start", f"{sample}:scaled").err
    told = kinetic("warm", "start", f"{sample}:scaled", "--warm", "2m", "-n", "2", "--json").json
    assert misfits(told, PUBLISHED["warm.start/1"]) == []
    started = set(told["job_ids"])
    assert len(started) == 2

    def workers() -> list[dict[str, object]]:
        found: list[dict[str, object]] = kinetic("warm", "list", "--json").json["workers"]
        return found

    wait_for(lambda: all(worker["is_idle"] for worker in workers()))
    assert {(worker["calls"], worker["idle_seconds"]) for worker in workers()} == {(0, 120.0)}
    for number in range(3):
        run = kinetic("run", f"{sample}:scaled", str(number), "--warm", "1m", "--json").json
        assert run["result"] == number
        call = kinetic_core.attach(run["job_id"])
        assert call.worker in started
    assert {str(worker["job_id"]) for worker in workers()} == started
    assert kinetic("warm", "stop", "--all").code == 0


@pytest.mark.parametrize(("words", "why"), [(["--warm", "soon"], "'90s'"), (["-n", "0"], "")])
def test_a_start_that_makes_no_sense_starts_nothing(
    words: list[str], why: str, kinetic: Kinetic, sample: str
) -> None:
    done = kinetic("warm", "start", f"{sample}:scaled", *words)
    assert (done.code, why in done.err) == (2, True)


def test_what_cannot_be_warm_is_refused(kinetic: Kinetic, sample: str) -> None:
    done = kinetic("run", f"{sample}:scaled", "1", "--warm", "1m", "--backend", "pathways")
    assert "warm= does not go with" in done.err
