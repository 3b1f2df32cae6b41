"""The pages of promises and of security name tests, programs and pages that exist."""

from __future__ import annotations

import ast
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from tests.documents.pages import ROOT, nodes, parsed

_spec = spec_from_file_location("promises", ROOT / ".ci/promises.py")
assert _spec is not None
assert _spec.loader is not None
promises = module_from_spec(_spec)
sys.modules["promises"] = promises  # dataclasses look there for the types of their fields
_spec.loader.exec_module(promises)
PAGES = [(ROOT / "docs/explanation" / page).read_text() for page in ("promises.md", "security.md")]
NAMED = sorted(
    set(re.findall(r"`((?:tests|benchmarks|docs|examples|example_dags)/[^`\s]+)`", "\n".join(PAGES)))
)


def test_tests_are_named() -> None:
    assert sum("::" in name for name in NAMED) > 300


def test_what_is_named_is_there() -> None:
    assert [name for name in NAMED if not is_there(name)] == []


def test_what_shows_the_threat_model_is_run_by_make_attack() -> None:
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)", PAGES[1])
    assert len(tests) > 150
    assert sorted({f"{file}::{name}" for file, name in tests if not is_marked(file, name)}) == []


def test_each_sentence_of_security_names_its_tests() -> None:
    """After the introduction there are only tables, each below a heading and at most one line before it."""
    _, *sections = PAGES[1].split("\n## ")
    for section in sections:
        heading, *lines = (line for line in section.splitlines() if line)
        table = [line for line in lines if line.startswith("|")]
        assert [line for line in lines if line not in table and not line.endswith(":")] == [], heading
        assert table[:2] == ["| statement | shown by |", "|---|---|"], heading
        assert [row for row in table[2:] if "::test_" not in row.rpartition(" | ")[2]] == [], heading


def is_marked(file: str, name: str) -> bool:
    """Whether the test, or all of its module, is marked as one of the attack."""
    module = parsed(ROOT / file)
    whole = [
        each.value
        for each in module.body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "pytestmark"
    ]
    (test,) = (each for each in nodes(module) if isinstance(each, ast.FunctionDef) and each.name == name)
    return any("mark.attack" in ast.unparse(each) for each in (*whole, *test.decorator_list))


def test_every_promise_says_what_shows_it() -> None:
    for text in PAGES:
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert [row for row in rows if row.count(" | ") != 1 and not row.startswith("|---")] == []
        assert len([row for row in rows if row.startswith("|---")]) == text.count("\n## ")


def test_the_page_is_current() -> None:
    assert PAGES[0] == promises.page(promises.read(ROOT)), "run: python .ci/promises.py"


ASKED = """
[rooms]
title = "Rooms"
limits = "None."
promises = [
  { says = "One", also = "`benchmarks/a.py`" },
  { says = "Two" },
  { says = "Three" },
  { says = "Four" },
]
"""
NIGHTLY = "`tests/test_a.py::test_three` (nightly)"
TESTS = """
@pytest.mark.promise("rooms: One")
@pytest.mark.promise("rooms: Two", "of two")
def test_one(): ...
@pytest.mark.promise("rooms: Two")
def test_two(): ...
@pytest.mark.slow
@pytest.mark.promise("rooms: Two")
@pytest.mark.promise("rooms: Three")
def test_three(): ...
@pytest.mark.promise("rooms: Four")
def test_four(): ...
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/promises.toml").write_text(ASKED)
    (tmp_path / "tests/nightly.toml").write_text("['tests/test_a.py']\ntest_four = []")
    (tmp_path / "tests/test_a.py").write_text(TESTS)
    return tmp_path


def test_rows_have_their_tests_and_remarks(checkout: Path) -> None:
    rows = [line for line in promises.page(promises.read(checkout)).splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        "| One | `tests/test_a.py::test_one`, `benchmarks/a.py` |",
        f"| Two | `tests/test_a.py::test_one` (of two), `tests/test_a.py::test_two`, {NIGHTLY} |",
        f"| Three | {NIGHTLY} |",
        "| Four | `tests/test_a.py::test_four` (nightly) |",
    ]


def test_what_has_not_passed_is_named(checkout: Path) -> None:
    (checkout / "passed").write_text("tests/test_a.py::test_one[x-y]\n")
    first, *rest = promises.report(promises.read(checkout), checkout / "passed")
    assert first.startswith(
        "Rooms: of 4 promises, 1 shown by all their tests of CI, 1 not by all, 2 left to make"
    )
    assert rest == ["    Two: not passed here: tests/test_a.py::test_two"]


def test_what_does_not_fit_together_is_an_error(checkout: Path) -> None:
    (checkout / "tests/test_a.py").write_text(TESTS.replace("rooms: One", "rooms: None"))
    with pytest.raises(ValueError, match=r"test_one shows 'rooms: None', which is not in"):
        promises.read(checkout)
    (checkout / "tests/test_a.py").write_text(TESTS.replace("rooms: Four", "rooms: One"))
    with pytest.raises(ValueError, match="nothing shows 'Four' of 'Rooms'"):
        promises.read(checkout)
    (checkout / "tests/promises.toml").write_text(ASKED.replace('"Two"', '"One"'))
    with pytest.raises(ValueError, match="says a sentence of 'Rooms' twice"):
        promises.read(checkout)


def is_there(name: str) -> bool:
    path, _, test = name.partition("::")
    place = Path(ROOT, path)
    if not test:
        return place.exists()
    return place.is_file() and re.search(rf"(?m)^def {re.escape(test)}\(", place.read_text()) is not None
