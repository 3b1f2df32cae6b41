"""PyTorch's DataLoader with worker processes, over a dataset of the job's own module."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.examples

DATASET = """
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index * index


def batch_of(items):
    return sum(items)


def total(start_method):
    loader = DataLoader(
        Squares(), batch_size=5, num_workers=2, collate_fn=batch_of, multiprocessing_context=start_method
    )
    return sum(loader)
"""
CALL = """
import sys

import kinetic_core

if __name__ == "__main__":
    print(kinetic_core.run(accelerator="cpu")(total)(sys.argv[1]))
"""


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("place", ["script", "module"])
def test_workers_load_batches(tmp_path: Path, place: str, start_method: str) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "requirements.txt").write_text("")
    script = project / "train.py"
    if place == "script":
        script.write_text(textwrap.dedent(DATASET + CALL))
    else:
        (project / "squares.py").write_text(textwrap.dedent(DATASET))
        script.write_text("from squares import total\n" + textwrap.dedent(CALL))
    done = subprocess.run(
        [sys.executable, str(script), start_method],
        cwd=project,
        env={**os.environ, "KINETIC_BACKEND": "local", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == str(sum(number * number for number in range(20)))
