"""User code that does nothing any more is ended, with where it was; what computes or prints is not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from kinetic_core._runner import wire
from kinetic_core._runner.attempt import take_job
from kinetic_core._runner.hang import HangWatch, Stillness
from kinetic_core._runner.log import LogTee
from kinetic_core._runner.phases import note
from kinetic_core._runner.store import open_store
from tests.conftest import wait_for
from tests.runner.attempts import Attempts

ALLOWED = {"KINETIC_HANG_SECONDS": "1"}


@dataclass
class Machine:
    """What a process has done so far."""

    now: float = 0.0
    printed: int = 0
    used: float | None = 0.0

    def stillness(self) -> Stillness:
        return Stillness(lambda: self.printed, lambda: self.used, lambda: self.now)


def test_what_is_progress_and_that_idle_threads_are_none() -> None:
    machine = Machine()
    still = machine.stillness()
    machine.now, machine.used = 100.0, 1.5  # of a hundred seconds, as a heartbeat takes
    assert still.seconds() == 100
    machine.now, machine.printed = 101.0, 1
    assert still.seconds() == 0
    machine.now, machine.used = 111.0, 2.5
    assert still.seconds() == 0
    machine.now, machine.used = 121.0, 0.5
    assert still.seconds() == 0
    machine.now = 131.0
    assert still.seconds() == 10


def test_where_the_system_does_not_say_nothing_hangs() -> None:
    machine = Machine(used=None)
    still = machine.stillness()
    machine.now = 1000.0
    assert still.seconds() == 0


def wait_for_nobody() -> None:
    import threading

    threading.Event().wait()


def busy(folder: str) -> str:
    """Three times as long as is allowed: in a child process, in print, in its own arithmetic."""
    import subprocess
    import sys
    import time

    spin = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"
    subprocess.run([sys.executable, "-c", spin], check=True)
    for number in range(5):
        print(number, flush=True)
        time.sleep(0.3)
    exec(spin)
    return "done"


def one_waits_for_the_other(folder: str) -> str:
    import os
    import time
    from pathlib import Path

    me = os.environ["KINETIC_HOST_INDEX"]
    if me == "0" and os.environ["KINETIC_FAILED_COUNT"] == "0":
        end = time.monotonic() + 3
        while time.monotonic() < end:
            pass
        Path(folder, "worked").touch()
    if os.environ["KINETIC_FAILED_COUNT"] == "0":
        time.sleep(60)
    return f"after {os.environ['KINETIC_FAILED_COUNT']}"


def test_a_function_that_hangs_is_ended_with_where_it_was(tmp_path: Path) -> None:
    attempt = Attempts(tmp_path).submit(wait_for_nobody)
    assert attempt.run(**ALLOWED) == wire.EXIT_USER_ERROR
    failure = attempt.outcome().failure
    assert failure is not None
    assert failure.failure_class == wire.FailureClass.USER_ERROR
    assert "for 1 s (hang_after)" in failure.message
    assert "in wait_for_nobody" in (failure.traceback or "")


def test_one_that_gets_on_is_left_alone(tmp_path: Path) -> None:
    attempt = Attempts(tmp_path).submit(busy, str(tmp_path))
    assert attempt.run(**ALLOWED) == 0
    assert attempt.outcome().value_or_raise() == "done"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Attempts, list[subprocess.Popen[bytes]]]]:
    """A slice of two, with a retry."""
    group = Attempts(tmp_path, retries=1).submit(one_waits_for_the_other, str(tmp_path))
    started: list[subprocess.Popen[bytes]] = []
    yield group, started
    for host in started:
        host.kill()
        host.wait()


def start(group: Attempts, host: int, failed: int) -> subprocess.Popen[bytes]:
    return group.start(
        KINETIC_HOST_COUNT="2",
        KINETIC_HOST_INDEX=str(host),
        KINETIC_POD_UID=f"uid-{host}-{failed}",
        KINETIC_FAILED_COUNT=str(failed),
        KINETIC_WORK_DIR=str(group.folder / "work" / f"{host}-{failed}"),
        **ALLOWED,
    )


def test_a_slice_hangs_when_all_its_hosts_do(
    hosts: tuple[Attempts, list[subprocess.Popen[bytes]]], tmp_path: Path
) -> None:
    group, started = hosts
    started += [start(group, host, 0) for host in (0, 1)]
    assert [host.wait(timeout=60) for host in started] == [wire.EXIT_REGROUP] * 2
    assert (tmp_path / "worked").exists()  # host 1 had been still for long
    started += [start(group, host, 1) for host in (0, 1)]
    wait_for(group.is_committed)
    assert group.outcome().value_or_raise() == "after 1"


@pytest.mark.promise("batches: Hang detection with the stacks of all ranks")
def test_the_error_of_a_slice_has_the_stacks_of_all(
    hosts: tuple[Attempts, list[subprocess.Popen[bytes]]],
) -> None:
    group, started = hosts
    group.retries = 0
    started += [start(group, host, 0) for host in (0, 1)]
    wait_for(group.is_committed)
    failure = group.outcome().failure
    assert failure is not None
    assert "on no host was anything printed or computed" in failure.message
    first, _, second = (failure.traceback or "").partition("Meanwhile on host 1")
    assert "in one_waits_for_the_other" in first
    assert "in one_waits_for_the_other" in second


@dataclass
class Full:
    """A log that is not read while its store is away."""

    size: int = 0
    is_full: bool = True


def test_whoever_waits_to_write_a_line_does_not_hang(tmp_path: Path) -> None:
    names = {f"KINETIC_{name}": "00" for name in ("STORE", "JOB_ID", "PAYLOAD_SHA256", "OUTCOME_KEY")}
    job = take_job({**names, "KINETIC_WORK_DIR": str(tmp_path), "KINETIC_HANG_SECONDS": "0.001"})
    note(job, "user_started")
    log = Full()
    watch = HangWatch(job, cast(LogTee, log), None, open_store(tmp_path.as_uri()))
    with subprocess.Popen(["sleep", "600"]) as child:
        for _ in range(100):
            assert watch.look(child.pid, False) is None
        log.is_full = False
        wait_for(lambda: watch.look(child.pid, False) is not None)
        child.kill()
    assert watch.has_hung
