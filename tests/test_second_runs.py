"""What `.ci/run` does with a test that fails."""

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
        raise AssertionError
"""


def again(folder: Path, tests: str) -> tuple[int, str, str]:
    """Return the exit code, the output, and the lines for the end of `.ci/run`."""
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [str(AGAIN), sys.executable, "-m", "pytest", "-q", "-n", "2"],
        cwd=folder,
        env={**environment, "SECOND_RUNS": str(folder / "all"), "TESTS_PASSED": str(folder / "passed")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, (folder / "all").read_text() if (folder / "all").exists() else ""


def test_what_passes_the_second_time_has_failed(tmp_path: Path) -> None:
    """Its name at the end helps to find the cause."""
    code, output, named = again(tmp_path, TESTS)
    assert (code, "1 passed" in output) == (1, True)
    assert named.count("test_it.py::test_flaky") == 1
    assert "passed by themselves" in named
    assert "test_good" not in named


@pytest.mark.parametrize("bad", [1, 11])
def test_what_fails_again_is_not_named(tmp_path: Path, bad: int) -> None:
    """And of more than ten none is run again."""
    tests = "".join(f"\n\ndef test_bad_{number}():\n    raise OSError\n" for number in range(bad))
    code, output, named = again(tmp_path, tests)
    assert (code, named) == (1, "")
    assert ("again, by themselves" in output) is (bad <= 10)


def test_of_two_the_one_that_fails_again_is_not_named(tmp_path: Path) -> None:
    code, _, named = again(tmp_path, TESTS + "\n\ndef test_bad():\n    raise OSError\n")
    assert (code, "test_flaky" in named, "test_bad" in named) == (1, True, False)


def test_nothing_is_named_where_all_pass(tmp_path: Path) -> None:
    (tmp_path / "been").touch()
    assert again(tmp_path, TESTS)[::2] == (0, "")
