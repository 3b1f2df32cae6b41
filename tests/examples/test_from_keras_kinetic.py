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
    "data_mounted.py": (
        "argument ['part-0.txt', 'part-1.txt']\nsingle file one two t\nvolume ['part-0.txt', 'part-1.txt']"
    ),
    "mixed_accelerators.py": "error 5.0",
}
WITH_FRAMEWORKS = {
    "checkpoints_orbax.py": "first (0, 3.0)\nsecond (3, 5.0)",
    "checkpoints_keras.py": "first (False, 1)\nsecond (True, 2)",
}
ON_A_CLUSTER = {
    "two_hosts_jax.py": (
        "backend pathways\nhosts and whether all devices added up (2, True)\n"
        "raised on host 1, caught here: no such shard"
    ),
    "hugging_face.py": "splits ['test', 'train']\nrows of the first 3 with ['label', 'text']",
}
"""What needs two hosts, or a stand-in of the Hugging Face Hub: tests/cluster runs these."""
PRINTED = {**PLAIN, **WITH_FRAMEWORKS, **ON_A_CLUSTER}


def printed(name: str, *arguments: str, **settings: str) -> str:
    """What an example prints itself; lines of its jobs, which may be warnings of libraries, are left out.

    Its project is the directory of these examples: jobs are not given the whole repository.
    """
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={**os.environ, "KINETIC_PACKAGE_ROOT": str(EXAMPLES), **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    own = {line.partition(" ")[0] for line in PRINTED[name].splitlines()}
    return "\n".join(line for line in done.stdout.splitlines() if line.partition(" ")[0] in own)


def test_every_example_has_a_test() -> None:
    there = {path.name for path in EXAMPLES.glob("*.py")}
    assert there == PRINTED.keys()


@pytest.mark.parametrize("name", PLAIN)
def test_on_this_machine(name: str, local_jobs: Path) -> None:
    assert printed(name, KINETIC_BACKEND="local") == PLAIN[name]


@pytest.mark.examples
@pytest.mark.parametrize("name", WITH_FRAMEWORKS)
def test_with_frameworks_on_this_machine(name: str) -> None:
    assert printed(name, KINETIC_BACKEND="local") == WITH_FRAMEWORKS[name]
