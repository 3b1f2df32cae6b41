"""What the tests of the command run."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def own_jobs(local_jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real jobs in a store in which no other test has any."""
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "own"))


@pytest.fixture
def sample(local_jobs: Path) -> str:
    """A file with decorated functions, in the project of the test jobs."""
    return str(Path(__file__).parent / "project" / "cli_sample.py")
