"""What a task passes of the provider: whoever follows its way has few files to read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.airflow

MOST = 21
"""Modules of the provider with code; a package that holds only a docstring is none."""
NEITHER = {"airflow_provider.get_provider_info", "airflow_provider.plugins.kinetic"}
"""What Airflow loads in every process, whether or not a task of ours runs there."""
LEGS = """
import ast, importlib, json, sys, time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from airflow.sdk import DAG
from airflow.providers.common.compat.sdk import TaskDeferred

OURS = ("airflow_provider", "kinetic_core")
for name in sys.argv[1:]:
    importlib.import_module(name)
before = set(sys.modules)
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
first_leg = set[str]()
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
        first_leg = first_leg or {name for name in set(sys.modules) - before if name.startswith(OURS)}
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
told = {"passed": sorted(passed), "deferrals": deferrals, "value": value, "first_leg": sorted(first_leg)}
print(json.dumps(told))
"""
LOADED = """
import json, sys
from airflow import plugins_manager
sys.argv[1:] = {arguments}
from airflow_provider.plugins.kinetic import KineticPlugin
KineticPlugin.on_load()
print(json.dumps("airflow_provider.preload" in sys.modules))
"""


SHARED = """
import json
import os
import threading

before = set(os.listdir("/proc/self/fd"))
import airflow_provider.preload

print(json.dumps([threading.active_count(), sorted(set(os.listdir("/proc/self/fd")) - before)]))
"""


def legs(tmp_path: Path, *preloaded: str) -> dict[str, Any]:
    """What a task's legs have told, run in a process that first imports what is to be preloaded."""
    (tmp_path / "legs.py").write_text(LEGS)
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW_CONN_HERE": json.dumps({"conn_type": "kinetic", "extra": {"namespace": "lab"}}),
        "KINETIC_LOCAL_STORE": str(tmp_path / "kinetic"),
    }
    command = [sys.executable, "legs.py", *preloaded]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["value"] == 42
    assert told["deferrals"] >= 1
    return told


def test_a_task_passes_few_modules(tmp_path: Path) -> None:
    told = legs(tmp_path)
    assert len(told["first_leg"]) > 50
    assert len(set(told["passed"]) - NEITHER) <= MOST, told["passed"]


def test_a_first_leg_imports_nothing_that_is_not_preloaded(tmp_path: Path) -> None:
    """So that a process that is forked for a task has all of it from its parent."""
    assert legs(tmp_path, "airflow_provider.preload")["first_leg"] == [
        "airflow_provider.plugins",
        "airflow_provider.plugins.kinetic",  # which every process has when Airflow has loaded its plugins
    ]


def test_preloading_leaves_nothing_that_a_fork_would_share(tmp_path: Path) -> None:
    """No thread, which a child would lack, and no open file or connection."""
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path / "airflow")}
    done = subprocess.run(
        [sys.executable, "-c", SHARED], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [1, []]


@pytest.mark.parametrize(
    ("arguments", "executor", "preloads"),
    [
        (["scheduler"], "LocalExecutor", True),
        (["scheduler", "--num-runs", "1"], "LocalExecutor,CeleryExecutor", True),
        (["scheduler"], "CeleryExecutor", False),
        (["dag-processor"], "CeleryExecutor", True),
        (["triggerer"], "LocalExecutor", False),
        (["api-server"], "LocalExecutor", False),
        ([], "LocalExecutor", False),
    ],
)
def test_only_a_parent_of_tasks_preloads(
    tmp_path: Path, arguments: list[str], executor: str, preloads: bool
) -> None:
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__EXECUTOR": executor,
    }
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(arguments=arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) is preloads
