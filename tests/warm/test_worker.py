"""What a worker does with what it finds in the store, and when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.notes import decode_note, encode_note
from tests.conftest import wait_for
from tests.runner.attempts import JOB, KEY, Attempts, holding
from tests.runner.test_dependencies import wheels
from tests.runner.test_signing_key import memory, waiting

__all__ = ["wheels"]
WORKER = "job-00000000000000bb"
WORKER_KEY = bytes.fromhex(wire.digest(b"the key of a worker"))
KEY_ID = f"{JOB}:digest:random@{WORKER}:digest:random"


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


def start(attempts: Attempts, idle: float = 60, **changes: str) -> subprocess.Popen[bytes]:
    """Start a worker in the store of a job."""
    return attempts.start(
        KINETIC_JOB_ID=WORKER,
        KINETIC_OUTCOME_KEY=WORKER_KEY.hex(),
        KINETIC_IDLE_SECONDS=str(idle),
        KINETIC_INFRASTRUCTURE_RETRIES="0",
        **changes,
    )


def give(attempts: Attempts, number: int = 0, key: bytes = WORKER_KEY, **changes: str) -> str:
    """Give the job to the worker as its call; return the name of the note."""
    kept = ("KINETIC_STORE", "KINETIC_JOB_ID", "KINETIC_PAYLOAD_SHA256", "KINETIC_GRACE_SECONDS")
    environment = {name: value for name, value in attempts.environment().items() if name in kept}
    environment |= {"KINETIC_KEY_ID": KEY_ID, "KINETIC_INFRASTRUCTURE_RETRIES": "5", **changes}
    name = object_names.call(WORKER, number)
    attempts.store.create_if_absent(name, encode_note(key, name, {"environment": environment}))
    return name


def result(attempts: Attempts) -> object:
    """The value of the call, which its own key has signed."""
    from kinetic_core.jobs.collect import read_outcome

    frame = attempts.store.read(object_names.result(JOB))
    return read_outcome(frame, wire.call_key(WORKER_KEY, KEY_ID), job_id=JOB).value_or_raise()


def test_a_worker_runs_calls_and_ends_by_itself(attempts: Attempts) -> None:
    attempts.submit(lambda: 42)
    worker = start(attempts, idle=1)
    give(attempts)
    assert worker.wait(timeout=60) == 0
    assert result(attempts) == 42
    closed = attempts.store.read(object_names.call(WORKER, 1))
    assert b'"closed": true' in closed, "nobody can give it another"


def test_a_worker_whose_close_was_never_answered_ends(attempts: Attempts) -> None:
    name = object_names.call(WORKER, 0)
    attempts.store.create_if_absent(name, encode_note(WORKER_KEY, name, {"closed": True}))
    assert start(attempts).wait(timeout=60) == 0
    assert "Traceback" not in attempts.log


@pytest.mark.attack
def test_a_note_without_its_key_gives_no_call(attempts: Attempts) -> None:
    marker = attempts.folder / "ran"
    attempts.submit(marker.touch)
    give(attempts, key=KEY)
    genuine = attempts.store.read(object_names.call(WORKER, 0))
    attempts.store.create_if_absent(object_names.call(WORKER, 1), genuine)
    assert start(attempts, idle=1).wait(timeout=60) == 0
    assert not marker.exists()
    assert "somebody without its key wrote it" in attempts.log


@pytest.mark.attack
def test_a_planted_end_ends_no_call(attempts: Attempts) -> None:
    ran, go = attempts.folder / "ran", attempts.folder / "go"

    attempts.submit(holding(ran, go))
    name = object_names.end_call(JOB)
    attempts.store.create_if_absent(name, encode_note(WORKER_KEY, name, {}))
    worker = start(attempts, idle=1)
    give(attempts)
    wait_for(ran.exists)
    wait_for(lambda: f"{name} is not what this job has stored" in attempts.log)
    go.touch()
    assert worker.wait(timeout=60) == 0
    assert result(attempts) == "value"


def test_a_worker_that_is_stopped_stops_its_call(attempts: Attempts) -> None:
    ran = attempts.folder / "ran"

    def work() -> None:
        import time

        ran.touch()
        time.sleep(600)

    attempts.submit(work)
    worker = start(attempts)
    give(attempts)
    wait_for(ran.exists)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=60) != 0
    assert attempts.store.find(object_names.attempt_outcome(JOB, 0)) is not None
    assert not attempts.is_committed(), "it may go on in a pod"


def test_a_worker_that_cannot_run_its_call_ends(attempts: Attempts) -> None:
    attempts.submit(lambda: 42)
    (attempts.folder / "work" / "0").mkdir(parents=True)
    (attempts.folder / "work" / "0" / "calls").touch()  # where its directory should be
    worker = start(attempts)
    give(attempts, KINETIC_INFRASTRUCTURE_RETRIES="0")
    assert worker.wait(timeout=60) == 0
    assert not attempts.is_committed(), "it gets a pod"


@pytest.mark.parametrize("reuse", ["", "process", "fork"])
def test_a_call_that_runs_again_has_the_same_packages(attempts: Attempts, wheels: Path, reuse: str) -> None:
    """The first attempt has locked them; the second has another process."""
    ran = attempts.folder / "ran"

    def work() -> int:
        import importlib
        import os

        tiny = importlib.import_module("tiny")
        if not ran.exists():
            ran.touch()
            os._exit(7)
        return int(tiny.VALUE)

    lines = ["--no-index", f"--find-links {wheels}", "tiny"]
    attempts.submit(work, dependencies={"lines": lines, "constraints": [], "options": []})
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    cache = str(attempts.folder / "cache")
    worker = start(attempts, 1, KINETIC_REUSE=reuse, PATH=path, UV_CACHE_DIR=cache, UV_OFFLINE="1")
    give(attempts, KINETIC_RETRIES="1")
    assert worker.wait(timeout=60) == 0
    assert result(attempts) == 7
    name = object_names.lock(JOB)
    locked = decode_note(wire.call_key(WORKER_KEY, KEY_ID), name, attempts.store.read(name))
    assert "tiny==1.0" in locked["requirements"]


@pytest.mark.attack
@pytest.mark.parametrize("reuse", ["", "process", "fork"])
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_user_code_of_a_call_has_no_trace_of_a_key(attempts: Attempts, reuse: str) -> None:
    begun, over = attempts.folder / "begun", attempts.folder / "over"
    attempts.submit(waiting, begun, over)
    worker = start(attempts, KINETIC_REUSE=reuse)
    try:
        for number in range(2):
            call = f"job-00000000000000c{number}"
            payload = attempts.store.read(object_names.payload(JOB, attempts.payload_sha256))
            attempts.store.create_if_absent(object_names.payload(call, attempts.payload_sha256), payload)
            give(attempts, number, KINETIC_JOB_ID=call, KINETIC_KEY_ID=f"{call}:d:r@{WORKER}:d:r")
            wait_for(lambda: begun.exists() and begun.read_text())
            whole = memory(int(begun.read_text().split()[0]))
            assert b"KINETIC_PAYLOAD_SHA256" in whole, "the test reads what it should"
            own = wire.call_key(WORKER_KEY, f"{call}:d:r@{WORKER}:d:r")
            for key in (WORKER_KEY, own, wire.object_key(own, object_names.lock(call))):
                assert key not in whole
                assert key.hex().encode() not in whole
            begun.unlink()
            over.touch()
            wait_for(lambda: attempts.store.find(object_names.result(call)) is not None)  # noqa: B023
            over.unlink()
    finally:
        over.touch()
        worker.send_signal(signal.SIGTERM)
        worker.wait(timeout=60)
