"""Batches of this machine whose client, supervisor or store goes away."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core import BatchError, JobStatus
from kinetic_core.errors import BatchTimeout, InvalidRequest, JobCancelled
from tests.batches.scripts import SIX, first_run, run_script, supervisors
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("local_jobs")

TWELVE = (
    "if __name__ == '__main__':\n"
    "    batch = work.run_async_map([100, 101, *range(2, 12)], max_concurrent=2, retries=1)\n"
    "    print(batch.group_id, flush=True)\n"
    "    batch.results()"
)


def killed_client(tmp_path: Path, body: str, running: int = 2) -> str:
    """The id of a script's batch, of which so many inputs run, and the script is dead."""
    with run_script(tmp_path, body) as script:
        group_id = first_run(script, tmp_path, running)
        script.kill()
        script.wait()
    return group_id


def ran(tmp_path: Path) -> int:
    return len(list(tmp_path.glob("ran-*")))


@pytest.mark.promise("batches: Local backend: detached supervisor")
def test_a_batch_goes_on_when_its_client_was_killed(tmp_path: Path) -> None:
    group_id = killed_client(tmp_path, TWELVE)
    assert ran(tmp_path) == 2
    (tmp_path / "fails-once").touch()
    (tmp_path / "go").touch()
    wait_for(lambda: not supervisors(group_id), 100)  # nobody looks meanwhile
    assert ran(tmp_path) == 12
    assert len(list(tmp_path.glob("attempt-*"))) == 13
    assert max(int(path.name[4:]) for path in tmp_path.glob("saw-*")) == 2
    assert kinetic_core.attach_batch(group_id).results(timeout=90) == [100, 101, *range(2, 12)]


@pytest.mark.promise("batches: Local backend: detached supervisor")
def test_another_supervisor_takes_over_from_a_killed_one(tmp_path: Path) -> None:
    body = SIX.replace("max_concurrent=2", "max_concurrent=1")  # fewer than any machine has slots
    group_id = killed_client(tmp_path, body, running=1)
    first, *_ = supervisors(group_id)
    os.kill(first, signal.SIGKILL)
    results = f"attach_batch({group_id!r}).results(cleanup=False, timeout=90)"
    program = f"import kinetic_core; print(kinetic_core.{results})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as other:
        batch = kinetic_core.attach_batch(group_id)
        assert [status for _, status in batch.statuses()].count(JobStatus.PENDING) == 5
        wait_for(lambda: len(set(supervisors(group_id)) - {first}) == 3)  # it, the agent, and its guard
        with pytest.raises(BatchTimeout, match="0 of 6 inputs"):
            batch.results(timeout=0.2)
        assert ran(tmp_path) == 1
        (tmp_path / "go").touch()
        assert batch.results(timeout=90, cleanup=False) == list(range(100, 106))
        assert other.communicate(timeout=90)[0] == f"{list(range(100, 106))}\n"
    assert max(int(path.name[4:]) for path in tmp_path.glob("saw-*")) == 1
    wait_for(lambda: not supervisors(group_id))


def test_whoever_waits_already_brings_another_supervisor(tmp_path: Path) -> None:
    group_id = killed_client(tmp_path, SIX)
    batch = kinetic_core.attach_batch(group_id)
    os.kill(supervisors(group_id)[0], signal.SIGKILL)
    (tmp_path / "go").touch()
    assert batch.results(timeout=90) == list(range(100, 106))


def test_cancelling_from_another_process_leaves_nothing(tmp_path: Path) -> None:
    group_id = killed_client(tmp_path, SIX)
    kinetic_core.attach_batch(group_id).cancel()
    wait_for(lambda: not supervisors(group_id))
    batch = kinetic_core.attach_batch(group_id)
    assert batch.status_counts() == {"CANCELLED": 6}
    wait_for(lambda: "6 inputs, 6 ended (6 cancelled)>" in repr(batch))
    assert "6 cancelled" in batch._repr_html_()
    values = batch.results(return_exceptions=True, timeout=90)
    assert [type(value).__name__ for value in values] == ["JobCancelled"] * 6
    assert ran(tmp_path) == 2


def test_one_input_is_cancelled_before_its_turn(tmp_path: Path) -> None:
    group_id = killed_client(tmp_path, SIX)
    batch = kinetic_core.attach_batch(group_id)
    fifth = batch.jobs[4]
    assert fifth is not None
    assert fifth.observe().reason == "WaitingForSlot"
    fifth.cancel()
    with pytest.raises(InvalidRequest, match="has not ended"):
        batch.cleanup()
    (tmp_path / "go").touch()
    with pytest.raises(BatchError) as caught:
        batch.results(timeout=90)
    assert isinstance(caught.value.exceptions.pop(4), JobCancelled)
    assert not caught.value.exceptions
    assert caught.value.partial_results == [100, 101, 102, 103, None, 105]
    batch.cleanup()
    with pytest.raises(FileNotFoundError):
        kinetic_core.attach_batch(group_id)


def test_what_runs_is_cancelled_with_the_first_failure(tmp_path: Path) -> None:
    body = SIX.replace("max_concurrent=2", "max_concurrent=2, fail_fast=True, cancel_running_on_fail=True")
    group_id = killed_client(tmp_path, body)
    (tmp_path / "fail-101").touch()
    wait_for(lambda: not supervisors(group_id))
    values = kinetic_core.attach_batch(group_id).results(return_exceptions=True, timeout=90)
    assert [type(value).__name__ for value in values] == ["JobCancelled", "ValueError"] + ["JobCancelled"] * 4
    assert ran(tmp_path) == 2


def test_nothing_is_left_of_a_batch_whose_store_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "own"))
    group_id = killed_client(tmp_path, SIX)
    shutil.rmtree(tmp_path / "own")
    (tmp_path / "go").touch()
    wait_for(lambda: not supervisors(group_id))
    assert ran(tmp_path) == 2
    assert not (tmp_path / "own" / "cluster").exists()


def test_what_a_dead_client_had_stored_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "own"))
    body = (
        "pickled = []\n"
        "class Killer:\n"
        "    def __reduce__(self):\n"
        "        pickled.append(self)\n"
        "        if len(pickled) == 2: signal.raise_signal(signal.SIGKILL)  # once data is looked for in it\n"
        "        return int, (3,)\n"
        "if __name__ == '__main__': work.run_async_map([1, 2, Killer(), 4], max_concurrent=1)"
    )
    with run_script(tmp_path, body) as script:
        assert script.wait(90) == -signal.SIGKILL
    (stored,) = (tmp_path / "own" / "store" / "batches").iterdir()
    batch = kinetic_core.attach_batch(stored.name, poll_interval=0.02)
    with pytest.raises(BatchError, match="2 of 4 inputs") as caught:
        batch.results(timeout=90)
    assert caught.value.partial_results == [1, 2, None, None]
    assert {index: type(error) for index, error in caught.value.exceptions.items()} == {
        2: JobCancelled,
        3: JobCancelled,
    }
