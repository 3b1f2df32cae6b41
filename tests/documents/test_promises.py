"""The page of promises names tests, programs and pages that there are."""

from __future__ import annotations

import re
from pathlib import Path

from tests.documents.pages import ROOT

TEXT = (ROOT / "docs/explanation/promises.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:tests|benchmarks|docs|examples|example_dags)/[^`\s]+)`", TEXT)))


def test_tests_are_named() -> None:
    assert sum("::" in name for name in NAMED) > 300


def test_what_is_named_is_there() -> None:
    assert [name for name in NAMED if not is_there(name)] == []


def is_there(name: str) -> bool:
    path, _, test = name.partition("::")
    place = Path(ROOT, path)
    if not test:
        return place.exists()
    return place.is_file() and re.search(rf"(?m)^def {re.escape(test)}\(", place.read_text()) is not None
