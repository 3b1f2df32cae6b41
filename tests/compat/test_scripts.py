"""What a script that imports `kinetic_core.compat` shows where nobody has set anything up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.screen import Screen, read_all

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_jobs")]
SCRIPT = """\
import kinetic_core.compat as kinetic


@kinetic.run(accelerator="cpu", capture_env_vars=["OWN_*", "NOT_SET"])
def train(folder):
    import os

    print("epoch 1")
    return len(os.environ["OWN_TOKEN"]), os.listdir(folder)


print("value:", train(kinetic.Data("dataset")))
"""
CANARY = "canary-of-the-submitter"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A program in a fresh directory, as its user runs it."""
    monkeypatch.delenv("KINETIC_PACKAGE_ROOT", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("OWN_TOKEN", CANARY)
    (tmp_path / "work/dataset").mkdir(parents=True)
    (tmp_path / "work/dataset/part-0").write_text(str(tmp_path))
    (tmp_path / "work/script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path / "work")
    return [sys.executable, "script.py"]


VALUE = f"value: ({len(CANARY)}, ['part-0'])"


@pytest.mark.parametrize("level", [None, "INFO"])
def test_a_pipe_gets_what_the_job_prints_and_all_else_on_stderr(
    script: list[str], level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if level is not None:
        monkeypatch.setenv("KINETIC_LOG_LEVEL", level)
    done = subprocess.run(script, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["epoch 1", VALUE]), done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("kinetic: ")]
    assert any(": storing " in line for line in told), "what is uploaded"
    assert any(line.startswith("kinetic: submitted job-") for line in told)
    assert any("OWN_TOKEN" in line and "plain text" in line for line in told)
    assert any("NOT_SET is not set here" in line for line in told)
    assert CANARY not in done.stderr
    assert ("captured environment variables: OWN_TOKEN" in done.stderr) is (level == "INFO")


def test_a_terminal_is_told_of_the_job_too(script: list[str]) -> None:
    reading, writing = os.openpty()
    with subprocess.Popen(
        script, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=writing, text=True
    ) as process:
        os.close(writing)
        screen = Screen()
        screen.feed(read_all(reading))
        os.close(reading)
        out, _ = process.communicate(timeout=300)
    assert (process.returncode, out.splitlines()) == (0, ["epoch 1", VALUE]), screen.lines
    told = "\n".join(screen.lines)
    assert "submitted job-" in told
    assert "succeeded in " in told
    assert CANARY not in told
