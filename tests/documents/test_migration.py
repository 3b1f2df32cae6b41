"""The guide for programs of keras-kinetic: each difference that it names is shown by a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.documents.pages import ROOT, nodes, parsed
from tests.documents.test_python_blocks import BLOCKS, FOR_THIS_MACHINE

GUIDE = ROOT / "docs" / "migration" / "keras-kinetic.md"
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows() -> list[list[str]]:
    """The cells of all rows of tables whose first column is what keras-kinetic does."""
    found: list[list[str]] = []
    inside = False
    for line in GUIDE.read_text().splitlines():
        if not line.startswith("|"):
            inside = False
        elif line.startswith("| there"):
            inside = True
        elif inside and not line.startswith("|---"):
            found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


def functions_in(path: Path) -> set[str]:
    return {node.name for node in nodes(parsed(path)) if isinstance(node, ast.FunctionDef)}


def test_every_difference_names_a_test_that_exists() -> None:
    assert len(rows()) > 40
    for cells in rows():
        assert len(cells) == 3, f"not three columns, there | here | shown by: {cells}"
        named = _TEST.findall(cells[2])
        assert named, f"no test shows that {cells[0]!r}"
        for path, test in named:
            assert test in functions_in(ROOT / path), f"{path} has no {test}, which {cells[0]!r} names"


def test_every_difference_is_named_once() -> None:
    there = [cells[0] for cells in rows()]
    assert sorted(there) == sorted(set(there))


def test_every_program_of_the_guide_is_run() -> None:
    programs = [block for block in BLOCKS if block.page == GUIDE]
    assert len(programs) > 1
    assert all(block in FOR_THIS_MACHINE for block in programs)
