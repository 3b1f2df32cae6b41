"""Requests at the same time."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from kinetic_core.concurrency import at_once


def test_all_actions_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3)
    at_once(*[lambda: barrier.wait(60)] * 3)


def test_the_first_error_is_raised_when_all_have_ended() -> None:
    ended: list[str] = []
    other = threading.Event()

    def fail(name: str) -> None:
        other.wait(60)
        ended.append(name)
        raise ValueError(name)

    def work() -> None:
        other.set()

    with pytest.raises(ValueError, match="first"):
        at_once(lambda: fail("first"), lambda: fail("second"), work)
    assert sorted(ended) == ["first", "second"]


AT_THE_END = """
import atexit
from kinetic_core.concurrency import at_once
done = []
atexit.register(lambda: (at_once(lambda: done.append(1), lambda: done.append(2)), print(sorted(done))))
"""


def test_where_no_thread_can_be_started_they_run_in_a_row() -> None:
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[1, 2]\n", "")
