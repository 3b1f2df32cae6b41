"""Which blocks of Python are checked where, and what mypy says of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import needs_program
from tests.documents.pages import ROOT, Block, blocks

BLOCKS = blocks("python")
WITH_AIRFLOW = [block for block in BLOCKS if re.search(r"^from airflow|^def test_", block.text, re.MULTILINE)]
"""Those for a process with Airflow, tests of DAGs among them."""
WITH_JAX = [block for block in BLOCKS if re.search(r"^ *import jax", block.text, re.MULTILINE)]
_PLACES = [str(Path(sys.executable).parent), str(ROOT / ".venv" / "bin")]
_SETTINGS = """\
[mypy]
check_untyped_defs = True
follow_imports = silent

[mypy-google.*,kubernetes.*,numpy.*]
follow_imports = skip

[mypy-keras.*,keras_hub.*,etils.*]
ignore_missing_imports = True
"""


def write(chosen: list[Block], folder: Path) -> list[str]:
    """Each block as a module of its own; their names."""
    for block in chosen:
        (folder / f"{block.name}.py").write_text(block.text)
    return [block.name for block in chosen]


def _working_mypy(place: str) -> str | None:
    """Return the mypy in a directory, None if it does not start: it needs a newer `pathspec` than we do."""
    program = shutil.which("mypy", path=place)
    if program and subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0:
        return program
    return None


def misfits(chosen: list[Block], folder: Path) -> list[str]:
    """What mypy says against blocks, with the packages of this Python."""
    assert chosen
    program = next(filter(None, map(_working_mypy, _PLACES)), None)
    needs_program(program, "no mypy here and in .venv: the blocks' types were not checked")
    (folder / "mypy.ini").write_text(_SETTINGS)
    names = write(chosen, folder)
    cache = ROOT / ".mypy_cache" / Path(sys.prefix).name
    options = ["--config-file=mypy.ini", f"--cache-dir={cache}", f"--python-executable={sys.executable}"]
    done = subprocess.run(
        [str(program), *options, "--no-error-summary", *(f"{name}.py" for name in names)],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()
