"""Processes of a worker that do not answer, or cannot be told: nobody waits for them for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core.errors import JobLost
from kinetic_core.jobs.collect import read_outcome
from tests.runner.attempts import JOB, Attempts, appending
from tests.warm.test_worker import KEY_ID, WORKER_KEY, give, start

SECONDS = "1.0"
"""Seconds after which these wait no longer; a minute where a worker starts them."""
KEEPER = """
import os, signal, sys
from kinetic_core._runner.attempt import take_job
from kinetic_core._runner.kept_process import KeptProcess
from kinetic_core._runner.store import open_store

job = take_job({**os.environ, "KINETIC_OUTCOME_KEY": "00"})
os.makedirs(job.work_dir)
kept = KeptProcess(job, open_store, lambda: os.register_at_fork(before=signal.pause), float(sys.argv[1]))
kept.ensure()
try:
    kept.run(job, os.pipe()[1])
except OSError as exc:
    print(type(exc).__name__)
kept.kill()
"""
TEMPLATE = """
import os, select, sys
from pathlib import Path
from kinetic_core._runner import object_names, wire
from kinetic_core._runner.attempt import take_job
from kinetic_core._runner.payload import read_frame
from kinetic_core._runner.store import open_store
from kinetic_core._runner.template import Template
from kinetic_core._runner.watch import Signals

job = take_job({**os.environ, "KINETIC_OUTCOME_KEY": "00"})
os.makedirs(job.work_dir)
store, name = open_store(job.store_uri), object_names.payload(job.job_id, job.payload_sha256)
header, parts = wire.decode_frame(read_frame(store, name, job.payload_sha256, None))
template = Template(job, job, store, Signals(60.0), header, parts, float(sys.argv[1]))
template.wait_until_ready()
if sys.argv[2:]:
    Path(sys.argv[2]).touch()
    select.select([template.descriptor], [], [])
print(template.fork(job, {}, *os.pipe()), template.is_dead, template.status(False))
template.close()
"""

WITHOUT_DISK = """
import os, sys
from dataclasses import replace
from kinetic_core._runner import object_names, wire
from kinetic_core._runner.attempt import take_job
from kinetic_core._runner.payload import read_frame
from kinetic_core._runner.store import open_store
from kinetic_core._runner.template import SetUpFailed, Template
from kinetic_core._runner.watch import Signals

job = take_job({**os.environ, "KINETIC_OUTCOME_KEY": "00", "KINETIC_LANE": "grp-aa 0 1 1 - 0"})
nowhere = replace(job, work_dir="/proc/nowhere/work", index=0)
store, name = open_store(job.store_uri), object_names.payload(job.job_id, job.payload_sha256)
header, parts = wire.decode_frame(read_frame(store, name, job.payload_sha256, None))
signals, arguments = Signals(60.0), {name: parts.pop(name) for name in ("arguments", "argument_copies")}
try:
    Template(nowhere, nowhere, store, signals, header, parts)
except SetUpFailed as exc:
    print(exc.outcome.failure.failure_class, exc.outcome.failure.message, sep=": ")
