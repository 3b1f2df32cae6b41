"""Tells how many steps SQLite takes for the page's queries about a run or task, beside more and more runs.

Run with `AIRFLOW_HOME` and `AIRFLOW__DATABASE__SQL_ALCHEMY_CONN` of a directory of its own: prints JSON, by
subject a list of the numbers of task instances and of steps, an item for each number of runs in `sys.argv`.
"""

from __future__ import annotations

import json
import sys
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow import settings
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import event, insert, text

from airflow_provider.operators.kinetic import KineticOperator
from airflow_provider.records import KEY
from airflow_provider.ui.instances import Subject, instances

TASKS = 40
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def add_run(connection: Any, number: int) -> None:
    """Add a run whose tasks are over, half of them with a job, each with a record and another XCom."""
    run_id, when = f"run-{number}", BEGAN + timedelta(hours=number)
    about = {"dag_id": "dag", "run_id": run_id}
    run = {"run_type": "manual", "state": "success", "logical_date": when, "run_after": when}
    dag_run_id = connection.execute(insert(DagRun).values(**about, **run)).inserted_primary_key[0]
    rows, told = [], []
    for index in range(TASKS):
        place = {**about, "task_id": f"task-{index}", "map_index": -1}
        operator = KineticOperator.custom_operator_name if index % 2 else "@task"
        ids = {"id": uuid.uuid4(), "pool": "default_pool", "pool_slots": 1, "try_number": 1, "max_tries": 0}
        rows.append({**place, **ids, "state": "success", "custom_operator_name": operator})
        keys = (KEY, "return_value") if index % 2 else ("return_value",)
        told += [{**place, "dag_run_id": dag_run_id, "key": key, "value": {}} for key in keys]
    connection.execute(insert(TaskInstance), rows)
    connection.execute(insert(XComModel), told)


class Steps:
    """Counts the steps of SQLite's machine, on every connection."""

    taken = 0

    def listen(self, made: Any, _: object) -> None:
        made.execute("PRAGMA foreign_keys=OFF")  # the versions of the DAG are not there
        made.set_progress_handler(self.count, 1)

    def count(self) -> None:
        self.taken += 1

    def of(self, subject: Subject) -> tuple[int, int]:
        """How many task instances are found, and in how many steps."""
        before = self.taken
        return len(instances(subject)), self.taken - before


def main() -> None:
    steps = Steps()
    settings.configure_orm()
    event.listen(settings.engine, "connect", steps.listen)
    import_all_models()
    Base.metadata.create_all(settings.engine)
    told: dict[str, list[tuple[int, int]]] = {"run": [], "task": [], "live": []}
    for runs in map(int, sys.argv[1:]):
        with settings.engine.begin() as connection:
            there = connection.execute(text("SELECT count(*) FROM dag_run")).scalar()
            for number in range(there, runs):
                add_run(connection, number)
        told["run"].append(steps.of(Subject("dag", "run-0")))
        told["task"].append(steps.of(Subject("dag", "", "task-1")))
        told["live"].append(steps.of(Subject()))
    print(json.dumps(told))


if __name__ == "__main__":
    main()
