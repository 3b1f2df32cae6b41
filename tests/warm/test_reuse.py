"""Calls with `reuse=`: what they share on a worker, and what ends that, here and on a cluster."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinetic_core import Data
from kinetic_core.errors import InvalidRequest, JobCancelled, JobDeadlineExceeded, JobFailed
from kinetic_core.options import RunOptions
from tests.conftest import wait_for
from tests.runner.attempts import Attempts
from tests.warm.canaries import CANARIES, leave_all, seen
from tests.warm.places import Call, Here
from tests.warm.test_calls import begun, held, place
from tests.warm.test_kills import alone, executions, kill

__all__ = ["place"]
BOTH = pytest.mark.parametrize("reuse", ["process", "fork"])
counted: list[int] = []
"""Stands for what a process knows, such as a device."""


def count(error: type[BaseException] | None = None) -> tuple[int, int]:
    counted.append(1)
    print("count", len(counted))
    if error is not None:
        raise error("no")
    return os.getpid(), len(counted)


def test_calls_run_in_one_process(place: Here) -> None:
    calls: list[Call] = []
    for _ in range(3):
        calls.append(place.submit(count, reuse="process"))
        calls[-1].value()
    process = calls[0].value()[0]
    assert [call.value() for call in calls] == [(process, 1), (process, 2), (process, 3)]
    assert [call.logs() for call in calls] == ["count 1\n", "count 2\n", "count 3\n"]
    assert len({call.worker for call in calls}) == 1


def test_calls_without_reuse_have_other_workers(place: Here) -> None:
    first, second = place.submit(count, reuse="process"), place.submit(count)
    assert first.worker != second.worker
    assert {first.value()[1], second.value()[1]} == {1}


@pytest.mark.parametrize(
    ("error", "is_kept"), [(ValueError, True), (RuntimeError, False), (SystemExit, False)]
)
def test_an_error_that_devices_raise_ends_the_process(
    place: Here, error: type[BaseException], is_kept: bool
) -> None:
    process, _ = place.submit(count, reuse="process").value()
    failed = place.submit(count, error, reuse="process")
    with pytest.raises((JobFailed, ValueError, RuntimeError, SystemExit)):
        failed.value()
    after = place.submit(count, reuse="process").value()
    assert (after == (process, 3)) is is_kept
    assert is_kept or after[1] == 1
    assert ("the next call gets a new process: the function ended by" in failed.logs()) is not is_kept


def exits() -> None:
    os._exit(7)


def leaves_a_thread() -> int:
    threading.Thread(target=time.sleep, args=(3600,), name="forgotten").start()
    return os.getpid()


@BOTH
def test_a_crash_is_told_and_ends_the_process(place: Here, reuse: str) -> None:
    process, _ = place.submit(count, reuse=reuse).value()
    crashed = place.submit(exits, reuse=reuse)
    with pytest.raises(JobFailed, match="exited with code 7"):
        crashed.value()
    after = place.submit(count, reuse=reuse)
    assert after.worker == crashed.worker
    assert after.value()[1] == 1
    assert after.value()[0] != process


def test_a_thread_that_goes_on_ends_the_process(place: Here) -> None:
    left = place.submit(leaves_a_thread, reuse="process")
    process = left.value()
    after = place.submit(count, reuse="process")
    assert after.value()[0] != process
    assert "the next call gets a new process: threads still run: forgotten" in left.logs()


def sleeps() -> None:
    time.sleep(3600)


@BOTH
def test_cancel_and_timeout_end_one_call(place: Here, tmp_path: Path, reuse: str) -> None:
    call = place.submit(held, str(tmp_path), reuse=reuse)
    wait_for(lambda: begun(tmp_path))
    call.cancel()
    with pytest.raises(JobCancelled):
        call.value()
    late = place.submit(sleeps, reuse=reuse, timeout=1)
    assert late.worker == call.worker
    with pytest.raises(JobDeadlineExceeded):
        late.value()
    after = place.submit(count, reuse=reuse)
    assert (after.worker, after.value()[1]) == (call.worker, 1)


def starts_a_process() -> tuple[int, int]:
    return os.getpid(), subprocess.Popen(["sleep", "3600"], start_new_session=True).pid


@BOTH
def test_processes_of_a_call_end_with_it(place: Here, reuse: str) -> None:
    _, left = place.submit(starts_a_process, reuse=reuse).value()
    assert not Path(f"/proc/{left}").exists()
    place.submit(count, reuse=reuse).value()


@BOTH
@pytest.mark.parametrize(("who", "retries"), [("runner beside it", 0), ("keeper", 1)])
def test_who_is_killed_takes_user_code_along(
    place: Here, tmp_path: Path, who: str, retries: int, reuse: str
) -> None:
    """The death of a keeper is an attempt of the function, for it looks like the function's own."""
    call = place.submit(alone, str(tmp_path), reuse=reuse, retries=retries)
    wait_for(lambda: executions(tmp_path))
    assert kill(who, place.runner_of(call.worker))
    wait_for(lambda: len(executions(tmp_path)) == 2)
    (tmp_path / "go").touch()
    assert call.value() == "value"
    assert executions(tmp_path) == ["once", "once"]


