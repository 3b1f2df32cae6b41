"""When the phases of a running attempt began is told in the store, and by nobody but its runner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kinetic_core._runner import object_names
from kinetic_core._runner.attempt import Job, take_job
from kinetic_core._runner.notes import read_note
from kinetic_core._runner.phases import StoredTimes, note
from kinetic_core._runner.phases import times as times_of
from kinetic_core._runner.store import DirectoryStore, StoreUnavailable


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Stumbling(DirectoryStore):
    """A store whose next writes fail."""

    failures = 0

    def create_if_absent(self, name: str, content: object, *rest: object) -> bool:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable(5, "no answer")
        return super().create_if_absent(name, content, *rest)  # type: ignore[arg-type]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    names = ("STORE", "JOB_ID", "PAYLOAD_SHA256", "OUTCOME_KEY")
    work = {"KINETIC_WORK_DIR": str(tmp_path)}
    return take_job({f"KINETIC_{name}": "00" for name in names} | work)


@pytest.fixture
def store(tmp_path: Path) -> Stumbling:
    folder = tmp_path / "store"
    folder.mkdir()
    return Stumbling(folder.as_uri(), str(folder))


def stored(job: Job, store: Stumbling) -> list[dict[str, float]]:
    """All that was stored of the attempt's times, in order."""
    folder = Path(job.work_dir, "store", object_names.times(job.job_id, job.attempt, 0)).parent
    names = sorted(each.name for each in folder.iterdir()) if folder.exists() else []
    place = object_names.times(job.job_id, job.attempt, 0).rpartition("/")[0]
    return [dict(read_note(job, store, f"{place}/{name}")["times"]) for name in names]


def test_a_short_attempt_stores_no_times(job: Job, store: Stumbling) -> None:
    clock = Clock()
    times = StoredTimes(job, store, clock.now, clock)
    note(job, "user_started", 1000.2)
    clock.now += 1.9
    times.tick()
    assert stored(job, store) == []


def test_each_phase_is_stored_once_it_has_begun(job: Job, store: Stumbling) -> None:
    clock = Clock()
    times = StoredTimes(job, store, clock.now, clock)
    note(job, "data", 1001.0)
    clock.now += 2.1
    for _ in range(3):
        times.tick()
        clock.now += 1.0
    note(job, "user_started", 1004.0)
    times.tick()
    first = {"started": 1000.0, "data": 1001.0}
    assert stored(job, store) == [first, {**first, "user_started": 1004.0}]


def test_times_that_were_not_stored_are_tried_again(
    job: Job, store: Stumbling, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    times = StoredTimes(job, store, clock.now, clock)
    store.failures = 1
    for _ in range(5):
        clock.now += 3.0
        times.tick()
    assert stored(job, store) == [], "a store that is silent is not asked every second"
    clock.now += 5.0
    times.tick()
    assert stored(job, store) == [{"started": 1000.0}]
    assert capsys.readouterr().err.count("is not stored yet") == 1


def test_what_user_code_writes_there_is_passed_over(job: Job) -> None:
    note(job, "data", 1001.0)
    with Path(job.work_dir, "times").open("ab") as stream:
        stream.write(b"\xff\xfe a b\nuser_started now\n\n")
    note(job, "user_finished", 1002.0)
    assert times_of(job) == {"data": 1001.0, "user_finished": 1002.0}


def test_of_a_slice_host_0_stores_its_times(job: Job, store: Stumbling) -> None:
    clock = Clock()
    times = StoredTimes(replace(job, host=1), store, clock.now, clock)
    clock.now += 60.0
    times.tick()
    assert stored(job, store) == []


def test_pods_of_a_large_batch_store_more_rarely(job: Job, store: Stumbling) -> None:
    clock = Clock()
    times = StoredTimes(replace(job, at_once=2000), store, clock.now, clock)
    clock.now += 9.0
    times.tick()
    assert stored(job, store) == []
    clock.now += 1.1
    times.tick()
    assert len(stored(job, store)) == 1
