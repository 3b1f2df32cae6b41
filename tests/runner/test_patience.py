"""The end of user code is kept in the pod while the store does not answer, and stored when it does."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.patience import PatientStore
from kinetic_core._runner.store import DirectoryStore, StoreUnavailable
from tests.conftest import wait_for
from tests.runner.attempts import JOB, Attempts

pytestmark = pytest.mark.attack


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


class Clock:
    """A clock that only sleeping moves on."""

    now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


class Away(DirectoryStore):
    """A directory that fails a number of times, by that errno."""

    def __init__(self, root: Path, times: int, number: int) -> None:
        super().__init__(root.as_uri(), str(root))
        self.times, self.number = times, number

    def create_if_absent(self, name: str, *values: Any) -> bool:
        if self.times:
            self.times -= 1
            raise StoreUnavailable(self.number, "away")
        return super().create_if_absent(name, *values)


def losing(function: Callable[[], object]) -> Callable[[str], object]:
    """A function that does the same when the store's name leads in a circle, as a dead mount does."""

    def work(root: str) -> object:
        from pathlib import Path

        Path(root).rename(f"{root}-away")
        Path(root).symlink_to(root)
        return function()

    return work


def bring_back(attempts: Attempts) -> None:
    root = attempts.store.root
    root.unlink()
    root.with_name(f"{root.name}-away").rename(root)


def until_kept(attempts: Attempts) -> None:
    deadline = time.monotonic() + 90
    while "kept until the store answers" not in attempts.log:
        assert time.monotonic() < deadline, attempts.log
        time.sleep(0.05)


def test_a_value_waits_for_its_store(attempts: Attempts) -> None:
    process = attempts.submit(losing(lambda: "value"), str(attempts.store.root)).start()
    until_kept(attempts)
    assert process.poll() is None
    bring_back(attempts)
    assert process.wait(timeout=90) == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == "value"
    assert attempts.store.find(object_names.attempt_outcome(JOB, 0, 0)) is None


def test_an_exception_does_too_and_takes_no_second_run(attempts: Attempts) -> None:
    def fail() -> None:
        raise KeyError("mine")

    process = attempts.submit(losing(fail), str(attempts.store.root)).start()
    until_kept(attempts)
    bring_back(attempts)
    assert process.wait(timeout=90) == wire.EXIT_USER_ERROR
    with pytest.raises(KeyError, match="mine"):
        attempts.outcome().value_or_raise()


def test_what_it_printed_last_is_there_too(attempts: Attempts) -> None:
    process = attempts.submit(losing(lambda: print("the last line")), str(attempts.store.root)).start()
    until_kept(attempts)
    bring_back(attempts)
    process.wait(timeout=90)
    prefix = f"jobs/{JOB}/attempts/0/log/"
    kept = b"".join(attempts.store.read(info.name) for info in attempts.store.list(prefix))
    assert b"the last line" in kept


def test_whoever_is_told_to_end_does_so_within_its_grace(attempts: Attempts) -> None:
    work = attempts.submit(losing(lambda: "value"), str(attempts.store.root))
    process = work.start(KINETIC_GRACE_SECONDS="1")
    until_kept(attempts)
    process.terminate()
    assert process.wait(timeout=90) == wire.EXIT_UNPUBLISHED
    bring_back(attempts)
    assert not attempts.is_committed()


def test_what_is_printed_after_sigterm_waits_for_the_store(attempts: Attempts) -> None:
    """As the attempt's end does. Nothing else has it: the pod, and its container's log, are about to go."""
    begun = attempts.folder / "begun"

    def work(root: str) -> None:
        import time

        try:
            begun.touch()
            time.sleep(600)
        finally:
            losing(lambda: print("saved"))(root)

    process = attempts.submit(work, str(attempts.store.root)).start(KINETIC_GRACE_SECONDS="60")
    wait_for(begun.exists)
    process.terminate()
    until_kept(attempts)
    bring_back(attempts)
    assert process.wait(timeout=90) == wire.EXIT_INTERRUPTED
    prefix = f"jobs/{JOB}/attempts/0/log/"
    assert b"saved" in b"".join(attempts.store.read(info.name) for info in attempts.store.list(prefix))
    assert attempts.store.find(object_names.attempt_outcome(JOB, 0, 0)) is not None


class Hanging(Away):
    """A directory whose first write hangs until the connection counts as lost: soon if in a hurry."""

    def __init__(self, root: Path, clock: Clock) -> None:
        super().__init__(root, 1, errno.EIO)
        self.clock, self.silence = clock, 30.0

    @contextmanager
    def hurried(self) -> Iterator[None]:
        self.silence = 5.0
        yield
        self.silence = 30.0

    def create_if_absent(self, name: str, *values: Any) -> bool:
        if self.times:
            self.clock.sleep(self.silence)
        return super().create_if_absent(name, *values)


def test_a_hanging_request_takes_little_of_a_pods_last_time(tmp_path: Path) -> None:
    """Else it takes all: a pod has 38 seconds by default, most of which the function may have used."""
    clock = Clock()
    store = PatientStore(Hanging(tmp_path, clock), clock.sleep, clock)
    store.keep(600, hurried=True)
    assert store.create_if_absent("a", b"")
    assert clock.now < 100 + 10


def test_the_time_of_the_job_bounds_it(attempts: Attempts) -> None:
    started = time.monotonic()
    process = attempts.submit(losing(lambda: "value"), str(attempts.store.root)).start(KINETIC_TIMEOUT="4")
    assert process.wait(timeout=90) == wire.EXIT_UNPUBLISHED
    assert time.monotonic() - started >= 3.5
    assert "cannot be published" in attempts.log
    bring_back(attempts)


def test_it_is_asked_again_for_so_long_and_no_longer(tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "store").mkdir()
    away = Away(tmp_path / "store", 1000, errno.EIO)
    store = PatientStore(away, clock.sleep, clock)
    with pytest.raises(StoreUnavailable):
        store.create_if_absent("a", b"")
    assert clock.now == 100
    store.keep(600)
    with pytest.raises(StoreUnavailable):
        store.create_if_absent("a", b"")
    assert clock.now == 700
    away.times = 3
    store.keep(600)
    assert store.create_if_absent("a", b"")
    assert clock.now == 700 + 0.5 + 1 + 2


@pytest.mark.parametrize("ends_soon", [False, True])
def test_who_is_in_a_hurry_waits_for_no_store(tmp_path: Path, ends_soon: bool) -> None:
    """A lane is patient between its inputs, but not while one runs, whose output and end it watches."""
    clock = Clock()
    store = PatientStore(Away(tmp_path, 4, errno.EIO), clock.sleep, clock)
    store.keep(600, hurried=ends_soon)
    with pytest.raises(StoreUnavailable), store.hurried():
        store.create_if_absent("a", b"")
    assert clock.now == 100
    assert store.create_if_absent("a", b"")
    assert clock.now > 100


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.ENOSPC, errno.EPROTO], ids=os.strerror)
def test_what_only_a_person_can_mend_is_not_waited_for(tmp_path: Path, number: int) -> None:
    clock = Clock()
    store = PatientStore(Away(tmp_path, 1, number), clock.sleep, clock)
    store.keep(600)
    with pytest.raises(StoreUnavailable):
        store.create_if_absent("a", b"")
    assert clock.now == 100
