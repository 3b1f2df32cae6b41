"""Signals to the runner while it waits for something that does not answer."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_core._runner import wire

SILENT = """
import os, select
from kinetic_core._runner.watch import Signals

signals = Signals({leave_after})
print("ready", flush=True)
reading, _ = os.pipe()
{wait}
"""


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the signals of a runner; it is ready."""
    leave_after, wait = request.param
    program = SILENT.format(leave_after=leave_after, wait=wait)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


@pytest.mark.parametrize("started", [(0.2, "os.read(reading, 1)")], indirect=True)
def test_a_request_that_is_never_answered_is_left_in_time(started: subprocess.Popen[bytes]) -> None:
    started.send_signal(signal.SIGTERM)
    assert started.wait(timeout=90) == wire.EXIT_UNPUBLISHED


@pytest.mark.parametrize(
    "started", [(60, "select.select([signals.descriptor], [], []); signals.release()")], indirect=True
)
def test_who_ends_in_time_is_not_hurried(started: subprocess.Popen[bytes]) -> None:
    started.send_signal(signal.SIGTERM)
    assert started.wait(timeout=90) == 0


def test_the_first_signal_can_be_an_exception() -> None:
    program = """
import os, signal
from kinetic_core._runner.watch import Signals

class Stop(BaseException): pass

signals = Signals(60)
try:
    with signals.raising(Stop):
        os.kill(os.getpid(), signal.SIGTERM)
except Stop:
    os.kill(os.getpid(), signal.SIGTERM)
    print(len(signals.told))
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert told.stdout == "2\n"


COLLECTED = """
import os, signal, sys
from kinetic_core._runner.attempt import take_job
from kinetic_core._runner.log import LogTee
from kinetic_core._runner.memory import MemoryGauge
from kinetic_core._runner.phases import StoredTimes
from kinetic_core._runner.store import open_store
from kinetic_core._runner.watch import Signals, watch_child

class Parent:
    # Collects the child, and says so when it is asked again: a keeper first ends what the child has left.
    def __init__(self, child):
        self.descriptor, waker = os.pipe()
        os.write(waker, b"0")
        self.found = None
        self.child = child
    def status(self, ready):
        if self.found is None:
            self.found = os.waitpid(self.child, 0)[1]
            return None
        return self.found

class Watcher:
    def look(self, child, terminated):
        return {left}

names = ("STORE", "JOB_ID", "PAYLOAD_SHA256", "OUTCOME_KEY", "WORK_DIR")
job = take_job({{f"KINETIC_{{name}}": "00" for name in names}})
store, signals = open_store(sys.argv[1]), Signals(60)
child = os.fork()
if child == 0:
    os._exit(7)
tee = LogTee(job, store, os.open(os.devnull, os.O_RDONLY))
times, watchers = StoredTimes(job, store, 0.0), [Watcher()]
if {told}:
    os.kill(os.getpid(), signal.SIGTERM)
ending = watch_child(child, tee, 30, signals, MemoryGauge(), times, watchers, int, Parent(child))
print(ending.exit_code, ending.signal)
"""


@pytest.mark.parametrize(("told", "left"), [(True, None), (False, 0.0)], ids=["signal", "watcher"])
def test_a_child_that_is_collected_needs_no_end(tmp_path: Path, told: bool, left: float | None) -> None:
    command = [sys.executable, "-c", COLLECTED.format(told=told, left=left), tmp_path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("7 None\n", "")
