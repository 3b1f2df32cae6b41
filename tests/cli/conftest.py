"""What the tests of the command run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kinetic_core
from tests.conftest import wait_for


@kinetic_core.run(accelerator="cpu")
def waits(seconds: float) -> None:
    import time

    for number in range(50):
        print(f"line {number} [bold]x[/bold] \x1b[2J ü", flush=True)
    time.sleep(seconds)


@pytest.fixture
def own_jobs(local_jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real jobs in a store in which no other test has any."""
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "own"))


@pytest.fixture
def sample(local_jobs: Path) -> str:
    """A file with decorated functions, in the project of the test jobs."""
    return str(Path(__file__).parent / "project" / "cli_sample.py")


@pytest.fixture
def running(local_jobs: Path) -> Iterator[kinetic_core.JobHandle]:
    """A job that has printed fifty lines and goes on for two minutes."""
    handle = waits.run_async(120)
    try:
        wait_for(lambda: "line 49" in (handle.logs() or ""))
        yield handle
    finally:
        handle.cancel()
