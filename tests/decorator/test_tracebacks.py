"""The traceback of a job's exception shows the user's frames, here and in the job, and none of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import kinetic_core

@kinetic_core.run(accelerator="cpu")
def divide(a, b):
    return a / b

def main():
    if sys.argv[1] == "call":
        divide(1, 0)
    if sys.argv[1] == "timeout":
        divide.run_async(1, 1).result(timeout=-1)
    divide.run_async(1, 0).result()

main()
"""


@pytest.fixture
def script(local_jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KINETIC_PACKAGE_ROOT")
    file = tmp_path / "work" / "script.py"
    file.parent.mkdir()
    file.write_text(SCRIPT)
    return file


def frames(script: Path, how: str) -> list[str]:
    """The functions in the traceback with which the script ends, up to the remote one."""
    done = subprocess.run([sys.executable, str(script), how], capture_output=True, text=True, timeout=60)
    here = done.stderr.partition("Traceback (most recent call last):")[2].partition("Remote traceback")[0]
    assert ("ZeroDivisionError: division by zero" in here) is (how != "timeout"), done.stderr
    return [line.rpartition(" in ")[2] for line in here.splitlines() if line.startswith("  File ")]


@pytest.mark.parametrize("how", ["call", "result"])
def test_a_jobs_exception_comes_from_the_users_line(how: str, script: Path) -> None:
    assert frames(script, how) == ["<module>", "main"]


def test_frames_of_ours_stay_where_they_tell(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert frames(script, "timeout")[-1] == "wait"
    monkeypatch.setenv("KINETIC_LOG_LEVEL", "debug")
    assert frames(script, "call")[-1] == "value_or_raise"
