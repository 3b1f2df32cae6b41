"""A question changes nothing on this machine either: neither a file, nor a process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core import JobHandle, JobStatus
from kinetic_core._runner import object_names
from kinetic_core.backends.base import backend_of
from kinetic_core.connections import default_connections
from kinetic_core.errors import WaitTimeout
from kinetic_core.jobs.cost import usage_of
from kinetic_core.jobs.garbage_collection import orphans
from kinetic_core.jobs.listing import summaries
from kinetic_core.settings import read_settings
from tests.batches.scripts import SIX, first_run, run_script, supervisors
from tests.conftest import Kinetic, is_alive, wait_for
from tests.local.records import record_of

pytestmark = pytest.mark.usefixtures("local_jobs")


@kinetic_core.run(accelerator="cpu")
def sleep_beside_another(folder: str) -> None:
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(folder, "other").write_text(str(other.pid))
    time.sleep(600)


QUESTIONS: tuple[Callable[[JobHandle], object], ...] = (
    JobHandle.status,
    JobHandle.observe,
    JobHandle.logs,
    JobHandle.tail,
    JobHandle.explain,
    lambda job: list(job.outputs()),
    lambda job: usage_of(job.place, job),
    lambda job: kinetic_core.attach(job.job_id),
    lambda _: kinetic_core.list_jobs(),
    lambda job: summaries(backend_of(job, default_connections())),
    lambda job: orphans(backend_of(job, default_connections()), job.namespace, 0.0, 0.0),
)


def files() -> dict[str, tuple[int, int]]:
    """Every file and directory of the store, when it was changed, and how large it is."""
    stats = {str(path): path.lstat() for path in Path(read_settings().local_store).rglob("*")}
    return {path: (facts.st_mtime_ns, facts.st_size) for path, facts in stats.items()}


def test_a_lost_job_is_told_as_lost_and_left_as_it_is(tmp_path: Path, kinetic: Kinetic) -> None:
    handle = sleep_beside_another.run_async(str(tmp_path))
    wait_for((tmp_path / "other").exists)
    wait_for(lambda: (tmp_path / "other").read_text())
    wait_for(lambda: handle.status() is JobStatus.RUNNING)
    other, record = int((tmp_path / "other").read_text()), record_of(handle)
    os.kill(record["agent"]["pid"], signal.SIGKILL)
    os.kill(record["group"]["pid"], signal.SIGKILL)
    wait_for(lambda: handle.status() is JobStatus.FAILED)
    before = files()
    for ask in QUESTIONS:
        ask(handle)
    seen = handle.observe()
    for words in (("jobs", "status"), ("jobs", "logs"), ("jobs", "explain"), ("cost",)):
        assert kinetic(*words, handle.job_id).code == 0, words
    assert (seen.status, seen.reason) == (JobStatus.FAILED, "NodeLost")
    assert seen == handle.observe()
    assert files() == before
    assert is_alive(other)
    handle.cleanup(gcs=False)
    assert not is_alive(other)


def stored_times(job_id: str) -> int:
    """How many notes an attempt has left of when its phases began."""
    store = read_settings().local_store / "store"
    return len(list((store / object_names.times(job_id, 0, 0)).parent.glob("*")))


def test_looking_at_a_batch_brings_no_supervisor(tmp_path: Path, kinetic: Kinetic) -> None:
    with run_script(tmp_path, SIX) as script:
        group_id = first_run(script, tmp_path, 2)
        script.kill()
        script.wait()
    first, *others = supervisors(group_id)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: not is_alive(first))
    running = [f"{group_id}-{index}" for index in range(2)]
    for job_id in running:  # a running attempt stores once, after two seconds, what it does
        wait_for(lambda job_id=job_id: stored_times(job_id) > 0)
    before = files()
    batch = kinetic_core.attach_batch(group_id)
    counts = batch.status_counts()
    assert (counts["PENDING"], len(batch.jobs), batch.failures()) == (4, 6, [])
    assert kinetic("batch", "status", group_id).code == 0
    time.sleep(4)  # longer than a watch needs to look at everything again
    assert files() == before
    assert set(supervisors(group_id)) <= set(others)
    with pytest.raises(WaitTimeout):
        batch.wait(timeout=0.5)
    wait_for(lambda: set(supervisors(group_id)) - set(others))
    (tmp_path / "go").touch()
    assert batch.results(timeout=60) == list(range(100, 106))
