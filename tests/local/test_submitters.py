"""Several submitters and observers of one job, killed half-way too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

import kinetic_core
from kinetic_core._runner import object_names, wire
from kinetic_core.connections import default_connections
from kinetic_core.errors import (
    JobConflict,
    JobLost,
)
from kinetic_core.jobs.submit import Call, prepare, submit
from kinetic_core.options import RunOptions
from tests.local.records import record_of

pytestmark = pytest.mark.usefixtures("local_jobs")

on_cpu = kinetic_core.run(accelerator="cpu")


def test_two_observers_agree() -> None:
    handle = on_cpu(lambda: os.kill(os.getppid(), signal.SIGKILL)).run_async()
    program = (
        "import kinetic_core, sys\n"
        "try: kinetic_core.attach(sys.argv[1]).result()\n"
        "except kinetic_core.KineticError as exc: print(type(exc).__name__, exc)\n"
    )
    others = [
        subprocess.Popen(
            [sys.executable, "-c", program, handle.job_id],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(2)
    ]
    told = {other.communicate(timeout=60)[0] for other in others}
    with pytest.raises(JobLost) as caught:
        handle.result()
    assert told == {f"JobLost {caught.value}\n"}


def increment(x: int) -> int:
    return x + 1


def test_two_submitters_of_one_id_make_one_job() -> None:
    options = RunOptions.checked("cpu", backend="local")
    prepared = [
        prepare(Call(increment, (1,)), options, default_connections(), job_id="job-00000000000000f1")
        for _ in range(4)
    ]
    assert len({one.spec_digest for one in prepared}) == 1
    threads = [threading.Thread(target=submit, args=(one,)) for one in prepared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handle = kinetic_core.attach("job-00000000000000f1")
    assert handle.result(cleanup=False) == 2
    assert len(record_of(handle)["pods"]) == 1
    assert submit(prepared[0]).job_id == handle.job_id  # finished: nothing is run again
    with pytest.raises(JobConflict, match="is a different call"):
        submit(prepare(Call(increment, (2,)), options, default_connections(), job_id=handle.job_id))


@pytest.mark.attack
@pytest.mark.parametrize("spelling", ['"cwd"', '"Cwd"'], ids=["same bytes", "other bytes"])
def test_a_submitter_killed_half_way_is_resumed_by_the_next(spelling: str) -> None:
    """Also if its pickle of the same call had other bytes: the job runs the payload that its Job names."""
    options = RunOptions.checked("cpu", backend="local")
    prepared = prepare(Call(increment, (5,)), options, default_connections(), job_id="job-00000000000000f2")
    store = prepared.backend.store
    payload = prepared.payload.replace(b'"cwd"', spelling.encode())
    store.create_if_absent(object_names.payload("job-00000000000000f2", wire.digest(payload)), payload)
    handle = kinetic_core.JobHandle.of(
        submit(prepare(Call(increment, (5,)), options, default_connections(), job_id="job-00000000000000f2"))
    )
    assert handle.result() == 6


class OwnClass:
    """Pickled by value, with an id that cloudpickle draws anew in every process."""


def test_the_digest_is_the_same_in_another_process() -> None:
    program = (
        "from tests.local.test_submitters import *\n"
        "call = Call(increment, ([{'a', 'b', 'c'}, OwnClass()],))\n"
        "options = RunOptions.checked('cpu')\n"
        "prepared = prepare(call, options, default_connections(), job_id='job-00000000000000f3')\n"
        "print(prepared.spec_digest)\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert len(told.pop().strip()) == 64
