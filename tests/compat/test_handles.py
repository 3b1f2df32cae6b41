"""Handles through `kinetic_core.compat`, method by method; on a cluster in test_compat_nightly.py."""

from __future__ import annotations

import functools
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

import kinetic_core.compat as kinetic
from kinetic_core.compat.job_status import JobStatus
from tests.conftest import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_jobs")]
on_cpu = kinetic.run(accelerator="cpu")


@on_cpu
def count(lines: int, seconds: float = 0.0) -> int:
    for line in range(lines):
        print(f"line {line}", flush=True)
        time.sleep(seconds)
    return lines


@on_cpu
def bar() -> None:
    print("10 %\r50 %\r100 %")
    print("no newline", end="")


class Model:
    """Its methods are jobs; an instance travels with them."""

    def __init__(self, width: int) -> None:
        self.width = width

    @staticmethod
    @on_cpu
    def twice(number: int) -> int:
        return 2 * number

    @on_cpu
    def scaled(self, number: int) -> int:
        return self.width * number


def add(first: int, second: int) -> int:
    return first + second


def test_methods_partials_and_lambdas_are_jobs() -> None:
    """Each is submitted before the first is collected."""
    outside = 3
    handles = [
        Model.twice.run_async(4),
        Model(5).scaled.run_async(4),
        on_cpu(functools.partial(add, 1)).run_async(4),
        on_cpu(lambda: outside).run_async(),
    ]
    assert [handle.result(timeout=300) for handle in handles] == [8, 20, 5, 3]
    assert [handle.func_name for handle in handles] == ["twice", "scaled", "add", "lambda"]


def test_a_handle_has_the_documented_fields() -> None:
    handle = count.run_async(1)
    assert handle.display_name == f"kinetic-count-{handle.job_id}"
    assert handle.k8s_name == f"kinetic-{handle.job_id}"
    assert (handle.func_name, handle.accelerator, handle.debug) == ("count", "cpu", False)
    assert re.fullmatch("job-[0-9a-f]{16}", handle.job_id)
    assert any(handle.place.store.list(f"jobs/{handle.job_id}/"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", handle.created_at)
    assert abs((datetime.now(UTC) - datetime.fromisoformat(handle.created_at)).total_seconds()) < 3600
    fields = handle.to_dict()
    assert "group_id" not in fields
    assert type(kinetic.JobHandle.from_dict(fields)) is kinetic.JobHandle
    again = kinetic.attach(handle.job_id)
    assert again.to_dict() == fields
    assert handle.result(timeout=300) == 1


def test_logs_are_read_followed_and_cut(capsys: pytest.CaptureFixture[str]) -> None:
    handle = count.run_async(5)
    assert handle.logs(follow=True) is None
    assert "line 4" in capsys.readouterr().out
    assert handle.result(timeout=300, cleanup=False, stream_logs=False) == 5
    assert [line for line in (handle.logs() or "").splitlines() if line.startswith("line")] == [
        f"line {number}" for number in range(5)
    ]
    assert handle.tail(2).splitlines() == ["line 3", "line 4"]
    handle.cleanup()


def test_a_progress_bar_is_streamed_as_it_was_printed(capsys: pytest.CaptureFixture[str]) -> None:
    handle = bar.run_async()
    assert handle.result(timeout=300, stream_logs=True) is None
    assert capsys.readouterr().out.rstrip("\n").split("\n") == ["10 %\r50 %\r100 %", "no newline"]


def test_lines_are_streamed_once_while_it_is_awaited(capsys: pytest.CaptureFixture[str]) -> None:
    handle = count.run_async(3)
    assert handle.result(timeout=300, stream_logs=True) == 3
    assert capsys.readouterr().out.count("line 1") == 1


def test_a_callback_that_fails_disturbs_nothing() -> None:
    def fails(status: JobStatus) -> None:
        raise RuntimeError(f"not for {status}")

    assert count.run_async(1).result(timeout=300, on_status_change=fails) == 1


def test_jobs_are_listed_newest_first() -> None:
    first, second = count.run_async(1), count.run_async(1)
    listed = [job.job_id for job in kinetic.list_jobs() if job.job_id in (first.job_id, second.job_id)]
    same_second = first.created_at[:19] == second.created_at[:19]  # Kubernetes' times have no parts of one
    assert listed == [second.job_id, first.job_id] or (same_second and len(listed) == 2)
    assert [first.result(timeout=300), second.result(timeout=300)] == [1, 1]


def test_a_job_is_cleaned_up_by_halves() -> None:
    handle = count.run_async(1)
    handle.result(timeout=300, cleanup=False)
    handle.cleanup(k8s=True, gcs=False, cleanup_timeout=60, cleanup_poll_interval=1)
    assert handle.status() is JobStatus.NOT_FOUND
    assert kinetic.attach(handle.job_id).result() == 1, "what is stored can be collected without the object"
    with pytest.raises(LookupError):
        kinetic.attach(handle.job_id)


def test_outputs_outlive_the_job(tmp_path: Path) -> None:
    kept = f"{tmp_path}/kept"

    @kinetic.run(accelerator="cpu", output_dir=kept)
    def output() -> str:
        return os.environ["KINETIC_OUTPUT_DIR"]

    assert output() == kept


def test_an_upload_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "part").write_text(f"only here: {tmp_path}")
    said = []
    for _ in range(2):
        handle = count.run_async(1)
        names = on_cpu(os.listdir).run_async(kinetic.Data(str(tmp_path)))
        said.append(capsys.readouterr().err)
        assert (handle.result(timeout=300), names.result(timeout=300)) == (1, ["part"])
    assert "storing 1 of 1 file\n" in said[0]
    assert "storing" not in said[1]


def test_a_job_that_waits_or_runs_says_so() -> None:
    handle = count.run_async(1, 600)
    assert handle.status() in (JobStatus.PENDING, JobStatus.RUNNING)
    assert "line 1" not in (handle.logs() or "")
    wait_for(lambda: handle.status() is JobStatus.RUNNING, 120)
    handle.cleanup()
