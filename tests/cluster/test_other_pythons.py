"""A submitter whose Python is not the image's: the job refuses before it reads a pickle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("gke")
ROOT = Path(__file__).parents[2]
PROGRAM = """
import kinetic_core
from kinetic_core.errors import JobMisconfigured
handle = kinetic_core.run(accelerator="cpu", retries=2)(lambda: 7).run_async()
try:
    print(handle.result(stream_logs=False, cleanup=False))
except JobMisconfigured as error:
    print(error)
print(handle.observe().attempt)
"""


def other_python() -> Path | None:
    """One that `make test-pythons` has made an environment for."""
    ours = ".".join(map(str, sys.version_info[:2]))
    found = sorted(ROOT.glob(".venv-3.*/bin/python"))
    return next((python for python in found if ours not in python.parts[-3]), None)


@pytest.mark.promise("data: Custom URI: contract checked at start, clear message")
@pytest.mark.promise("data: Wrong Python minor")
def test_a_job_of_another_python_is_refused_at_its_start() -> None:
    python = other_python()
    if python is None:
        pytest.skip("no environment of another Python: run `make test-pythons` first")
    version = python.parts[-3].removeprefix(".venv-")
    ran = subprocess.run(
        [python, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    told, attempt = ran.stdout.splitlines()[0], ran.stdout.splitlines()[-1]
    ours = ".".join(map(str, sys.version_info[:2]))
    assert version in told
    assert ours in told
    assert attempt == "0", "another attempt would be refused, too"
