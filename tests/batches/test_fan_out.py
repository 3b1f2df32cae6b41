"""Batches on the real local backend: limits, failures, finding them again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core import BatchError, JobStatus
from kinetic_core.errors import BatchTimeout, InvalidRequest, JobCancelled, JobNotFound
from tests.batches.scripts import SIX, first_run, run_script
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("local_jobs")


@kinetic_core.run(accelerator="cpu")
def inverse(x: float, *, scale: float = 1.0) -> float:
    return scale / x


def test_results_come_in_input_order() -> None:
    batch = inverse.run_async_map([1, 2, 4, 8], max_concurrent=2, name="inverses", tags={"team": "a"})
    assert batch.results(cleanup=False) == [1, 0.5, 0.25, 0.125]
    assert batch.status_counts() == {"SUCCEEDED": 4}
    assert (batch.name, batch.tags) == ("inverses", {"team": "a"})
    outputs = {job.job_id for job in batch.jobs if job is not None}
    assert outputs == {f"{batch.group_id}-{index}" for index in range(4)}
    batch.cleanup()
    assert all(job.status() is JobStatus.NOT_FOUND for job in batch.jobs if job)


def test_modes_of_input() -> None:
    assert inverse.run_async_map([{"x": 2, "scale": 4}, (5,)]).results() == [2, 0.2]


def test_a_failure_is_told_with_everything_else_kept() -> None:
    batch = inverse.run_async_map([1, 0, threading.Lock()])
    with pytest.raises(BatchError, match="2 of 3 inputs") as caught:
        batch.results()
    error = caught.value
    assert error.partial_results == [1, None, None]
    assert isinstance(error.exceptions[1], ZeroDivisionError)
    assert list(error.submission_failures) == [2]
    assert [job.group_index for job in batch.failures()] == [1]
    values = batch.results(return_exceptions=True)
    assert [type(value).__name__ for value in values] == ["float", "ZeroDivisionError", "UnpicklableArgument"]


def test_values_stay_readable_while_another_is_missing() -> None:
    pickled = kinetic_core.run(accelerator="cpu")(lambda x: Counter(of=4 // x))  # read if its key is there
    batch = pickled.run_async_map([2, 0])
    with pytest.raises(BatchError):
        batch.results()
    for thread in threading.enumerate():
        if thread.name == f"kinetic-cleanup-{batch.group_id}":
            thread.join()
    again = kinetic_core.attach_batch(batch.group_id).results(return_exceptions=True)
    assert again[0] == Counter(of=2)


@pytest.mark.promise("batches: Partial results on timeout")
@pytest.mark.parametrize("ordered", [True, False])
def test_out_of_time_the_values_there_are_come_with_the_error(tmp_path: Path, ordered: bool) -> None:
    @kinetic_core.run(accelerator="cpu")
    def inverse_in_time(x: int) -> float:
        import time

        while x == 2 and not (tmp_path / "go").exists():
            time.sleep(0.01)
        return 1 / x

    batch = inverse_in_time.run_async_map([1, 0, 2, 4, threading.Lock()])
    batch.follow()
    wait_for(lambda: batch.progress().ended == 4)
    with pytest.raises(BatchTimeout, match="3 of 5 inputs have ended") as caught:
        batch.results(timeout=0.1, ordered=ordered)
    assert caught.value.partial_results == [1, None, None, 0.25, None]
    assert {index: type(error).__name__ for index, error in caught.value.exceptions.items()} == {
        1: "ZeroDivisionError",
        4: "UnpicklableArgument",
    }
    (tmp_path / "go").touch()
    with pytest.raises(BatchError) as later:
        batch.results()
    assert later.value.partial_results == [1, None, 0.5, 0.25, None]


@pytest.mark.promise("batches: Results readable as they arrive, `(index, value)`")
def test_values_as_they_come() -> None:
    batch = inverse.run_async_map([2, 0, 4])
    seen = dict(batch.items())
    assert (seen[0], seen[2]) == (0.5, 0.25)
    assert isinstance(seen[1], ZeroDivisionError)
    assert {job.group_index for job in batch.as_completed()} == {0, 1, 2}


@pytest.mark.promise("batches: `as_completed`; no attempt before its retries are exhausted")
def test_retries_end_in_one_answer(tmp_path: Path) -> None:
    @kinetic_core.run(accelerator="cpu")
    def second_time(index: int) -> int:
        marker = tmp_path / str(index)
        if not marker.exists():
            marker.touch()
            raise RuntimeError("first time")
        return index

    batch = second_time.run_async_map([0, 1], retries=1)
    assert sorted(job.group_index or 0 for job in batch.as_completed()) == [0, 1]
    assert batch.results() == [0, 1]


def test_fail_fast_launches_nothing_more(tmp_path: Path) -> None:
    @kinetic_core.run(accelerator="cpu")
    def first_fails(index: int) -> int:
        (tmp_path / str(index)).touch()
        raise RuntimeError("no")

    batch = first_fails.run_async_map(range(20), max_concurrent=1, fail_fast=True)
    with pytest.raises(BatchError):
        batch.results()
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_cancel_stops_all(capsys: pytest.CaptureFixture[str]) -> None:
    @kinetic_core.run(accelerator="cpu")
    def forever(index: int) -> None:
        import time

        time.sleep(600)

    batch = forever.run_async_map(range(6), max_concurrent=3)
    assert all(batch.jobs)
    batch.cancel()
    batch.wait(timeout=60)
    assert set(batch.status_counts()) <= {"CANCELLED"}
    assert batch.jobs.count(None) >= 3
    with pytest.raises(BatchError, match="6 of 6 inputs") as caught:
        batch.results()
    assert {type(error) for error in caught.value.exceptions.values()} == {JobCancelled}
    assert sorted(index for index, _ in batch.items()) == list(range(6))
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("kinetic: ")]
    assert f"kinetic: submitted {batch.group_id}: forever, 6 inputs" in told
    ends = [line for line in told if "6/6 done" in line]  # none if all had ended before anybody looked
    assert all("6/6 done, 6 cancelled" in line for line in ends)
    assert not any("failed" in line for line in told)


def test_found_again_from_another_process() -> None:
    batch = inverse.run_async_map([2, 4])
    batch.wait()
    program = (
        f"import kinetic_core; print(kinetic_core.attach_batch({batch.group_id!r}).results(cleanup=False))"
    )
    other = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert other.stdout == "[0.5, 0.25]\n"
    with pytest.raises(FileNotFoundError, match="no batch grp-0"):
        kinetic_core.attach_batch("grp-0")


def test_outputs_are_not_shared(tmp_path: Path) -> None:
    @kinetic_core.run(accelerator="cpu", output_dir=str(tmp_path))
    def save(index: int) -> None:
        Path(os.environ["KINETIC_OUTPUT_DIR"], "model").write_text(str(index))

    save.run_async_map([7, 8]).results()
    assert [(tmp_path / str(i) / "model").read_text() for i in range(2)] == ["7", "8"]


@pytest.mark.parametrize(
    "options",
    [
        {"inputs": []},
        {"input_mode": "rows"},
        {"max_concurrent": 0},
        {"retries": -1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_bad_options_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        inverse.run_async_map(**{"inputs": [1], **options})


def test_an_input_whose_job_is_removed_is_unavailable() -> None:
    batch = inverse.run_async_map([1, 2, 4])
    batch.wait()
    removed = batch.jobs[1]
    assert removed is not None
    removed.cleanup()
    later = kinetic_core.attach_batch(batch.group_id)
    assert later.unavailable_children == {1: removed.job_id}
    with pytest.raises(kinetic_core.BatchError) as caught:
        later.results()
    assert isinstance(caught.value.exceptions[1], JobNotFound)
    assert caught.value.partial_results == [1, None, 0.25]


def test_cancel_running_alone_has_no_effect_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert inverse.run_async_map([1], cancel_running_on_fail=True).results() == [1]
    assert "has no effect without fail_fast=True" in caplog.text


def test_a_script_that_ends_at_once_still_submits_every_input(tmp_path: Path) -> None:
    body = "if __name__ == '__main__': print(work.run_async_map(range(6), max_concurrent=2).group_id)"
    with run_script(tmp_path, body) as script:
        out, err = script.communicate()
    assert (script.returncode, "Traceback" in err) == (0, False)
    batch = kinetic_core.attach_batch(out.strip())
    assert batch.results() == [0, 1, 2, 3, 4, 5]


def test_ctrl_c_ends_nothing_and_says_what_goes_on(tmp_path: Path) -> None:
    with run_script(tmp_path, f"{SIX}\n    batch.results()") as script:
        group_id = first_run(script, tmp_path)
        script.send_signal(signal.SIGINT)
        _, err = script.communicate(timeout=90)
    assert f"{group_id} goes on without this process, 6 of its jobs have not ended" in err
    assert f"hint: kinetic batch cancel {group_id}\n" in err
    batch = kinetic_core.attach_batch(group_id)
    assert "6 inputs, 0 ended>" in repr(batch)
    (tmp_path / "go").touch()
    assert batch.results() == list(range(100, 106))