RUNNER_THAT_LEAVES = """
import os, sys
from kinetic_core._runner.attempt import take_job
from kinetic_core._runner.kept_process import KeptProcess
from kinetic_core._runner.store import open_store

job = take_job({**os.environ, "KINETIC_OUTCOME_KEY": "00"})
kept = KeptProcess(job, open_store, lambda: None)
kept.ensure()
runner = os.fork()
if runner == 0:
    os.makedirs(job.work_dir)
    print(kept.run(job, os.pipe()[1]), flush=True)
    sys.stdin.readline()
    os._exit(0)
os.waitpid(runner, 0)
print("gone", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("reuse", ["process", "fork"])
def test_a_keeper_ends_what_a_runner_leaves(tmp_path: Path, reuse: str) -> None:
    """Whatever the runner ends with, and although worker and keeper live."""
    attempts, begun_at = Attempts(tmp_path), tmp_path / "begun"

    def work() -> None:
        begun_at.touch()
        time.sleep(600)

    attempts.submit(work)
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER_THAT_LEAVES],
        env=attempts.environment(KINETIC_REUSE=reuse),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        process = int(worker.stdout.readline())
        wait_for(begun_at.exists)
        print("leave", file=worker.stdin, flush=True)
        assert worker.stdout.readline() == "gone\n"
        wait_for(lambda: not Path(f"/proc/{process}").exists())
        print("end", file=worker.stdin, flush=True)


def reads(data: Data) -> tuple[int, str]:
    return os.getpid(), Path(str(data), "file").read_text()


def test_each_call_has_data_of_its_own(place: Here, tmp_path: Path) -> None:
    found = []
    for number in range(2):
        folder = tmp_path / f"data{number}"
        folder.mkdir()
        (folder / "file").write_text(f"content {number}")
        found.append(place.submit(reads, Data(str(folder)), reuse="process").value())
    assert [text for _, text in found] == ["content 0", "content 1"]
    assert found[0][0] == found[1][0]


def pooled() -> tuple[int, list[int]]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return os.getpid(), pool.map(doubled, [1, 2])


def doubled(number: int) -> int:
    return 2 * number


def test_each_call_can_spawn_processes(place: Here) -> None:
    found = [place.submit(pooled, reuse="process").value() for _ in range(2)]
    assert [values for _, values in found] == [[2, 4], [2, 4]]
    assert found[0][0] == found[1][0]


def computes(seconds: float) -> int:
    """Compute without a word."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    return os.getpid()


@BOTH
def test_a_silent_call_that_computes_does_not_hang(place: Here, reuse: str) -> None:
    place.submit(computes, 8, reuse=reuse, hang_after=5).value()
    silent = place.submit(sleeps, reuse=reuse, hang_after=5)
    with pytest.raises(JobFailed, match="nothing was printed or computed"):
        silent.value()


MODULE = """
loaded = []
def value():
    loaded.append(1)
    return {number}, len(loaded)
"""
CALLER = """
import helper
def call():
    return helper.value()
"""


def test_a_module_that_changed_is_imported_again(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "caller.py").write_text(CALLER)
    place = Here(tmp_path, root=project)
    sys.path.insert(0, str(project))
    try:
        (project / "helper.py").write_text(MODULE.format(number=1))
        import caller  # type: ignore[import-not-found]

        assert [_value(place, caller.call) for _ in range(2)] == [[1, 1], [1, 2]]
        (project / "notes.txt").write_text("no module")
        assert _value(place, caller.call) == [1, 3]
        (project / "helper.py").write_text(MODULE.format(number=2))
        assert _value(place, caller.call) == [2, 1]
    finally:
        sys.path.remove(str(project))
        for name in ("caller", "helper"):
            sys.modules.pop(name, None)
        place.close()


def _value(place: Here, function: Callable[..., Any]) -> list[int]:
    return list(place.submit(function, reuse="process").value())


def imports() -> tuple[bool, float]:
    """Return whether NumPy was there, and a number that it draws."""
    was_there = "numpy" in sys.modules
    from numpy import random

    return was_there, float(random.random())


def test_forks_have_what_earlier_calls_imported(place: Here) -> None:
    drawn = [place.submit(imports, reuse="fork").value() for _ in range(3)]
    assert [was_there for was_there, _ in drawn] == [False, True, True]
    assert len({number for _, number in drawn}) == 3


def test_a_fork_finds_nothing_that_an_earlier_one_left(place: Here) -> None:
    first = place.submit(leave_all, reuse="fork")
    left = first.value()
    assert len(left) == len(CANARIES) > 50
    second = place.submit(seen, left, reuse="fork")
    assert second.worker == first.worker
    assert second.value() == []


def test_reuse_needs_a_worker() -> None:
    with pytest.raises(InvalidRequest, match="give warm=, too"):
        RunOptions.checked("cpu", reuse="fork")
    with pytest.raises(InvalidRequest, match="not one of process, fork"):
        RunOptions.checked("cpu", warm="1m", reuse="thread")
