"""Places where no trigger watches, and what a triggerer's main process does there: real local jobs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_provider.access import Access
from airflow_provider.deployment import UsedPlace, read_places, record, with_place
from airflow_provider.orphans import Attendant, Presence, place_key
from kinetic_core.backends.base import backend_of
from kinetic_core.connections import Connections, default_connections
from kinetic_core.job import JobReference
from kinetic_core.jobs.observe import observe
from tests.airflow_provider.forgotten import Told, job

pytestmark = pytest.mark.usefixtures("local_jobs")


@dataclass
class Broken:
    """A place whose connection is gone."""

    reference: JobReference

    def client(self) -> Connections:
        raise PermissionError("no such connection")


@dataclass
class There:
    reference: JobReference

    def client(self) -> Connections:
        return default_connections()


INTERVAL = 25.0
"""Seconds between two searches."""
MOST = 50
"""Places that are kept."""


def attendant(folder: Path, told: Told, places: Iterable[There | Broken], name: str = "ours") -> Attendant:
    return Attendant(Presence(os.getpid(), INTERVAL, folder / "marks"), lambda: places, told, lambda: name)


def test_a_forgotten_job_is_cancelled_at_the_second_look(tmp_path: Path) -> None:
    with job(tmp_path) as forgotten:
        looking = attendant(tmp_path, Told({}), [There(forgotten)])
        assert looking.reconcile()
        assert not observe(backend_of(forgotten, default_connections()), forgotten).is_terminal
        assert not looking.reconcile()
        assert observe(backend_of(forgotten, default_connections()), forgotten).is_terminal


def test_without_a_name_nothing_is_compared(tmp_path: Path) -> None:
    with job(tmp_path) as forgotten:
        told = Told({})
        assert not attendant(tmp_path, told, [There(forgotten)], name="").reconcile()
        assert told.asked == []


def test_a_place_of_many_connections_is_asked_once(tmp_path: Path) -> None:
    with job(tmp_path) as forgotten:
        told = Told({"r": {"train": "deferred"}})
        attendant(tmp_path, told, [There(forgotten), There(forgotten)]).reconcile()
        assert len(told.asked) == 1


def test_what_triggers_look_after_is_left_to_them(tmp_path: Path) -> None:
    with job(tmp_path) as forgotten:
        told, marks = Told({}), Presence(os.getpid(), INTERVAL, tmp_path / "marks")
        marks.mark(place_key(backend_of(forgotten, default_connections()), forgotten.namespace))
        looking = attendant(tmp_path, told, [There(forgotten)])
        assert not looking.reconcile()
        (mark,) = (tmp_path / "marks").iterdir()
        long_ago = mark.stat().st_mtime - INTERVAL - 15
        os.utime(mark, (long_ago, long_ago))
        assert looking.reconcile()


def test_trouble_in_one_place_is_told_once_and_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with job(tmp_path) as forgotten:
        places = [Broken(replace(forgotten, namespace="gone")), There(forgotten)]
        looking = attendant(tmp_path, Told({}), places)
        looking.reconcile()
        looking.reconcile()
        assert observe(backend_of(forgotten, default_connections()), forgotten).is_terminal
        assert sum("no such connection" in each.message for each in caplog.records) == 1


def test_marks_of_an_earlier_process_with_this_id_say_nothing(tmp_path: Path) -> None:
    Presence(1, INTERVAL, tmp_path).mark("here")
    Presence(2, INTERVAL, tmp_path).mark("here")
    Presence(1, INTERVAL, tmp_path).forget()
    assert not Presence(1, INTERVAL, tmp_path).is_marked("here")
    assert Presence(2, INTERVAL, tmp_path).is_marked("here")


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
