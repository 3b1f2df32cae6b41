"""Deaths of memory that nobody observed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetic_core._runner import object_names, wire
from tests.runner.attempts import JOB, Attempts


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


@pytest.mark.parametrize(("deaths", "is_over"), [(2, False), (3, True)])
def test_repeated_deaths_with_full_memory_are_out_of_memory(
    attempts: Attempts, deaths: int, is_over: bool
) -> None:
    """Nobody observed it: a death without a word may be chance twice."""
    attempts.submit(lambda: "done")
    for attempt in range(deaths):
        attempts.note(object_names.memory(JOB, attempt), memory_limit=1 << 30, memory_peak=1000 << 20)
    attempts.ignored = deaths
    assert attempts.run() == (wire.EXIT_NEVER_RETRY if is_over else 0)
    failure = attempts.outcome().failure
    assert (failure is not None) is is_over
    if failure is not None:
        assert failure.failure_class == wire.FailureClass.OUT_OF_MEMORY
        text = "3 attempts: the container was killed because the job's memory ran out"
        assert f"{text} (the limit was 1 GiB, it had used 1000 MiB)" in failure.message


def test_deaths_that_left_an_outcome_are_no_deaths_of_memory(attempts: Attempts) -> None:
    attempts.submit(lambda: "done")
    for attempt in range(5):
        attempts.note(object_names.memory(JOB, attempt))
        attempts.store.create_if_absent(object_names.attempt_outcome(JOB, attempt), b"interrupted")
    attempts.ignored = 5
    assert attempts.run() == 0
