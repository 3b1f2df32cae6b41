"""What CI does with a test that fails: once more, and its name where nobody misses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
TWICE = Path(__file__).parents[1] / ".ci/twice.py"
TESTS = """
from pathlib import Path
import pytest

def test_good():
    pass

@pytest.mark.chosen
@pytest.mark.parametrize("name", ["a b"])
def test_flaky(name):
    place = Path(__file__).with_name("been")
    if not place.exists():
        place.touch()
        raise AssertionError

{bad}
"""
BAD = """
@pytest.fixture
def broken():
    yield
    raise OSError

def test_bad(broken):
    pass
"""


def run(folder: Path, bad: str, *arguments: str) -> tuple[int, list[str], str]:
    """Exit code, lines and the file for all of CI."""
    (folder / "test_it.py").write_text(TESTS.format(bad=bad))
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -m 'not chosen'\nmarkers = chosen: only by -m\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, str(TWICE), *arguments],
        cwd=folder,
        env={**environment, "SECOND_RUNS": str(folder / "all"), "TESTS_PASSED": str(folder / "passed")},
        capture_output=True,
        text=True,
        check=False,
    )
    kept = (folder / "all").read_text() if (folder / "all").exists() else ""
    return done.returncode, done.stdout.splitlines(), kept


def test_what_passes_the_second_time_is_named_in_the_last_line(tmp_path: Path) -> None:
    code, lines, kept = run(tmp_path, "", "-m", "chosen", "--", "-k", "good")
    assert code == 0
    assert lines[-1] == "== SECOND RUN NEEDED BY 1: test_it.py::test_flaky[a b]"
    assert kept == "SECOND RUN NEEDED BY 1: test_it.py::test_flaky[a b]\n"
    assert (tmp_path / "passed").read_text() == "test_it.py::test_flaky[a b]\ntest_it.py::test_good\n"
    code, lines, _ = run(tmp_path, "")
    assert (code, lines[-1]) == (0, "== no test was run a second time")


def test_what_fails_twice_fails_and_nothing_runs_after_it(tmp_path: Path) -> None:
    code, lines, _ = run(tmp_path, BAD, "-m", "", "-n", "2", "--", "-k", "good")
    assert code == 1
    assert lines[-1].startswith("== SECOND RUN NEEDED BY 2: ")
    assert {"test_it.py::test_bad", "test_it.py::test_flaky[a"} < set(lines[-1].split())
    assert not any("3 deselected" in line for line in lines)


def test_where_much_fails_nothing_is_run_again(tmp_path: Path) -> None:
    much = "@pytest.mark.parametrize('number', range(20))\ndef test_bad(number):\n    raise AssertionError"
    code, lines, kept = run(tmp_path, much)
    assert (code, lines[-1], kept) == (1, "== no test was run a second time", "")


def test_a_run_that_is_broken_off_is_not_repeated(tmp_path: Path) -> None:
    code, lines, _ = run(tmp_path, "import nothing_there")
    assert code == 2
    assert not any("again, by themselves" in line for line in lines)


def test_runs_beside_each_other_are_shown_one_after_the_other(tmp_path: Path) -> None:
    code, lines, _ = run(tmp_path, "", "-m", "chosen", "+", "-k", "good")
    assert code == 0
    assert [line.split(" in ")[0] for line in lines if " in " in line and "deselected" in line] == [
        "1 failed, 1 deselected",
        "1 passed, 1 deselected",
    ]
    assert "1 passed" in lines[-2]
