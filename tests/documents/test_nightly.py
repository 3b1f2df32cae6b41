"""The list of what CI leaves to `make nightly` names tests that exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from tests.documents.pages import ROOT

NIGHTLY = tomllib.loads((ROOT / "tests/nightly.toml").read_text())


def test_every_test_of_the_list_exists() -> None:
    named = [f"{file}::{test}" for file, tests in NIGHTLY.items() for test in tests]
    assert len(named) > 50
    assert [name for name in named if not _is_there(*name.split("::"))] == []


@pytest.mark.slow
def test_every_case_that_ci_keeps_exists() -> None:
    collecting = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "tests"]
    done = subprocess.run(collecting, cwd=ROOT, capture_output=True, text=True, check=True)
    kept = {
        f"{file}::{test}[{case}]" for file, tests in NIGHTLY.items() for test in tests for case in tests[test]
    }
    assert kept - set(done.stdout.splitlines()) == set()


def _is_there(file: str, test: str) -> bool:
    return re.search(rf"(?m)^def {test}\(", (ROOT / file).read_text()) is not None
