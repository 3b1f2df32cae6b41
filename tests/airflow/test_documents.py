"""The DAGs on the pages are ones that Airflow accepts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.pages import blocks

pytestmark = pytest.mark.airflow

DAGS = [block for block in blocks("python") if "\n@dag\n" in block.text]
EXECUTE = """
import json, runpy, sys
from airflow.sdk import DAG

def tasks(path):
    dags = [each for each in runpy.run_path(path).values() if isinstance(each, DAG)]
    return [task for dag in dags for task in dag.task_ids]

print(json.dumps({path: tasks(path) for path in sys.argv[1:]}))
"""


def test_every_dag_is_executed(tmp_path: Path) -> None:
    assert len(DAGS) >= 4
    for block in DAGS:
        # The DAG that a page's last line makes and drops stays in the module's names.
        before, _, call = block.text.rstrip().rpartition("\n")
        (tmp_path / f"{block.name}.py").write_text(f"{before}\nmade = {call}\n")
    names = [f"{block.name}.py" for block in DAGS]
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, *names], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found) == sorted(names)
    assert all("train" in tasks for tasks in found.values()), found
