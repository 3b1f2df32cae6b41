"""Places in which several jobs of tasks have run, and the search in all of them: real local jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider.access import Access
from airflow_provider.deployment import UsedPlace, read_places, record, with_place
from airflow_provider.orphans import Attendant, place_key
from kinetic_core.backends.base import backend_of
from kinetic_core.connections import default_connections
from kinetic_core.job import JobReference
from kinetic_core.jobs.observe import observe
from tests.airflow_provider.forgotten import Broken, Opened, Told, job

pytestmark = pytest.mark.usefixtures("local_jobs")

MOST = 50
"""Places that are kept."""


def is_over(reference: JobReference) -> bool:
    return observe(backend_of(reference, default_connections()), reference).is_terminal


def attendant(
    told: Told,
    places: Iterable[Opened | Broken],
    name: str = "ours",
    is_left: Callable[[str], bool] = lambda _: False,
) -> Attendant:
    async def noted() -> Iterable[Opened | Broken]:
        return places

    async def named() -> str:
        return name

    return Attendant(noted, told, named, is_left)


def looks(looking: Attendant, times: int = 1) -> list[bool]:
    """Whether each of several searches leaves something in doubt."""

    async def look() -> list[bool]:
        return [await looking.reconcile() for _ in range(times)]

    return asyncio.run(look())


def test_a_forgotten_job_is_cancelled_at_the_second_look(tmp_path: Path) -> None:
    with job(tmp_path) as forgotten:
        looking = attendant(Told({}), [Opened(forgotten)])
        assert looks(looking) == [True]
        assert not is_over(forgotten)
        assert looks(looking) == [False]
        assert is_over(forgotten)


def test_without_a_name_nothing_is_compared(tmp_path: Path) -> None:
    with job(tmp_path) as forgotten:
        told = Told({})
        assert looks(attendant(told, [Opened(forgotten)], name="")) == [False]
        assert told.asked == []


def test_a_place_of_many_connections_is_asked_once(tmp_path: Path) -> None:
    with job(tmp_path) as forgotten:
        told = Told({"r": {"train": "deferred"}})
        looks(attendant(told, [Opened(forgotten), Opened(forgotten)]))
        assert len(told.asked) == 1


@pytest.mark.attack
def test_a_doubt_from_before_another_search_is_forgotten(tmp_path: Path) -> None:
    """Two looks in a row must see that a task is over. Hours may be between these."""
    with job(tmp_path) as forgotten:
        left: set[str] = set()
        looking = attendant(Told({}), [Opened(forgotten)], is_left=left.__contains__)
        key = place_key(backend_of(forgotten, default_connections()), forgotten.namespace)
        assert looks(looking) == [True]
        left.add(key)
        assert looks(looking) == [False]
        left.clear()
        assert looks(looking) == [True]
        assert not is_over(forgotten)


def test_trouble_in_one_place_is_told_once_and_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with job(tmp_path) as forgotten:
        places = [Broken(replace(forgotten, namespace="gone")), Opened(forgotten)]
        looks(attendant(Told({}), places), 2)
        assert is_over(forgotten)
        assert sum("no such connection" in each.message for each in caplog.records) == 1


def test_a_place_is_noted_once_with_the_newest_others(tmp_path: Path) -> None:
    with job(tmp_path) as reference:
        text = ""
        for number in range(MOST + 3):
            text = with_place(text, UsedPlace(replace(reference, namespace=f"n{number}")), MOST) or ""
        assert with_place(text, UsedPlace(replace(reference, namespace="n50", job_id="job-2")), MOST) is None
        assert (
            with_place(text, UsedPlace(replace(reference, namespace="n50"), Access("other")), MOST)
            is not None
        )
        found = [place.reference.namespace for place in read_places(text)]
        assert found == [f"n{number}" for number in range(3, MOST + 3)]


class Contended:
    """The Variable of places while others, who read it before this task wrote, write it after that."""

    def __init__(self, others: Iterable[str]) -> None:
        self.text = ""
        self.pauses: list[float] = []
        self._others = list(others)

    def read(self) -> str:
        return self.text

    def write(self, text: str) -> None:
        self.text = text

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if self._others:
            self.text = self._others.pop(0)


@pytest.mark.parametrize("times", [0, 1, 3])
def test_a_place_that_another_task_undoes_is_noted(tmp_path: Path, times: int) -> None:
    with job(tmp_path) as reference:
        other = with_place("", UsedPlace(replace(reference, namespace="other")), MOST) or ""
        variable = Contended([other] * times)
        record(UsedPlace(reference), MOST, variable.read, variable.write, variable.pause)
        found = [place.reference.namespace for place in read_places(variable.text)]
        assert found == [*(["other"] if times else []), reference.namespace]
        assert len(variable.pauses) == times + 1


def test_a_variable_that_keeps_nothing_is_given_up(tmp_path: Path) -> None:
    with job(tmp_path) as reference:
        variable = Contended([""] * 100)
        record(UsedPlace(reference), MOST, variable.read, variable.write, variable.pause)
        assert variable.text == ""
        assert len(variable.pauses) < 10


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": {"reference": {"protocol": -1}}}'])
def test_what_somebody_else_wrote_there_is_no_place(text: str) -> None:
    assert read_places(text) == []