template = Template(job, job, store, signals, header, parts)
template.wait_until_ready()
reading, writing = os.pipe()
template.fork(nowhere, arguments, os.dup(1), writing)
os.close(writing)
content = os.read(reading, 1 << 16)
failure = wire.decode_frame(content)[0]["failure"] if content else {}
print(*map(failure.get, ("failure_class", "message")), sep=": ")
template.close()
"""


def told(attempts: Attempts, program: str, *arguments: str, **changes: str) -> str:
    """Run a program with the environment of a job; return what it prints."""
    command = [sys.executable, "-c", program, SECONDS, *arguments]
    environment = attempts.environment(**changes)
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, check=True, timeout=60
    ).stdout.decode()


@pytest.mark.parametrize("reuse", ["process", "fork"])
def test_a_keeper_that_does_not_begin_is_given_up(tmp_path: Path, reuse: str) -> None:
    """An import of an earlier call may have hung its forks."""
    attempts = Attempts(tmp_path).submit(lambda: None)
    assert told(attempts, KEEPER, KINETIC_REUSE=reuse) == "TimeoutError\n"


class Loading:
    """A function, and something that is done where it is loaded."""

    def __init__(self, load: Callable[..., Any], *arguments: Any) -> None:
        self._load, self._arguments = load, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._load, self._arguments


def hang_forks() -> Callable[..., Any]:
    os.register_at_fork(before=signal.pause)
    return abs


def answer_late(go: Path) -> Callable[..., Any]:
    """Hang when this process looks which files it has mapped, until told to go on."""
    import time

    def hang(event: str, arguments: tuple[Any, ...]) -> None:
        while event == "open" and arguments[0] == "/proc/self/maps" and not go.exists():
            time.sleep(0.01)

    sys.addaudithook(hang)
    return abs


def test_a_template_that_does_not_fork_is_dead(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path).submit(Loading(hang_forks))
    assert told(attempts, TEMPLATE) == f"0 True {signal.SIGKILL}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_template_that_answers_too_late_is_dead(tmp_path: Path) -> None:
    """Else what it answers was taken for the answer to the next question: the id of a process."""
    go = tmp_path / "go"
    attempts = Attempts(tmp_path).submit(Loading(answer_late, go))
    assert told(attempts, TEMPLATE, str(go)) == f"0 True {signal.SIGKILL}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="nobody can make a directory in /proc")
def test_an_input_without_a_disk_has_not_failed(tmp_path: Path) -> None:
    """Whether the process that loads the function cannot be, or that of the input: it runs again."""
    attempts = Attempts(tmp_path).submit(lambda: None)
    said = told(attempts, WITHOUT_DISK, HOME=attempts.environment()["KINETIC_WORK_DIR"]).splitlines()
    reason = "/proc/nowhere cannot be written: No such file or directory"
    assert said == [f"{wire.FailureClass.CONTROL_PLANE}: {reason}"] * 2


@pytest.mark.parametrize(
    ("fault", "reuse"),
    [("disk", {"KINETIC_REUSE": "process"}), ("disk", {"KINETIC_REUSE": "fork"}), ("fork", {})],
)
def test_what_a_machine_lacks_is_no_failure_of_a_call(
    tmp_path: Path, fault: str, reuse: dict[str, str]
) -> None:
    """Of what a keeper must be told, only a part fits on the disk; or there may be no more processes."""
    attempts, ran = Attempts(tmp_path), tmp_path / "ran"
    attempts.submit(appending(ran))
    worker = start(attempts, idle=1, FAULT_OF_FIRST_RUNNER=fault, **reuse)
    give(attempts, KINETIC_RETRIES="0", LONG="x" * (128 << 10))
    assert worker.wait(timeout=60) == 0, "it has ended by itself"
    key = wire.call_key(WORKER_KEY, KEY_ID)
    outcome = read_outcome(attempts.store.read(object_names.result(JOB)), key, job_id=JOB)
    assert (outcome.value_or_raise(), outcome.attempt, ran.read_text()) == ("value", 1, "x")
    end, _ = wire.decode_frame(attempts.store.read(object_names.attempt_outcome(JOB, 0)), key)
    assert ("File too large" in end["failure"]["message"]) == (fault == "disk")


@pytest.mark.parametrize("reuse", ["process", "fork"])
def test_a_disk_that_stays_full_is_said(tmp_path: Path, reuse: str) -> None:
    attempts = Attempts(tmp_path).submit(lambda: None)
    worker = start(attempts, idle=1, FAULT_OF_FIRST_RUNNER="disk", KINETIC_REUSE=reuse)
    give(attempts, KINETIC_INFRASTRUCTURE_RETRIES="0", LONG="x" * (128 << 10))
    assert worker.wait(timeout=60) == 0, "it has ended by itself"
    key = wire.call_key(WORKER_KEY, KEY_ID)
    outcome = read_outcome(attempts.store.read(object_names.result(JOB)), key, job_id=JOB)
    with pytest.raises(JobLost, match=r"cannot take this one: .* File too large"):
        outcome.value_or_raise()
