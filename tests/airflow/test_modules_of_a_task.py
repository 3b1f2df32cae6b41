"""What a task passes of the provider: whoever follows its way has few files to read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.airflow

MOST = 20
"""Modules of the provider with code; a package that holds only a docstring is none."""
NEITHER = {"airflow_provider.get_provider_info", "airflow_provider.plugins.kinetic"}
"""What Airflow loads in every process, whether or not a task of ours runs there."""
LEGS = """
import ast, json, sys, time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from airflow.sdk import DAG
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow_provider.decorators.kinetic import kinetic

@kinetic(accelerator="cpu", backend="local", conn_id="here")
def count(number, go):
    while not Path(go).exists():
        time.sleep(0.1)
    return 2 * number

with DAG("legs", schedule=None) as dag:
    count(21, "")
operator = dag.get_task("count")
ti = SimpleNamespace(
    dag_id="legs", run_id="run", task_id="count", map_index=-1, max_tries=0, try_number=1,
    xcom_push=lambda **_: None, xcom_pull=lambda **_: None,
)
context = {"ti": ti, "dag_run": SimpleNamespace(start_date=datetime(2026, 1, 1, tzinfo=UTC))}
go = Path("go").absolute()
operator.python_callable, operator.op_args = count.function, [21, str(go)]
deferrals, value = 0, None
event = None
while value is None:
    try:
        if event is None:
            value = operator.execute(context)
        else:
            value = operator.execute_complete(context, event, 1)
    except TaskDeferred as deferred:
        go.touch()
        time.sleep(0.5)
        deferrals += 1
        trigger = deferred.trigger
        event = {
            "status": "ended", "reference": trigger.reference, "cursor": trigger.cursor,
            "deadline": None, "silent": False,
        }
for link in operator.operator_extra_links:
    link.get_link(operator, ti_key=None)

def has_code(module):
    body = ast.parse(Path(module.__file__).read_text()).body
    return any(not isinstance(each, ast.Expr) for each in body)

passed = [
    name for name, module in sys.modules.items()
    if name.partition(".")[0] == "airflow_provider" and has_code(module)
]
print(json.dumps({"passed": sorted(passed), "deferrals": deferrals, "value": value}))
"""


def test_a_task_passes_few_modules(tmp_path: Path) -> None:
    (tmp_path / "legs.py").write_text(LEGS)
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW_CONN_HERE": json.dumps({"conn_type": "kinetic", "extra": {"namespace": "lab"}}),
        "KINETIC_LOCAL_STORE": str(tmp_path / "kinetic"),
    }
    command = [sys.executable, "legs.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["value"] == 42
    assert told["deferrals"] >= 1
    assert len(set(told["passed"]) - NEITHER) <= MOST, told["passed"]
