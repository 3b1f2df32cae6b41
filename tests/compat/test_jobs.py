"""Jobs and batches through `kinetic_core.compat`; tests/cluster/test_compat.py runs these on a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import threading
import time
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
import kinetic_core.compat as kinetic
from kinetic_core.compat.job_status import JobStatus
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("local_jobs")
on_cpu = kinetic.run(accelerator="cpu", capture_env_vars=["OWN_*", "NOT_SET"])
Point = namedtuple("Point", "x y")


@on_cpu
def work(what: str, *args: Any, **kwargs: Any) -> Any:
    """Do what a test needs; one function, so that one project is packed."""
    if what == "sleep":
        time.sleep(600)
    if what == "raise":
        raise KeyError("no such shard")
    if what == "exit":
        sys.exit(*args)
    if what == "value nobody can pickle":
        return threading.Lock()
    if what == "interrupt":
        raise KeyboardInterrupt
    print("working", flush=True)
    return args, kwargs


@on_cpu
def facts(path: str, nested: Any) -> dict[str, Any]:
    """What a job finds, and what it leaves in its output directory."""
    output = os.environ["KINETIC_OUTPUT_DIR"]
    if "://" not in output:
        Path(output, "made.txt").write_text("made")
    return {
        "data": (type(path).__name__, sorted(each.name for each in Path(path).iterdir())),
        "type": (type(nested).__name__, type(nested["one"]).__name__, nested["one"] is nested["again"]),
        "file": Path(nested["file"]).read_text(),
        "own": {name: text for name, text in os.environ.items() if name.startswith(("OWN_", "NOT_"))},
        "output": output,
        "here": Path("test_jobs.py").exists(),
    }


@on_cpu
def square(number: int, plus: int = 0) -> int:
    if number < 0:
        raise ValueError(f"{number} is negative")
    if number > 100:
        time.sleep(600)
    return number * number + plus


def started(handle: kinetic.JobHandle) -> kinetic.JobHandle:
    wait_for(lambda: handle.status() is JobStatus.RUNNING, 120)
    return handle


def test_a_call_prints_its_lines_and_returns_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert work("return", 1, name="x") == ((1,), {"name": "x"})
    assert "working" in capsys.readouterr().out


@pytest.mark.parametrize("ends", ["return", "raise"])
def test_a_call_leaves_what_result_would_leave(ends: str) -> None:
    """The Kubernetes object is removed in both cases, everything that is stored after a success."""
    before = {job.job_id for job in kinetic.list_jobs()}
    stored = {job.job_id for job in kinetic_core.list_jobs()}
    with contextlib.suppress(KeyError):
        work(ends)
    assert {job.job_id for job in kinetic.list_jobs()} == before
    kept = [job.job_id for job in kinetic_core.list_jobs() if job.job_id not in stored]
    assert len(kept) == (ends == "raise")
    for job_id in kept:
        handle = kinetic.attach(job_id)
        assert handle.status() is JobStatus.NOT_FOUND
        handle.cleanup()


def test_a_collected_job_is_gone() -> None:
    handle = work.run_async("return", 2)
    assert type(handle) is kinetic.JobHandle
    seen: list[JobStatus] = []
    assert handle.job_id in [job.job_id for job in kinetic.list_jobs()]
    assert kinetic.attach(handle.job_id).result(timeout=180, on_status_change=seen.append) == ((2,), {})
    assert (seen[-1], len(seen)) == (JobStatus.SUCCEEDED, len(set(seen)))
    assert handle.status() is JobStatus.NOT_FOUND
    assert handle.job_id not in [job.job_id for job in kinetic.list_jobs()]
    with pytest.raises(LookupError):
        kinetic.attach(handle.job_id)
    with pytest.raises(LookupError, match="no outcome"):
        handle.result()


def test_without_cleanup_it_stays() -> None:
    handle = work.run_async("return")
    assert handle.result(timeout=180, cleanup=False) == handle.result(cleanup=False) == ((), {})
    assert handle.status() is JobStatus.SUCCEEDED
    assert "working" in (handle.logs() or "")
    assert handle.tail(1).strip() == "working"
    handle.cleanup()
    assert handle.status() is JobStatus.NOT_FOUND


def test_the_exception_is_the_functions_own() -> None:
    handle = work.run_async("raise")
    with pytest.raises(KeyError, match="no such shard") as caught:
        handle.result(timeout=180)
    assert "in work" in "".join(caught.value.__notes__)
    assert handle.status() is JobStatus.NOT_FOUND
    assert kinetic.attach(handle.job_id).job_id == handle.job_id, "what it stored is kept"
    handle.cleanup()


@pytest.mark.parametrize(
    ("what", "said"),
    [(("exit", 3), "3"), (("value nobody can pickle",), "pickle"), (("interrupt",), "KeyboardInterrupt")],
)
def test_other_failures_are_runtime_errors(what: tuple[Any, ...], said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        work.run_async(*what).result(timeout=180)


def test_an_exit_without_a_code_is_a_success() -> None:
    assert work.run_async("exit").result(timeout=180) is None


def test_a_time_out_leaves_the_job_and_cancel_ends_it() -> None:
    handle = started(work.run_async("sleep"))
    with pytest.raises(TimeoutError):
        handle.result(timeout=0.1)
    assert handle.status() is JobStatus.RUNNING
    assert handle.job_id in [job.job_id for job in kinetic.list_jobs()]
    handle.cancel(cleanup_timeout=10, cleanup_poll_interval=1)
    assert handle.status() is JobStatus.NOT_FOUND
    assert handle.job_id not in [job.job_id for job in kinetic.list_jobs()]
    assert kinetic.attach(handle.job_id).status() is JobStatus.NOT_FOUND
    with pytest.raises(RuntimeError, match="cancelled"):
        handle.result()
    handle.cleanup()


def test_cleaning_up_ends_what_runs() -> None:
    handle = started(work.run_async("sleep"))
    handle.cleanup()
    assert handle.status() is JobStatus.NOT_FOUND
    with pytest.raises(LookupError):
        kinetic.attach(handle.job_id)


def test_what_a_living_job_needs_is_not_removed() -> None:
    handle = started(work.run_async("sleep"))
    with pytest.raises(kinetic_core.errors.InvalidRequest, match=r"has not ended.*cancel\(\) it first"):
        handle.cleanup(k8s=False)
    assert kinetic.attach(handle.job_id).status() is JobStatus.RUNNING
    handle.cleanup()


def test_what_a_job_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in ("a.txt", "b.txt"):
        (data / name).write_text(name)
    monkeypatch.setenv("OWN_NAME", "mine")
    monkeypatch.chdir(Path(__file__).parent)
    folder, one = kinetic.Data(str(data)), kinetic.Data(str(data / "a.txt"))
    point = Point(1, [2])
    handle = facts.run_async(folder, OrderedDict(one=point, again=point, file=one))
    found = handle.result(timeout=180)
    assert found["data"] == ("str", ["a.txt", "b.txt"])
    assert found["type"] == ("OrderedDict", "Point", True)
    assert found["file"] == "a.txt"
    assert found["own"] == {"OWN_NAME": "mine"}
    assert found["here"], "relative paths work where the function's directory was the working directory"
    assert handle.job_id in found["output"]


def test_inputs_become_arguments() -> None:
    batch = square.run_async_map([2, (3, 1), {"number": 4, "plus": 2}], name="squares", tags={"a": "b"})
    assert type(batch) is kinetic.BatchHandle
    assert (batch.name, batch.tags) == ("squares", {"a": "b"})
    assert batch.results(timeout=240) == [4, 10, 18]
    wait_for(lambda: set(batch.status_counts()) == {"NOT_FOUND"}, 60)
    batch.cleanup()


def test_a_batch_with_failures() -> None:
    batch = kinetic.collections.map(square.run_async, [2, -1, -3], max_concurrent=2)
    done = {job.group_index for job in kinetic.attach_batch(batch.group_id).as_completed(timeout=240)}
    assert done == {0, 1, 2}
    assert [job.group_index for job in batch.failures()] == [1, 2]
    with pytest.raises(kinetic.BatchError) as caught:
        batch.results(timeout=240)
    error = caught.value
    assert (error.group_id, error.partial_results) == (batch.group_id, [4, None, None])
    assert [type(job) for job in error.failures] == [kinetic.JobHandle, kinetic.JobHandle]
    mixed = batch.results(return_exceptions=True)
    assert (mixed[0], type(mixed[1]), type(mixed[2])) == (4, ValueError, ValueError)
    batch.cleanup()
    with pytest.raises(FileNotFoundError):
        kinetic.attach_batch(batch.group_id)


def test_an_input_that_cannot_be_submitted(caplog: pytest.LogCaptureFixture) -> None:
    batch = square.run_async_map([2, threading.Lock(), {"no_such": 1}], input_mode="auto")
    batch.wait(timeout=240)
    assert f"{batch.group_id}: 2 inputs could not be submitted" in caplog.messages
    with pytest.raises(kinetic.BatchError) as caught:
        batch.results(timeout=240)
    assert list(caught.value.submission_failures) == list(batch.submission_failures) == [1, 2]
    assert batch.jobs[1] is None
    batch.cleanup()


def test_results_of_a_cancelled_batch_are_an_error() -> None:
    batch = square.run_async_map([101, 102, 103], max_concurrent=1, cancel_running_on_fail=True)
    wait_for(lambda: "RUNNING" in batch.status_counts(), 120)
    batch.cancel()
    with pytest.raises(kinetic.BatchError) as caught:
        batch.results(timeout=120)
    assert caught.value.partial_results == [None, None, None]
    assert set(batch.status_counts()) <= {"NOT_FOUND"}
    batch.cleanup()


def test_cleaning_up_a_batch_ends_it() -> None:
    batch = square.run_async_map([101, 102])
    wait_for(lambda: "RUNNING" in batch.status_counts(), 120)
    job = next(job for job in batch.jobs if job is not None)
    batch.cleanup()
    assert job.status() is JobStatus.NOT_FOUND
    with pytest.raises(FileNotFoundError):
        kinetic.attach_batch(batch.group_id)


def test_what_is_not_stored_is_not_found() -> None:
    with pytest.raises(LookupError):
        kinetic.attach(f"job-{secrets.token_hex(8)}")
    theirs = f"job-{secrets.token_hex(4)}"
    handle = work.run_async("return", 2)
    store = handle.place.store
    fields = {**handle.to_dict(), "job_id": theirs, "k8s_name": f"kinetic-{theirs}"}
    store.create_if_absent(f"{theirs}/handle.json", json.dumps(fields).encode())
    handle.cleanup()
    with pytest.raises(LookupError):
        kinetic.attach(theirs)
    store.delete(f"{theirs}/handle.json")
    with pytest.raises(FileNotFoundError):
        kinetic.attach_batch("grp-none")
