"""The page of promises names tests, programs and pages that there are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.documents.pages import ROOT

TEXT = (ROOT / "docs/explanation/promises.md").read_text()
PAGE = """# Promises

## Rooms

| promise | shown by |
|---|---|
| One | `tests/a.py::test_one`, `benchmarks/a.py` |
| Two | `tests/a.py::test_two`, `tests/b.py::test_two` (slow) |
| Three | `docs/a.md` |
"""
NAMED = sorted(set(re.findall(r"`((?:tests|benchmarks|docs|examples|example_dags)/[^`\s]+)`", TEXT)))


def test_tests_are_named() -> None:
    assert sum("::" in name for name in NAMED) > 300


def test_what_is_named_is_there() -> None:
    assert [name for name in NAMED if not is_there(name)] == []


def test_every_promise_says_what_shows_it() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("|")]
    assert [row for row in rows if row.count(" | ") != 1 and not row.startswith("|---")] == []
    assert len([row for row in rows if row.startswith("|---")]) == TEXT.count("\n## ")


def test_what_has_not_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "passed").write_text("tests/a.py::test_one[x-y]\ntests/a.py::test_two\n")
    done = subprocess.run(
        [sys.executable, ROOT / ".ci/promises.py", "page.md", "passed"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "Rooms: of 3 promises, 1 shown by all their tests, 1 by some of them, 1 by programs and pages",
        "    Two: not run here: tests/b.py::test_two",
    ]


def is_there(name: str) -> bool:
    path, _, test = name.partition("::")
    place = Path(ROOT, path)
    if not test:
        return place.exists()
    return place.is_file() and re.search(rf"(?m)^def {re.escape(test)}\(", place.read_text()) is not None
