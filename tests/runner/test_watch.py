"""Signals to the runner while it waits for something that does not answer."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

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
