"""The lock of a local job is one, also where its file is removed while others wait for it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.backends.local.layout import Layout
from kinetic_core.backends.local.record import is_held, take_lock, wait_for_lock
from kinetic_core.connections import Connections
from kinetic_core.settings import read_settings


@pytest.fixture
def place(tmp_path: Path) -> str:
    folder = Path(Layout(str(tmp_path)).cluster("default"))
    folder.mkdir(parents=True)
    return Layout(str(tmp_path)).lock("default", "job-1")


def test_a_job_that_is_being_made_again_keeps_its_lock(place: str, tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path, Connections(read_settings()))
    lock = take_lock(place)
    assert lock is not None
    backend.remove("default", "job-1")
    assert is_held(place)
    assert take_lock(place) is None
    os.close(lock)
    backend.remove("default", "job-1")
    assert not Path(place).exists()


def test_nobody_has_a_lock_whose_file_was_removed(place: str) -> None:
    for _ in range(20):
        lock = take_lock(place)
        assert lock is not None
        with ThreadPoolExecutor(2) as threads:
            waiting = [threads.submit(lambda: os.close(only_one(place))) for _ in range(2)]
            Path(place).unlink()
            os.close(lock)
            for each in waiting:
                each.result(30)


def only_one(place: str) -> int:
    """Take the lock, and check that nobody else can have it now."""
    lock = wait_for_lock(place)
    assert os.path.samestat(os.fstat(lock), Path(place).stat())
    assert take_lock(place) is None
    return lock
