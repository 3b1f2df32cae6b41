"""What the documents say can be run, and their links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    if "import kinetic_core" in block and "airflow" not in block
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_python_block_runs_as_it_stands(block: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "script.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
