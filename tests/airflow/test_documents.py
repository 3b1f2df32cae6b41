"""The blocks on the pages that are for Airflow: it accepts the DAGs, and mypy the rest."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.pages import blocks
from tests.documents.typed import WITH_AIRFLOW, misfits

pytestmark = pytest.mark.airflow

DAGS = [block for block in blocks("python") if re.search(r"^@dag\b", block.text, re.MULTILINE)]
EXECUTE = """
import json, runpy, sys
from airflow.sdk import DAG

def dags(path):
    found = [each for each in runpy.run_path(path).values() if isinstance(each, DAG)]
    return {dag.dag_id: dag.task_ids for dag in found}

print(json.dumps({path: dags(path) for path in sys.argv[1:]}))
"""

OF_AIRFLOW = ('has incompatible type "XComArg"', 'has incompatible type "list[str]"; expected "str"')
"""Airflow's own types let no task's output stand for its value, and no list for the elements of a batch."""


def keeping(text: str) -> str:
    """The module, in whose names every DAG stays that a line of it makes and drops."""
    module = ast.parse(text)
    for number, line in enumerate(module.body):
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Call):
            module.body[number] = ast.Assign([ast.Name(f"made_{number}", ast.Store())], line.value)
    return ast.unparse(ast.fix_missing_locations(module))


@pytest.mark.promise("command: Every code block executed or type-checked: Python")
def test_every_dag_is_executed(tmp_path: Path) -> None:
    assert len(DAGS) >= 6
    for block in DAGS:
        (tmp_path / f"{block.name}.py").write_text(keeping(block.text))
    names = [f"{block.name}.py" for block in DAGS]
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, *names], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for block in DAGS:
        dags = found[f"{block.name}.py"]
        assert list(dags) == re.findall(r"^@dag\b.*\ndef (\w+)", block.text, re.MULTILINE)
        ours = re.findall(r"@task\.kinetic.*\n +def (\w+)", block.text)
        assert {*ours} <= {task_id for task_ids in dags.values() for task_id in task_ids}
        assert all(dags.values())


@pytest.mark.promise("airflow: … and typed")
@pytest.mark.promise("command: Every code block executed or type-checked: Python")
def test_types_fit_airflows(tmp_path: Path) -> None:
    (tmp_path / "nightly.py").write_text("from airflow.sdk import DAG\n\ndef nightly() -> DAG: ...\n")
    (tmp_path / "training.py").write_text("def fit(day: str) -> dict[str, float]: ...\n")
    told = misfits(WITH_AIRFLOW, tmp_path)
    assert [line for line in told if not any(words in line for words in OF_AIRFLOW)] == []
