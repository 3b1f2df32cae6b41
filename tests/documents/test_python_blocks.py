"""Every block of Python on the pages is right: those for this machine are run, the others type-checked.

Those with something of Airflow's are executed and checked by `tests/airflow`, those with jax checked by
`tests/examples`: there these are installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.pages import ROOT, Block
from tests.documents.typed import BLOCKS, WITH_AIRFLOW, WITH_JAX, misfits, write

OURS = [block for block in BLOCKS if "kinetic_core" in block.text and "airflow" not in block.text]
FOR_THIS_MACHINE = [
    block for block in OURS if 'backend="local"' in block.text or "kinetic_core.testing" in block.text
]
FOR_A_CLUSTER = [block for block in OURS if block not in FOR_THIS_MACHINE]
NOT_RUN = [block for block in BLOCKS if block not in (*FOR_THIS_MACHINE, *WITH_AIRFLOW, *WITH_JAX)]


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def as_users(local_jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without settings but a store that exists: making one takes longer than most blocks do."""
    monkeypatch.delenv("KINETIC_BACKEND")
    monkeypatch.delenv("KINETIC_PACKAGE_ROOT")


@pytest.mark.promise("command: Every code block executed or type-checked: Python")
@pytest.mark.parametrize("block", FOR_THIS_MACHINE, ids=lambda block: block.name)
def test_a_block_for_this_machine_runs(block: Block, tmp_path: Path, as_users: None) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "script.py").write_text(block.text)
    done = run("script.py", folder=project)
    assert done.returncode == 0, done.stderr


def test_the_definitions_of_a_block_for_a_cluster_are_accepted(tmp_path: Path) -> None:
    names = write(FOR_A_CLUSTER, tmp_path)
    done = run("-c", "\n".join(f"import {name}" for name in names), folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.promise("command: Every code block executed or type-checked: Python")
def test_what_is_not_run_passes_mypy(tmp_path: Path) -> None:
    assert misfits(NOT_RUN, tmp_path) == []
