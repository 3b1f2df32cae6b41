"""The documented examples of keras-kinetic, rewritten, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "from_keras_kinetic"
PLAIN = {
    "first_run.py": "hello world\nraised there, caught here: who?",
    "async_jobs.py": (
        "value 0.3333333333333333\nlog epoch 2\nafter cleanup NOT_FOUND\nlisted True\nafter cancel NOT_FOUND"
    ),
    "collections_of_jobs.py": (
        "ended [0, 1, 2]\nfailed [2] partial [0.2, 0.2, None]\nkinds ['float', 'float', 'ValueError']"
    ),
    "data_and_outputs.py": "argument 3\nvolume 3\noutputs True",
    "mixed_accelerators.py": "error 5.0",
}
WITH_FRAMEWORKS = {
    "checkpoints_orbax.py": "first (0, 3.0)\nsecond (3, 5.0)",
    "checkpoints_keras.py": "first (False, 1)\nsecond (True, 2)",
}


def printed(name: str, **settings: str) -> str:
    """What an example prints itself; lines of its jobs are left out."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    return "\n".join(line for line in lines if not line.startswith(("running on ", "epoch ", "kinetic: ")))


def test_every_example_has_a_test() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == PLAIN.keys() | WITH_FRAMEWORKS.keys()


@pytest.mark.parametrize("name", PLAIN)
def test_on_this_machine(name: str) -> None:
    assert printed(name, KINETIC_BACKEND="local") == PLAIN[name]


@pytest.mark.examples
@pytest.mark.parametrize("name", WITH_FRAMEWORKS)
def test_with_frameworks_on_this_machine(name: str) -> None:
    assert printed(name, KINETIC_BACKEND="local") == WITH_FRAMEWORKS[name]
