"""The traceback of a job's exception shows the user's frames, here and in the job, and none of ours."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kinetic_core

SCRIPT = """
import sys
import kinetic_core

@kinetic_core.run(accelerator="cpu")
def divide(a, b):
    return a / b

@kinetic_core.run(accelerator="cpu")
def wait():
    import time

    print("waiting", flush=True)
    time.sleep(120)

def main():
    if sys.argv[1] == "wait":
        wait()
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


@pytest.mark.parametrize("backend", ["", "gke"])
def test_ctrl_c_says_what_stops_the_job(backend: str, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend:
        monkeypatch.setenv("KINETIC_BACKEND", backend)
        script.write_text(SCRIPT.replace('accelerator="cpu"', 'accelerator="cpu", backend="local"'))
    process = subprocess.Popen(
        [sys.executable, str(script), "wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    stays = " --backend local" if backend else ""
    found = re.search(rf"kinetic: (job-\w+) goes on\n(kinetic: hint: kinetic jobs cancel \1{stays})\n", told)
    assert found, told
    kinetic_core.attach(found[1], backend="local").cancel()
    assert len(found[2]) < 80
    frames = [line.rpartition(" in ")[2] for line in told.splitlines() if line.startswith("  File ")]
    assert frames == ["<module>", "main"], told
