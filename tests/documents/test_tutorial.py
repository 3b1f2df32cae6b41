"""The tutorial as its reader goes through it: its files are made and its commands run, in their order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.pages import ROOT

PAGE = ROOT / "docs" / "getting-started.md"
STEPS = re.compile(r'^```(bash|python)(?: title="([^"\n]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)
ALREADY = ("python3 -m venv", "pip install")
"""What the environment of the tests has been given."""


def run(line: str, folder: Path, job_id: str) -> str:
    """What a line for the shell prints."""
    settings = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", re.sub(r"\bJOB\b", job_id, line)],
        cwd=folder,
        env={**os.environ, **settings, "KINETIC_BACKEND": "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.promise("command: Tutorial (ten minutes, local)")
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_every_step_does_what_the_page_says(tmp_path: Path) -> None:
    here, _, _ = PAGE.read_text().partition("## 6. On a cluster")
    told: dict[str, str] = {}
    job_id = ""
    for language, title, text in STEPS.findall(here):
        if language == "python":
            (tmp_path / title).write_text(text)
            continue
        for line in text.splitlines():
            if line.startswith("export "):
                assert line.split("#")[0].strip() == "export KINETIC_BACKEND=local"
            elif not line.startswith(ALREADY):
                told[line.split("#")[0].strip()] = printed = run(line, tmp_path, job_id)
                job_id = printed.strip() if "--detach" in line else job_id
    assert told["python train.py"].splitlines()[-1] == "loss: 0.125"
    assert told["kinetic run train.py:train 5 rate=0.1"].splitlines()[-1].startswith("0.59")
    assert job_id in told["kinetic jobs list"]
    assert told["kinetic jobs logs JOB"].splitlines()[-1] == "step 4: loss 0.0312"
    assert told["kinetic jobs result JOB"] == "0.03125\n"
    assert "kinetic doctor" in told
