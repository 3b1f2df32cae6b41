"""Users can test their DAGs: the guide's fixture and test, run by pytest as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.airflow
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "airflow.md"


@pytest.mark.promise("airflow: `dag.test()` with the local backend; documented fixture")
def test_the_guides_fixture_and_test_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    for name, sign in (
        ("nightly", "\nnightly()"),
        ("conftest", "def on_this_machine("),
        ("test_nightly", "def test_"),
    ):
        (block,) = (block for block in blocks if sign in block)
        (tmp_path / f"{name}.py").write_text(block)
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "KINETIC_"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**inherited, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout
