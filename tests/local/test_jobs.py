"""Jobs of the local backend end as a cluster's would: cancelled, late, out of memory, lost, never twice."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core.backends.local import memory_limit, slots
from kinetic_core.backends.local.backend import with_reason
from kinetic_core.backends.local.layout import Layout
from kinetic_core.errors import (
    InvalidRequest,
    JobCancelled,
    JobDeadlineExceeded,
    JobLost,
    JobNotFound,
    JobOutOfMemory,
    StoreFull,
)
from kinetic_core.job import Line
from kinetic_core.settings import read_settings
from tests.conftest import is_alive, wait_for
from tests.local.records import record_of

pytestmark = pytest.mark.usefixtures("local_jobs")
on_cpu = kinetic_core.run(accelerator="cpu")


@on_cpu
def sleep_with_a_grandchild(folder: str) -> None:
    grandchild = subprocess.Popen(["sleep", "600"])
    Path(folder, "grandchild").write_text(str(grandchild.pid))
    print("sleeping", flush=True)
    time.sleep(600)


def started(handle: kinetic_core.JobHandle, folder: Path) -> int:
    """The grandchild's process id, once the job runs."""
    wait_for(lambda: (folder / "grandchild").exists() and (folder / "grandchild").read_text())
    assert handle.status() is JobStatus.RUNNING
    return int((folder / "grandchild").read_text())


@on_cpu
def start() -> tuple[list[str], bool, bool]:
    """What user code finds loaded that its start does not need, and whether its collector skips the rest."""
    import gc
    import sys

    unneeded = {"asyncio", "concurrent.futures", "email", "http.client", "kinetic_core", "ssl", "zipfile"}
    return sorted(unneeded & set(sys.modules)), gc.isenabled(), gc.get_freeze_count() > 0


def test_a_job_waits_for_no_module_it_does_not_need() -> None:
    """They are a third of what a trivial job costs."""
    assert start() == ([], True, True)


def test_cancel_kills_everything_the_job_started(tmp_path: Path) -> None:
    handle = sleep_with_a_grandchild.run_async(str(tmp_path))
    grandchild = started(handle, tmp_path)
    handle.cancel()
    assert not is_alive(grandchild)
    assert handle.status() is JobStatus.CANCELLED
    with pytest.raises(JobCancelled, match="cancelled by a user"):
        handle.result()
    handle.cancel()  # again is fine


def test_cancel_before_it_got_a_slot(tmp_path: Path) -> None:
    layout = Layout(str(read_settings().local_store))
    held = slots.take_slots(layout.slots, slots.core_count())
    try:
        handle = sleep_with_a_grandchild.run_async(str(tmp_path))
        wait_for(lambda: handle.observe().reason == "WaitingForSlot")
        seen = handle.observe()
        assert (seen.status, seen.reason) == (JobStatus.PENDING, "WaitingForSlot")
        assert "no CPU slot is free" in seen.message
        handle.cancel()
    finally:
        for descriptor in held:
            os.close(descriptor)
    with pytest.raises(JobCancelled):
        handle.result()
    assert not (tmp_path / "grandchild").exists()


def test_on_an_idle_machine_no_job_waits_for_a_slot() -> None:
    """An agent that has only not begun yet finds its slot free: nothing else may be said."""
    for _ in range(8):
        handle = on_cpu(lambda: 5).run_async()
        seen = []
        while not (observed := handle.observe()).is_terminal:
            seen.append((observed.reason, observed.message))
        assert not [told for told in seen if told[0] == "WaitingForSlot"]
        assert {message for reason, message in seen if reason == "Starting"} <= {"its process is starting"}
        assert handle.result() == 5


def test_asking_takes_no_slot(no_slot_is_free: Callable[[], None]) -> None:
    handle = on_cpu(lambda: 5).run_async()
    wait_for(lambda: handle.observe().reason == "WaitingForSlot")
    before = record_of(handle)
    assert "no CPU slot is free" in handle.observe().message
    assert record_of(handle) == before
    no_slot_is_free()
    assert handle.result() == 5


def test_a_queue_has_no_effect(caplog: pytest.LogCaptureFixture, no_slot_is_free: Callable[[], None]) -> None:
    handle = kinetic_core.run(accelerator="cpu", queue="research")(lambda: 5).run_async()
    assert "queue= has no effect with backend 'local'" in caplog.text
    wait_for(lambda: handle.observe().reason == "WaitingForSlot")
    assert handle.observe().reason == "WaitingForSlot"
    no_slot_is_free()
    assert handle.result() == 5


@kinetic_core.run(accelerator="cpu", retries=1)
def fails() -> None:
    raise ValueError("shard 3 is corrupt")


def test_people_count_attempts_from_one() -> None:
    handle = fails.run_async()
    with pytest.raises(ValueError, match="shard 3") as raised:
        handle.result()
    assert f"({handle.job_id}, attempt 2)" in raised.value.__notes__[0]
    told = str(handle.explain())
    assert "function: your own code" in told
    assert "function (attempt 2): your own code" in told
    assert "attempt 1" not in told


def test_a_finished_job_keeps_its_outcome_when_cancelled() -> None:
    handle = on_cpu(lambda: 5).run_async()
    assert handle.result(cleanup=False) == 5
    handle.cancel()
    assert handle.result() == 5


def test_the_deadline_ends_the_job(tmp_path: Path) -> None:
    grandchild = tmp_path / "grandchild"
    for seconds in (2, 10, 60):  # a busy machine may not have begun when the first ones are over
        late = kinetic_core.run(accelerator="cpu", timeout=seconds)(sleep_with_a_grandchild.__wrapped__)  # type: ignore[attr-defined]
        with pytest.raises(JobDeadlineExceeded, match="ran past its timeout"):
            late(str(tmp_path))
        if grandchild.exists() and grandchild.read_text():
            break
    assert not is_alive(int(grandchild.read_text()))


def has_memory_cgroup() -> bool:
    try:
        memory_limit.limit_memory(f"test-{os.getpid()}", 64 << 20).remove()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_memory_cgroup(), reason="this machine lets us make no memory cgroup")
def test_a_memory_limit_is_enforced() -> None:
    greedy = kinetic_core.run(accelerator="cpu", memory="96Mi")(lambda: len(bytearray(512 << 20)))
    with pytest.raises(JobOutOfMemory, match="memory"):
        greedy()


@pytest.mark.skipif(not has_memory_cgroup(), reason="this machine lets us make no memory cgroup")
def test_no_memory_cgroup_is_left_of_a_job_that_is_stopped(tmp_path: Path) -> None:
    late = kinetic_core.run(accelerator="cpu", timeout=3, memory="512Mi")(
        sleep_with_a_grandchild.__wrapped__  # type: ignore[attr-defined]
    )
    handle = late.run_async(str(tmp_path))
    group = memory_limit.limit_memory(f"test-{os.getpid()}", 64 << 20)
    group.remove()
    own = Path(group.folder).with_name(f"kinetic-{handle.job_id}-0")
    wait_for(own.exists)
    with pytest.raises(JobDeadlineExceeded, match="ran past its timeout"):
        handle.result()
    assert not own.exists()


def test_more_cores_than_there_are_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert kinetic_core.run(accelerator="cpu:512")(lambda: 1)() == 1
    assert "this machine has" in caplog.text


def test_a_job_whose_processes_all_died_is_lost(tmp_path: Path) -> None:
    handle = sleep_with_a_grandchild.run_async(str(tmp_path))
    grandchild = started(handle, tmp_path)
    wait_for(lambda: handle.logs() == "sleeping\n")
    record = record_of(handle)
    os.kill(record["agent"]["pid"], signal.SIGKILL)
    assert handle.status() is JobStatus.RUNNING  # its runner lives and may still publish
    os.killpg(record["group"]["pid"], signal.SIGKILL)
    with pytest.raises(JobLost, match="nothing of the job is alive") as caught:
        handle.result(timeout=90)
    assert not is_alive(grandchild)
    assert "Last lines of its log:\nsleeping" in "".join(caught.value.__notes__)
    assert kinetic_core.attach(handle.job_id).status() is JobStatus.FAILED


def test_the_runner_outlives_its_agent(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @on_cpu
    def wait() -> str:
        (tmp_path / "running").touch()
        while not gate.exists():
            time.sleep(0.01)
        return "published"

    handle = wait.run_async()
    wait_for((tmp_path / "running").exists)
    os.kill(record_of(handle)["agent"]["pid"], signal.SIGKILL)
    gate.touch()
    assert handle.result(timeout=90) == "published"


def test_cancel_works_without_the_agent(tmp_path: Path) -> None:
    handle = sleep_with_a_grandchild.run_async(str(tmp_path))
    grandchild = started(handle, tmp_path)
    os.kill(record_of(handle)["agent"]["pid"], signal.SIGKILL)
    handle.cancel()
    assert not is_alive(grandchild)


def test_a_killed_runner_is_told_truthfully() -> None:
    with pytest.raises(JobLost, match="killed by signal 9"):
        on_cpu(lambda: os.kill(os.getppid(), signal.SIGKILL))()


def test_retries_are_the_users_and_only_the_last_end_counts(tmp_path: Path) -> None:
    @kinetic_core.run(accelerator="cpu", retries=2)
    def third_time() -> str:
        with (tmp_path / "tries").open("a") as stream:
            stream.write("x")
        print("trying", flush=True)
        if (tmp_path / "tries").read_text() != "xxx":
            raise RuntimeError("not yet")
        return "charm"

    handle = third_time.run_async()
    assert handle.result(cleanup=False) == "charm"
    assert handle.observe().attempt == 2
    assert handle.logs() == "trying\n" * 3


def test_a_store_removed_under_a_running_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "local"))
    handle = sleep_with_a_grandchild.run_async(str(tmp_path))
    grandchild = started(handle, tmp_path)
    agent = record_of(handle)["agent"]["pid"]
    shutil.rmtree(tmp_path / "local")
    assert handle.status() is JobStatus.NOT_FOUND
    with pytest.raises(JobNotFound, match="objects were removed"):
        handle.result()
    os.kill(agent, signal.SIGTERM)  # nobody can find it any more but by its process
    wait_for(lambda: not is_alive(grandchild) and not is_alive(agent))


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = tmp_path / "full"
    full.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(full)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        monkeypatch.setenv("KINETIC_LOCAL_STORE", str(full / "local"))
        with pytest.raises(StoreFull, match="the disk is full"):
            on_cpu(lambda blob: len(blob)).run_async(os.urandom(1 << 20))
        assert kinetic_core.list_jobs() == []
    finally:
        subprocess.run(["umount", str(full)], check=True)


