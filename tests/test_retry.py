"""The retry policy: what is repeated, for how long, at which pace."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from kinetic_core.errors import ClusterError, ClusterUnreachable
from kinetic_core.retry import REFUSED_SECONDS, Refusals, Reminders, patiently, pauses


class Clock:
    """Time that only sleeping makes pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def answer(errors: list[Exception]) -> str:
    if errors:
        raise errors.pop(0)
    return "answer"


def test_pauses_leave_a_seeded_program_reproducible() -> None:
    before = random.getstate()
    assert len(set(islice(pauses(), 3))) == 3
    assert random.getstate() == before


def test_what_passes_is_repeated_until_it_has() -> None:
    clock, errors = Clock(), [ClusterUnreachable("away"), ClusterError("busy", 503)]
    assert patiently(lambda: answer(errors), 60.0, sleep=clock.sleep, clock=clock) == "answer"
    assert 0.3 < clock.now < 2


@pytest.mark.parametrize("error", [ClusterError("no", 403), ValueError("ours"), KeyboardInterrupt()])
def test_what_does_not_pass_is_raised_at_once(error: BaseException) -> None:
    clock, asked = Clock(), list[int]()

    def ask() -> None:
        asked.append(1)
        raise error

    with pytest.raises(type(error)):
        patiently(ask, 60.0, sleep=clock.sleep, clock=clock)
    assert (len(asked), clock.now) == (1, 0.0)


def test_patience_ends_with_the_last_error() -> None:
    clock, number = Clock(), iter(range(1000))

    def ask() -> None:
        raise ClusterUnreachable(f"away {next(number)}")

    with pytest.raises(ClusterUnreachable, match=r"away [1-9]"):
        patiently(ask, 60.0, sleep=clock.sleep, clock=clock)
    assert 60 <= clock.now < 60 + 12


def test_pauses_grow_to_a_limit_and_are_never_alike() -> None:
    found = list(islice(pauses(1.0, 4.0), 100))
    assert 0.5 <= found[0] <= 1.5
    assert 1.0 <= found[1] <= 3.0
    assert all(2.0 <= each <= 6.0 for each in found[2:])
    assert len(set(found)) == 100


def test_a_refusal_is_told_once_it_has_gone_on() -> None:
    clock = Clock()
    refusals = Refusals(clock)
    refused, away = ClusterError("forbidden", 403), ClusterUnreachable("away")
    assert not refusals.go_on(refused)
    clock.sleep(REFUSED_SECONDS)
    assert not refusals.go_on(away), "an outage passes by itself"
    assert refusals.go_on(refused)
    refusals.end()
    assert not refusals.go_on(refused), "an answer came between"


def test_each_kind_is_said_once_a_minute() -> None:
    clock = Clock()
    reminders = Reminders(clock)
    said = []
    for _ in range(5):
        said.append([reminders.are_due("a"), reminders.are_due("b")])
        clock.sleep(20)
    assert said == [[True, True], [False, False], [False, False], [True, True], [False, False]]
