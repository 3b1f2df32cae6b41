"""Users can test their DAGs: the guide's fixture and test, run by pytest as they stand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

pytestmark = pytest.mark.airflow
ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/airflow.md").read_text(), re.DOTALL)
RESERIALIZED = """

@pytest.fixture(scope="session", autouse=True)
def serialized_dags(airflow_database: None) -> None:
    subprocess.run([sys.executable, "-m", "airflow", "dags", "reserialize"], check=True)
"""
EXAMPLE = """
def test_{name}() -> None:
    from {name} import {name}

    assert {name}().test().state == "success"
"""


@pytest.mark.promise("airflow: `dag.test()` with the local backend; documented fixture")
def test_the_guides_fixture_and_test_pass(tmp_path: Path) -> None:
    write_block(tmp_path / "nightly.py", "\nnightly()")
    write_block(tmp_path / "test_nightly.py", "def test_")
    expect_that_its_test_passes(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fan_out", "batch_inference"])
def test_examples_in_one_process(tmp_path: Path, name: str) -> None:
    shutil.copy(ROOT / "example_dags" / f"{name}.py", tmp_path)
    (tmp_path / f"test_{name}.py").write_text(EXAMPLE.format(name=name))
    expect_that_its_test_passes(tmp_path)


def write_block(file: Path, sign: str) -> None:
    """Write the one code block of the guide that has `sign`."""
    (block,) = (block for block in BLOCKS if sign in block)
    file.write_text(block)


def expect_that_its_test_passes(dags: Path) -> None:
    """Run the tests of a directory of DAGs under the guide's `conftest.py`."""
    write_block(dags / "conftest.py", "def on_this_machine(")
    if version("apache-airflow-core") == "3.1.0":  # needs the DAG in the database, as the guide says
        (dags / "conftest.py").write_text((dags / "conftest.py").read_text() + RESERIALIZED)
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "KINETIC_"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=dags,
        env={**inherited, "XDG_CACHE_HOME": str(dags / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout
