"""One cell of every action of the matrix; `make matrix` walks all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.airflow


def test_one_cell_of_every_action(tmp_path: Path) -> None:
    """What breaks on a machine that is busy with all the others is walked once more, by itself."""
    from matrix.cells import one_of_each
    from matrix.processes import Processes
    from matrix.verdict import broken
    from matrix.walk import walk

    cells, bad = list(one_of_each()), {}
    for folder in ("all", "again"):
        home = (tmp_path / folder).resolve()
        home.mkdir()
        _, found = walk(home, cells, Processes(home), together=True)
        bad = {(seen.action, seen.phase): broken(seen) for seen in found if broken(seen)}
        print(f"{folder}: {len(found)} cells, broken: {bad}")
        cells = [cell for cell in cells if (cell.action.name, cell.phase) in bad]
        if not cells:
            break
    assert bad == {}
