"""Names of tests are read in lists: each fits into a line of one."""

from __future__ import annotations

import re
from collections import Counter

from tests.documents.pages import ROOT

LONGEST = 60


def test_names_of_tests_are_short() -> None:
    names = [
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"(?m)^\s*def (test_\w+)", path.read_text())
    ]
    assert len(names) > 1500
    assert [name for name in names if len(name) > LONGEST] == []


def test_no_two_modules_of_tests_share_a_name() -> None:
    """Where their folders are no packages, pytest collects one of them, and fails at the other."""
    paths = [
        each for each in (ROOT / "tests").rglob("test_*.py") if not (each.parent / "__init__.py").exists()
    ]
    assert len(paths) > 100
    counts = Counter(path.stem for path in paths)
    assert [name for name, count in counts.items() if count > 1] == []
