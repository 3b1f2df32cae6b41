"""One cell of every action of the matrix; `make matrix` walks all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.airflow, pytest.mark.attack]


@pytest.mark.promise("scale: The matrix is walked for both")
@pytest.mark.timeout(3600)
@pytest.mark.promise("airflow: `.ci/run` runs one cell of every action on the newest Airflow")
def test_one_cell_of_every_action(tmp_path: Path) -> None:
    from matrix.cells import one_of_each, outages, while_a_trigger_ends
    from matrix.processes import Processes
    from matrix.verdict import broken
    from matrix.walk import walk

    home = tmp_path.resolve()
    cells = [*one_of_each(), *while_a_trigger_ends(), *outages(seconds=20)]
    _, found = walk(home, cells, Processes(home), together=True)
    assert {(seen.action, seen.phase): broken(seen) for seen in found if broken(seen)} == {}


@pytest.mark.slow
def test_a_store_that_is_away_for_ten_minutes_loses_nothing(tmp_path: Path) -> None:
    from matrix.cells import outages
    from matrix.processes import Processes
    from matrix.verdict import broken
    from matrix.walk import walk

    _, found = walk(tmp_path.resolve(), outages(seconds=600), Processes(tmp_path.resolve()))
    assert [(broken(seen), seen.tries) for seen in found] == [([], 1)] * 4
