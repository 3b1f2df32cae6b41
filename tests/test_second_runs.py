"""What `.ci/run` does with a test that fails, and what its last lines say of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
AGAIN = Path(__file__).parents[1] / ".ci/again"
TESTS = """
from pathlib import Path


def test_good():
    pass


def test_flaky():
    place = Path(__file__).with_name("been")
    if not place.exists():
        place.touch()
        raise AssertionError("the first time")
"""
BY_ITSELF = "== FAILED, and passed by themselves:"


def again(folder: Path, tests: str) -> tuple[int, str, str]:
    """Return the exit code, the output, and the lines for the end of `.ci/run`."""
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [str(AGAIN), sys.executable, "-m", "pytest", "-q", "-n", "2"],
        cwd=folder,
        env={**environment, "FAILURES": str(folder / "all"), "TESTS_PASSED": str(folder / "passed")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, (folder / "all").read_text() if (folder / "all").exists() else ""


def test_what_passes_the_second_time_has_failed(tmp_path: Path) -> None:
    """Its name at the end helps to find the cause."""
    code, output, told = again(tmp_path, TESTS)
    assert (code, "1 passed" in output) == (1, True)
    why, by_itself = told.split(BY_ITSELF)
    assert "E           AssertionError: the first time" in why.splitlines()
    assert by_itself.split() == ['"test_it.py::test_flaky":', "true"]
    assert "test_good" not in told


@pytest.mark.parametrize("bad", [1, 11])
def test_what_fails_again_did_not_pass_by_itself(tmp_path: Path, bad: int) -> None:
    """And of more than ten none is run again."""
    tests = "".join(f"\n\ndef test_bad_{number}():\n    raise OSError\n" for number in range(bad))
    code, output, told = again(tmp_path, tests)
    assert (code, told.count("FAILED test_it.py::test_bad_")) == (1, bad)
    assert BY_ITSELF not in told
    assert ("again, by themselves" in output) is (bad <= 10)


def test_of_two_that_fail_one_passes_by_itself(tmp_path: Path) -> None:
    code, _, told = again(tmp_path, TESTS + "\n\ndef test_bad():\n    raise OSError\n")
    why, by_itself = told.split(BY_ITSELF)
    assert (code, "test_flaky" in why, "test_bad" in why) == (1, True, True)
    assert ("test_flaky" in by_itself, "test_bad" in by_itself) == (True, False)


def test_nothing_is_told_where_all_pass(tmp_path: Path) -> None:
    (tmp_path / "been").touch()
    assert again(tmp_path, TESTS)[::2] == (0, "")