def fill(layout: Layout, job_id: str) -> None:
    """Let the times of a job, once it is removed by this process, find a disk that is full."""
    hour = int(time.time() // 3600)
    for folder in (Path(layout.removed(each), "default") for each in (hour, hour + 1)):
        folder.mkdir(parents=True)
        (folder / f"{job_id}.json.{os.getpid()}.tmp").symlink_to("/dev/full")


def block(layout: Layout, _job_id: str) -> None:
    """Let there be no directory for the times of removed jobs."""
    Path(layout.removed()).write_bytes(b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
@pytest.mark.parametrize(("spoil", "why"), [(fill, "No space left on device"), (block, "Not a directory")])
def test_times_that_cannot_be_kept_stop_no_collecting(
    spoil: Callable[[Layout, str], None],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "local"))
    layout = Layout(str(tmp_path / "local"))
    handle = on_cpu(lambda: 7).run_async()
    spoil(layout, handle.job_id)
    with caplog.at_level(logging.INFO, "kinetic_core"):
        assert handle.result() == 7
        wait_for(lambda: not Path(layout.record("default", handle.job_id)).exists())
        wait_for(lambda: "waited" in caplog.text)
    (line,) = (line for line in caplog.messages if "waited" in line)
    assert line.startswith(f"explain() will not know how long {handle.job_id} waited: ")
    assert why in line
    assert (handle.status(), handle.result()) == (JobStatus.SUCCEEDED, 7)
    assert str(handle.explain())
    assert [path for path in Path(layout.removed()).rglob("*") if handle.job_id in path.name] == [
        path for path in Path(layout.removed()).rglob("*.tmp") if path.is_symlink()
    ]


def test_nothing_is_left_of_a_collected_job() -> None:
    layout = Layout(str(read_settings().local_store))
    handle = on_cpu(lambda: print("said")).run_async()
    handle.result()
    assert not Path(layout.record("default", handle.job_id)).exists()
    wait_for(lambda: not Path(layout.work(handle.job_id)).exists())
    assert handle.status() is JobStatus.SUCCEEDED
    assert handle.logs() == "said\n"


def test_lists_are_of_states_and_as_long_as_asked(tmp_path: Path) -> None:
    def ids(**asked: object) -> list[str]:
        found = kinetic_core.list_jobs(namespace="lists", **asked)  # type: ignore[arg-type]
        return [one.job_id for one in found]

    on = kinetic_core.run(accelerator="cpu", namespace="lists")
    living = on(sleep_with_a_grandchild.__wrapped__).run_async(str(tmp_path))
    started(living, tmp_path)
    done = on(os.getpid).run_async_map([(), ()])
    done.results(cleanup=False)
    both = {str(job.job_id) for job in done.jobs if job is not None}
    assert ids(state=JobStatus.RUNNING) == [living.job_id]
    assert set(ids(state={JobStatus.SUCCEEDED, JobStatus.FAILED})) == both
    assert set(ids()) == {living.job_id, *both}
    assert (len(ids(limit=1)), len(ids(state=JobStatus.SUCCEEDED, limit=1))) == (1, 1)
    for wrong in ({"state": "RUNNING"}, {"state": []}, {"limit": 0}):
        with pytest.raises(InvalidRequest, match=next(iter(wrong))):
            ids(**wrong)
    with pytest.raises(InvalidRequest, match=r"cancel\(\) it first"):
        living.cleanup()
    living.cancel()
    assert ids(state=JobStatus.CANCELLED) == [living.job_id]
    living.cleanup()
    done.cleanup()


@pytest.mark.parametrize(("limit", "reason"), [(64, "Starting"), (None, "Starting"), (1, "WaitingForSlot")])
def test_an_input_waits_for_a_turn_only_where_it_may_have_none(limit: int | None, reason: str) -> None:
    line = asdict(Line("grp-0123456789abcdef", 2, limit, fail_fast=False, cancel_running=False))
    record = {"job": {"status": {}}, "pods": [], "line": line, "waits": True}
    (condition,) = with_reason(record)["status"]["conditions"]
    assert condition["type"] == reason
