"""Every line of a log is kept once, whatever becomes of the writes."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from kinetic_core._runner import object_names
from kinetic_core._runner.attempt import Job, take_job
from kinetic_core._runner.log import LogTee
from kinetic_core._runner.store import StoreUnavailable, open_store


class Stumbling:
    """A store whose first writes fail; `arrives` says whether they took place all the same."""

    def __init__(self, folder: Path, failures: int, arrives: bool) -> None:
        folder.mkdir()
        self._store = open_store(folder.as_uri())
        self.uri, self.read, self.fetch = self._store.uri, self._store.read, self._store.fetch
        self.failures, self._arrives = failures, arrives

    def hurried(self) -> AbstractContextManager[None]:
        return nullcontext()

    def create_if_absent(self, name: str, content: bytes) -> bool:
        if not self.failures:
            return self._store.create_if_absent(name, content)
        self.failures -= 1
        if self._arrives:
            self._store.create_if_absent(name, content)
        raise StoreUnavailable(5, "no answer")


@pytest.fixture
def job() -> Job:
    names = ("STORE", "JOB_ID", "PAYLOAD_SHA256", "OUTCOME_KEY", "WORK_DIR")
    return take_job({f"KINETIC_{name}": "00" for name in names})


@pytest.mark.promise("gke: Complete to the last flush; slower where hundreds write")
@pytest.mark.parametrize("arrives", [False, True], ids=["refused", "answer lost"])
@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_failed_write_neither_loses_nor_doubles_a_line(
    job: Job, tmp_path: Path, arrives: bool, failures: int
) -> None:
    store = Stumbling(tmp_path / "store", failures, arrives)
    reading, writing = os.pipe()
    now = 0.0
    tee = LogTee(job, store, reading, clock=lambda: now)
    lines = [b"%06d %s\n" % (number, b"x" * 65_000) for number in range(24)]
    for line in lines:
        os.write(writing, line)
        assert tee.pump()
        tee.tick()
        now += 1.0
    os.close(writing)
    tee.close()
    folder = tmp_path / "store" / object_names.log(job.job_id, 0, 0).rpartition("/")[0]
    assert b"".join(path.read_bytes() for path in sorted(folder.iterdir())) == b"".join(lines)


def test_the_runner_goes_on_while_the_store_is_away(job: Job, tmp_path: Path) -> None:
    """Of a child that prints without a pause; when the store is back, all of it is there."""
    store = Stumbling(tmp_path / "store", 10**9, False)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    now = 0.0
    tee = LogTee(job, store, reading, clock=lambda: now)
    printed = 0

    def print_on() -> None:
        nonlocal printed
        with suppress(BlockingIOError):
            while True:
                printed += os.write(writing, b"%07d\n" % (printed // 8) * 512)

    while not tee.is_full:
        print_on()
        assert tee.pump()
        tee.tick()
        now += 1.0
    print_on()
    size = tee.size
    assert tee.pump()
    assert tee.size == size < printed, "what is in the pipe is still there"
    store.failures = 0
    os.close(writing)
    tee.close()
    folder = tmp_path / "store" / object_names.log(job.job_id, 0, 0).rpartition("/")[0]
    kept = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    assert len(kept) == printed
    assert max(path.stat().st_size for path in folder.iterdir()) <= 1 << 20, "more takes too long to send"
    assert len(set(kept.splitlines())) == printed // 8 // 512


@pytest.mark.promise("gke: Complete to the last flush; slower where hundreds write")
@pytest.mark.parametrize(("at_once", "seconds"), [(1, 5.0), (200, 5.0), (1000, 25.0)])
def test_a_line_is_stored_soon_and_later_where_hundreds_write(
    job: Job, tmp_path: Path, at_once: int, seconds: float
) -> None:
    now = 0.0
    (tmp_path / "store").mkdir()
    reading, writing = os.pipe()
    many = replace(job, at_once=at_once)
    tee = LogTee(many, open_store((tmp_path / "store").as_uri()), reading, clock=lambda: now)
    os.write(writing, b"a line\n")
    tee.pump()
    file = tmp_path / "store" / object_names.log(job.job_id, 0, 0)
    now = seconds - 0.1
    tee.tick()
    assert not file.exists()
    now = seconds
    tee.tick()
    assert file.read_bytes() == b"a line\n"
    os.close(writing)
    tee.close()


@pytest.mark.attack
def test_output_without_a_pause_is_read_in_portions(job: Job, tmp_path: Path) -> None:
    """Between two of them the runner stores what it has, and looks for signals and the child's end."""
    (tmp_path / "store").mkdir()
    (tmp_path / "output").write_bytes(b"y\n" * (4 << 20))
    tee = LogTee(
        job,
        open_store((tmp_path / "store").as_uri()),
        os.open(tmp_path / "output", os.O_RDONLY),
        clock=lambda: 0.0,
    )
    sizes = [0]
    while sizes[-1] < 8 << 20:
        tee.pump()
        tee.tick()
        sizes.append(tee.size)
    assert all(0 < after - before <= 2 << 20 for before, after in pairwise(sizes))
    tee.close()
    stored = (tmp_path / "store" / object_names.log(job.job_id, 0, 0).rpartition("/")[0]).iterdir()
    assert sum(path.stat().st_size for path in stored) == 8 << 20


def test_little_of_a_line_without_end_is_kept_as_evidence(job: Job, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    reading, writing = os.pipe()
    tee = LogTee(job, open_store((tmp_path / "store").as_uri()), reading)
    for _ in range(20):
        os.write(writing, b"x" * 60_000)
        tee.pump()
    os.close(writing)
    assert tee.size == 1_200_000
    assert [len(line) for line in tee.last_lines()] == [16 << 10]
    tee.close()
