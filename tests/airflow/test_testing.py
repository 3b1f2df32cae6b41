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


def test_the_guides_fixture_and_test_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (dag,) = (block for block in blocks if "def nightly()" in block and "def test_" not in block)
    (test,) = (block for block in blocks if "def test_nightly()" in block)
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "nightly.py").write_text(dag)
    (dags / "test_nightly.py").write_text(test)
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "KINETIC_"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(dags)],
        cwd=dags,
        env={
            **inherited,
            "AIRFLOW_HOME": str(tmp_path),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout
