"""Names of tests are read in lists: each fits into a line of one."""

from __future__ import annotations

import re

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
