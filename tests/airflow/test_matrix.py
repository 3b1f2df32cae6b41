"""One cell of every action of the matrix; `make matrix` walks all of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.skipif(
        not os.environ.get("MATRIX_TEST"), reason="minutes of a machine of its own: set MATRIX_TEST=1"
    ),
]


def test_one_cell_of_every_action(tmp_path: Path) -> None:
    from matrix.cells import one_of_each
    from matrix.verdict import broken
    from matrix.walk import walk

    _, found = walk(tmp_path.resolve(), one_of_each(), together=True)
    assert {f"{seen.action} / {seen.phase}": broken(seen) for seen in found if broken(seen)} == {}
