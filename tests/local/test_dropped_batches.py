"""Inputs that wait on this machine and are dropped, all at once, while others begin."""

from __future__ import annotations

import logging
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
from kinetic_core import JobStatus
from kinetic_core.backends.kubernetes.names import DROPPED
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.backends.local.layout import Layout
from kinetic_core.backends.local.record import (
    drop_waiting,
    is_over,
    is_waiting,
    read_job,
    read_record,
    read_summary,
    share_lock,
    timestamp,
    wait_for_lock,
    write_dropped,
    write_record,
)
from kinetic_core.batches.submit import cancel_stored
from kinetic_core.jobs.listing import summaries
from kinetic_core.settings import read_settings
from tests.batches.scripts import SIX, first_run, run_script, supervisors
from tests.conftest import is_alive, wait_for

LINE = {"group_id": "grp-a", "size": 2, "limit": 1, "fail_fast": False, "cancel_running": False}
CANCELLER = """\
import signal, sys

def hook(event, arguments, left=[None] * int(sys.argv[2])):
    is_change = event in ("os.link", "os.rename") and sys.argv[1] in str(arguments)
    if is_change or (event == "os.kill" and arguments[1] == signal.SIGTERM):
        if not left:
            signal.raise_signal(signal.SIGKILL)
        left.pop()

import kinetic_core
batch = kinetic_core.attach_batch(sys.argv[1])
sys.addaudithook(hook)
batch.cancel()
"""

AGENT = """\
import os, sys
from kinetic_core.backends.local.agent import Agent
from kinetic_core.backends.local.layout import Layout
from kinetic_core.backends.local.record import share_lock, take_lock

layout = Layout(sys.argv[1])
turn = layout.turn_lock("default", "grp-a")

def hook(event, arguments):
    if event == "os.rename":  # what the record says is about to change
        print("held" if take_lock(turn) is None else "free", flush=True)
        os._exit(0)

lock = take_lock(layout.lock("default", "grp-a-0"))
agent = Agent(layout, "default", "grp-a-0", lock, share_lock(turn))
sys.addaudithook(hook)
agent.run()
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Two inputs of a batch that wait for their turn."""
    layout = Layout(str(tmp_path))
    Path(layout.cluster("default")).mkdir(parents=True)
    for index in range(2):
        job = {"metadata": {"labels": {}, "annotations": {}}, "spec": {}, "status": {}}
        record = {"job": job, "pods": [], "created": 1.0, "line": LINE, "waits": True}
        write_record(layout.record("default", f"grp-a-{index}"), record)
    return layout


def known(layout: Layout, index: int) -> dict[str, Any]:
    record = read_job(layout, "default", f"grp-a-{index}")
    assert record is not None
    return record


def waits_for_a_lock(path: str) -> bool:
    """Whether a thread or process waits for a lock that another one has."""
    inode = str(Path(path).stat().st_ino)
    locks = Path("/proc/locks").read_text().splitlines()
    return any(line.split()[1] == "->" and line.split()[6].endswith(f":{inode}") for line in locks)


def test_whoever_drops_a_batch_waits_for_an_input_that_begins(layout: Layout) -> None:
    lock = layout.turn_lock("default", "grp-a")
    turn = share_lock(lock)
    dropper = threading.Thread(target=drop_waiting, args=(layout, "default", "grp-a"))
    dropper.start()
    wait_for(lambda: waits_for_a_lock(lock))
    assert is_waiting(known(layout, 1)), "nothing is dropped while an input begins"
    begun = known(layout, 0)
    del begun["waits"]
    write_record(layout.record("default", "grp-a-0"), begun)
    os.close(turn)
    dropper.join()
    assert not is_over(known(layout, 0))
    (condition,) = known(layout, 1)["job"]["status"]["conditions"]
    assert (condition["reason"], condition["message"]) == (DROPPED, "not started: its batch was stopped")


def test_an_agent_has_its_turn_until_its_record_says_so(layout: Layout) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", AGENT, layout.root]
    told = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert told.stdout == "held\n"


def test_a_job_that_was_dropped_ended_once(layout: Layout) -> None:
    drop_waiting(layout, "default", "grp-a")
    first = known(layout, 0)
    drop_waiting(layout, "default", "grp-a")
    assert known(layout, 0) == first
    LocalBackend(Path(layout.root)).delete("default", "grp-a-0")
    assert known(layout, 0) == first


def test_what_is_made_after_a_batch_is_reopened_waits(layout: Layout) -> None:
    drop_waiting(layout, "default", "grp-a")
    first, second = known(layout, 0), known(layout, 1)
    write_dropped(layout, "default", "grp-a")
    assert [known(layout, 0), known(layout, 1)] == [first, second], "what was dropped stays so"
    record = {**second, "job": {**second["job"], "status": {}}}
    write_record(layout.record("default", "grp-a-1"), record)
    assert is_waiting(known(layout, 1))


