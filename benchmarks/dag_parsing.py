"""What a DAG of fifty `@task.kinetic` costs to parse against fifty `@task`: by turns, in fresh interpreters.

.venv-airflow/bin/python benchmarks/dag_parsing.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from measuring import Verdict, report, seconds

_TASKS = 50
_RUNS = 9
_FILE = """
from airflow.sdk import DAG, task

with DAG("parsed", schedule=None):
    for number in range({tasks}):

        @{decorator}
        def work(x):
            return x + 1

        work.override(task_id=f"work_{{number}}")(number)
"""


def measure() -> list[Verdict]:
    with TemporaryDirectory(prefix="kinetic-bench-") as folder:
        environment = {**os.environ, "AIRFLOW_HOME": folder}

        def parse(decorator: str) -> None:
            file = Path(folder, f"{decorator.partition('(')[0]}.py")
            file.write_text(_FILE.format(tasks=_TASKS, decorator=decorator))
            subprocess.run([sys.executable, file], env=environment, check=True)

        kinetic = 'task.kinetic(accelerator="tpu-v6e-8", timeout=3600)'
        parse("task")
        parse(kinetic)
        pairs = [(seconds(lambda: parse("task")), seconds(lambda: parse(kinetic))) for _ in range(_RUNS)]
        plain, ours = (median(taken) for taken in zip(*pairs, strict=True))
    note = f"{ours:.2f} s against {plain:.2f} s"
    return [Verdict(f"DAG of {_TASKS} @task.kinetic / of {_TASKS} @task", ours / plain, 1.2, "x", note)]


if __name__ == "__main__":
    sys.exit(report(measure()))
