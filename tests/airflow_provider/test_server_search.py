"""The API server's search for orphans: where, how often, and which of its processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from airflow_provider.deployment import UsedPlace
from airflow_provider.ui.orphans import SearchLock, ServerSearch, search
from kinetic_core.backends.base import backend_of
from kinetic_core.connections import default_connections
from kinetic_core.job import JobReference
from kinetic_core.jobs.observe import observe
from tests.airflow_provider.forgotten import Told, job

HOLDING = """
import sys
from pathlib import Path
from airflow_provider.ui.orphans import SearchLock
lock = SearchLock(lambda: Path(sys.argv[1]))
print(lock.take(), flush=True)
sys.stdin.read()
"""


@dataclass
class Noted:
    """What tasks have noted, by team."""

    places: dict[str, list[UsedPlace]]
    told: Told = field(default_factory=lambda: Told({}))

    def search(self) -> ServerSearch:
        return ServerSearch(lambda: self.places, self.places.__getitem__, self.name, self.told)

    def name(self, team: str) -> str:
        return "ours" if not team else f"ours of {team}"


def looks(searching: ServerSearch, times: int = 2) -> list[bool]:
    """Whether each of several searches leaves something in doubt."""
    return [asyncio.run(searching.reconcile()) for _ in range(times)]


def is_over(reference: JobReference) -> bool:
    return observe(backend_of(reference, default_connections()), reference).is_terminal


@pytest.mark.usefixtures("local_jobs")
def test_a_forgotten_job_is_cancelled_at_the_second_look(tmp_path: Path) -> None:
    with job(tmp_path) as forgotten:
        searching = Noted({"": [UsedPlace(forgotten)]}).search()
        assert looks(searching) == [True, False]
        assert is_over(forgotten)


@pytest.mark.attack
@pytest.mark.usefixtures("local_jobs")
def test_a_living_tasks_job_is_let_be(tmp_path: Path) -> None:
    with job(tmp_path) as lives, job(tmp_path, deployment="theirs", run_id="gone") as theirs:
        noted = Noted({"": [UsedPlace(lives)]}, Told({"r": {"train": "running"}}))
        assert looks(noted.search(), 3) == [False] * 3
        assert not is_over(lives)
        assert not is_over(theirs)


@pytest.mark.usefixtures("local_jobs")
def test_what_each_team_has_noted_is_searched(tmp_path: Path) -> None:
    with job(tmp_path, deployment="ours of red") as forgotten:
        noted = Noted({"": [], "red": [UsedPlace(forgotten)]})
        assert looks(noted.search()) == [True, False]
        assert is_over(forgotten)


@pytest.mark.attack
@pytest.mark.usefixtures("local_jobs")
def test_a_store_that_only_a_task_names_is_not_looked_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with job(tmp_path) as forgotten:
        planted = replace(forgotten, store_uri=(tmp_path / "planted").as_uri())
        noted = Noted({"": [UsedPlace(planted), UsedPlace(forgotten)]}, Told({"r": {"train": "running"}}))
        assert looks(noted.search()) == [False, False]
        assert not (tmp_path / "planted").exists()
        assert sum("are not known here" in each.message for each in caplog.records) == 1


def test_one_process_of_a_machine_searches(tmp_path: Path) -> None:
    first, second = (SearchLock(lambda: tmp_path / "airflow" / "lock") for _ in range(2))
    assert first.take()
    assert not second.take()
    assert first.take()


def test_a_killed_process_leaves_the_search_at_once(tmp_path: Path) -> None:
    """A server that has just begun would search too late else: it is killed when it is restarted."""
    lock = SearchLock(lambda: tmp_path / "lock")
    command = [sys.executable, "-c", HOLDING, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        assert not lock.take()
        other.kill()
    assert lock.take()


def test_where_nothing_can_be_locked_every_process_searches(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    first, second = (SearchLock(lambda: tmp_path / "file" / "lock") for _ in range(2))
    assert first.take()
    assert second.take()


class Stopped(Exception):
    """Ends a search, which goes on for ever."""


def pauses(folder: Path, taking: float, in_doubt: bool) -> list[float]:
    """The first two pauses, with searches that take so many seconds."""
    now, found = 0.0, list[float]()

    class Slow(ServerSearch):
        async def reconcile(self) -> bool:
            nonlocal now
            now += taking
            return in_doubt

    def pause(seconds: float) -> None:
        found.append(seconds)
        if len(found) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        search(
            Slow(list, {}.__getitem__, str, Told({})),
            25,
            SearchLock(lambda: folder / "lock"),
            pause,
            lambda: now,
        )
    return found


@pytest.mark.parametrize(
    ("taking", "in_doubt", "expected"), [(0.1, False, 25), (0.1, True, 10), (10, False, 40), (10, True, 10)]
)
def test_a_search_has_a_fifth_of_the_time_at_most(
    tmp_path: Path, taking: float, in_doubt: bool, expected: float
) -> None:
    """Where there are ten thousand jobs, each search reads them all. A doubt is settled soon all the same."""
    assert pauses(tmp_path, taking, in_doubt) == [pytest.approx(expected)] * 2