def test_the_end_of_a_record_says_how_its_job_is(layout: Layout) -> None:
    path = layout.record("default", "grp-a-0")
    record = known(layout, 0)
    assert read_summary(path) == {"line": LINE}
    misleading = {"type": "Failed", "status": "True", "reason": "Error", "message": '"summary":{"line":1}}'}
    record["job"]["status"]["conditions"] = [misleading]
    write_record(path, record)
    told = {name: text for name, text in misleading.items() if name != "message"}
    assert read_summary(path) == {"ended": told}
    assert read_record(path) == record
    del record["waits"]
    record["job"]["status"] = {}
    write_record(path, record)
    assert read_summary(path) == {}
    Path(path).write_text('{"job":{"status":{}},"line":{},"waits":true}')
    assert read_summary(path) == {"line": {}}, "of a record that has no summary all is read"
    Path(path).write_text("{")
    with pytest.raises(OSError, match="is damaged"):
        read_summary(path)


def six(tmp_path: Path) -> str:
    """The id of a batch of six inputs, two of which run, and whose client is dead."""
    with run_script(tmp_path, SIX) as script:
        group_id = first_run(script, tmp_path)
        script.kill()
        script.wait()
    return group_id


def ran(tmp_path: Path) -> int:
    return len(list(tmp_path.glob("ran-*")))


def local_layout() -> Layout:
    return Layout(str(read_settings().local_store))


def state_of(group_id: str) -> Counter[JobStatus]:
    """How the inputs of a batch are in a list."""
    listed = summaries(LocalBackend(read_settings().local_store), "default")
    return Counter(job.status for job in listed if job.group_id == group_id)


@pytest.mark.usefixtures("local_jobs")
def test_a_supervisor_starts_nothing_that_was_dropped(tmp_path: Path) -> None:
    """It was about to start the next input when the batch was dropped."""
    group_id = six(tmp_path)
    supervisor, *agents = supervisors(group_id)
    os.kill(supervisor, signal.SIGSTOP)
    (tmp_path / "go").touch()
    wait_for(lambda: not any(map(is_alive, agents)))
    drop_waiting(local_layout(), "default", group_id)
    os.kill(supervisor, signal.SIGCONT)
    wait_for(lambda: not supervisors(group_id))
    assert ran(tmp_path) == 2
    assert state_of(group_id) == {JobStatus.SUCCEEDED: 2, JobStatus.CANCELLED: 4}


@pytest.mark.usefixtures("local_jobs")
def test_a_supervisor_waits_for_whoever_drops(tmp_path: Path) -> None:
    """Its next input is about to begin when somebody drops the batch, and is not done yet."""
    group_id = six(tmp_path)
    layout = local_layout()
    path = layout.turn_lock("default", group_id)
    turn = wait_for_lock(path)
    (tmp_path / "go").touch()
    wait_for(lambda: waits_for_a_lock(path))
    Path(layout.dropped("default", group_id)).write_text(f'{{"at": "{timestamp()}"}}')
    os.close(turn)
    wait_for(lambda: not supervisors(group_id))
    assert ran(tmp_path) == 2
    assert state_of(group_id) == {JobStatus.SUCCEEDED: 2, JobStatus.CANCELLED: 4}


@pytest.mark.usefixtures("local_jobs")
def test_a_cancelled_batch_is_listed_as_it_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    group_id = six(tmp_path)
    (tmp_path / "fail-100").touch()
    wait_for(lambda: kinetic_core.attach(f"{group_id}-0").status() is JobStatus.FAILED)
    wait_for(lambda: ran(tmp_path) == 3)
    backend = LocalBackend(read_settings().local_store)
    cancel_stored(backend, group_id)
    expected = {JobStatus.FAILED: 1, JobStatus.CANCELLED: 5}
    assert state_of(group_id) == expected
    assert ran(tmp_path) == 3
    batch = kinetic_core.attach_batch(group_id)
    assert Counter(status for _, status in batch.statuses()) == expected
    last = kinetic_core.attach(f"{group_id}-5").observe()
    assert (last.reason, last.message) == (DROPPED, "not started: its batch was stopped")
    batch.close()
    for index in range(4):  # of a list that ends before them nothing is read
        Path(local_layout().record("default", f"{group_id}-{index}")).write_text("{")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        newest = summaries(backend, "default", 2)
    assert [job.job_id for job in newest] == [f"{group_id}-5", f"{group_id}-4"]
    assert {job.status for job in newest} == {JobStatus.CANCELLED}
    assert not caplog.records


@pytest.mark.usefixtures("local_jobs")
@pytest.mark.parametrize("step", range(4))
def test_a_second_cancel_finishes_what_a_killed_one_began(tmp_path: Path, step: int) -> None:
    """Killed before each change: the mark in the store, that of the queue, that of an input, its signal."""
    group_id = six(tmp_path)
    command = [sys.executable, "-c", CANCELLER, group_id, str(step)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    cancel_stored(LocalBackend(read_settings().local_store), group_id)
    assert state_of(group_id) == {JobStatus.CANCELLED: 6}
    wait_for(lambda: not supervisors(group_id))
    assert ran(tmp_path) == 2


@pytest.mark.usefixtures("local_jobs")
def test_a_handle_knows_at_once_what_it_has_cancelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = kinetic_core.attach_batch(six(tmp_path))
    batch.cancel()
    assert capsys.readouterr().err == "", "a pipe hears of a cancellation only if it takes long"
    batch.wait(timeout=60)
    assert batch.status_counts() == {"CANCELLED": 6}
    assert batch.progress().is_over
    assert "6 inputs, 6 ended (6 cancelled)>" in repr(batch)
