"""What is printed reaches the log of the job's task in pieces that say which bytes they hold."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kinetic_core._runner.airflow_log import TaskLog
from kinetic_core._runner.attempt import Job, take_job
from kinetic_core._runner.store import StoreUnavailable


@pytest.fixture
def job() -> Job:
    names = ("STORE", "JOB_ID", "PAYLOAD_SHA256", "OUTCOME_KEY", "WORK_DIR")
    environment = {f"KINETIC_{name}": "00" for name in names}
    return take_job({**environment, "KINETIC_TASK_LOG": "gs://logs/dag/attempt=1.log.kinetic"})


class Bucket:
    """Keeps what is created; refuses it while `refuses`."""

    uri = "gs://logs/dag"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.silence = threading.Event()
        self.silence.set()
        self.refuses = False
        self.attempts = 0
        self.asked = threading.Event()

    def create_if_absent(self, name: str, content: bytes) -> bool:
        self.attempts += 1
        self.asked.set()
        self.silence.wait(60)
        if self.refuses:
            raise StoreUnavailable(13, "may not create objects")
        self.objects[name] = content
        return True

    def events(self) -> Iterator[str]:
        for name in sorted(self.objects):
            yield from (json.loads(line)["event"] for line in self.objects[name].splitlines())

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the log is only ever created, never {name}")


@pytest.mark.promise("airflow: Pods write into Airflow's remote prefix, create-only, past the triggerer")
def test_every_line_once_and_where_it_was(job: Job) -> None:
    bucket = Bucket()
    log = TaskLog(job, bucket)  # type: ignore[arg-type]
    for chunk in (b"one\ntw", "o \u00e9\nlong ".encode(), b"x" * 5000, b"\nlast"):
        log.add(chunk)
    log.close()
    log.join()
    assert list(bucket.events()) == ["one", "two \u00e9", "long " + "x" * 3995 + "... (5005 bytes)", "last"]
    assert list(bucket.objects) == ["attempt=1.log.kinetic.00.0-0-000000000000-000000005021.log"]
    line = json.loads(next(iter(bucket.objects.values())).splitlines()[0])
    assert (line["level"], line["logger"]) == ("info", "kinetic.job")
    assert line["timestamp"].endswith("Z")


def test_much_is_written_before_the_end_and_pieces_meet(job: Job) -> None:
    bucket = Bucket()
    log = TaskLog(job, bucket)  # type: ignore[arg-type]
    for _ in range(2):
        bucket.asked.clear()
        log.add((b"y" * 999 + b"\n") * 1100)
        assert bucket.asked.wait(90)
    log.add(b"the end\n")
    log.close()
    log.join()
    spans = [name.removesuffix(".log").split("-")[-2:] for name in sorted(bucket.objects)]
    assert len(spans) >= 2
    assert [start for start, _ in spans[1:]] == [end for _, end in spans[:-1]]
    assert int(spans[-1][1]) == 2 * 1_100_000 + 8
    assert sum(1 for _ in bucket.events()) == 2201


@pytest.mark.promise("airflow: Where it cannot, the worker copies on resume")
def test_a_bucket_that_refuses_is_told_of_once_and_left_alone(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = Bucket()
    bucket.refuses = True
    log = TaskLog(job, bucket)  # type: ignore[arg-type]
    log.add((b"y" * 999 + b"\n") * 1100)
    assert bucket.asked.wait(90)
    log.add(b"more\n")
    log.close()
    log.join()
    why = "[Errno 13] may not create objects"
    assert capsys.readouterr().err == (
        f"kinetic: the task's log gets the rest when the job has ended: {why}\n"
    )
    assert bucket.attempts == 1


def test_hosts_of_a_slice_say_who_they_are(job: Job) -> None:
    bucket = Bucket()
    log = TaskLog(replace(job, host=1, hosts=2), bucket)  # type: ignore[arg-type]
    log.add(b"here\n")
    log.close()
    log.join()
    assert list(bucket.events()) == ["[host 1] here"]
    assert ".0-1-" in next(iter(bucket.objects))


def test_a_later_attempt_has_a_title_and_ends_its_groups(job: Job) -> None:
    """Neither is part of the bytes that the names of pieces count."""
    bucket = Bucket()
    log = TaskLog(replace(job, failed_count=1), bucket)  # type: ignore[arg-type]
    content = b"::endgroup::\n::group::one\n::group::two\n::endgroup::\nmore\n"
    log.add(content)
    log.close()
    log.join()
    title, *printed, last = bucket.events()
    assert title == f"attempt 2 of {job.job_id}"
    assert printed == ["::endgroup::", "::group::one", "::group::two", "::endgroup::", "more"]
    assert last == "::endgroup::"
    assert list(bucket.objects) == [f"attempt=1.log.kinetic.00.1-0-{0:012d}-{len(content):012d}.log"]


def test_publishing_goes_on_without_an_answer_of_the_bucket(job: Job) -> None:
    bucket = Bucket()
    bucket.silence.clear()
    log = TaskLog(job, bucket)  # type: ignore[arg-type]
    log.add(b"the end\n")
    log.close()
    assert bucket.objects == {}
    bucket.silence.set()
    log.join()
    assert list(bucket.events()) == ["the end"]


@pytest.mark.attack
def test_a_line_without_end_takes_no_memory(job: Job) -> None:
    bucket = Bucket()
    log = TaskLog(job, bucket)  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        for _ in range(1600):
            log.add(b"x" * 65536)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    log.add(b"\nend")
    log.close()
    log.join()
    assert list(bucket.events()) == ["x" * 4000 + f"... ({1600 * 65536} bytes)", "end"]
    assert list(bucket.objects) == [f"attempt=1.log.kinetic.00.0-0-000000000000-{1600 * 65536 + 4:012d}.log"]


def test_what_a_silent_bucket_leaves_waiting_is_bounded(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    bucket = Bucket()
    bucket.silence.clear()
    log = TaskLog(job, bucket)  # type: ignore[arg-type]
    line = b"x" * 3999 + b"\n"
    log.add(line * 300)
    assert bucket.asked.wait(60)  # for a first piece: from now on, what is added waits
    for _ in range(12 * 256):
        log.add(line * 2)
    assert "more is printed than can be written" in capfd.readouterr().err
    bucket.silence.set()
    log.close()
    log.join()
    assert sum(map(len, bucket.objects.values())) < 24 << 20
