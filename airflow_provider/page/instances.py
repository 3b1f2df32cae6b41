"""The task instances of a DAG run that have, or will have, a job: two queries of Airflow's database."""

from __future__ import annotations

import json
from typing import Any

from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import or_, select

from airflow_provider.operators.kinetic import KineticOperator
from airflow_provider.page.rows import Instance
from airflow_provider.records import KEY, JobRecord

MOST = 20_000
"""Task instances of one run that are looked at."""

_Place = tuple[str, int]
"""A task's id and a map index."""


def instances(dag_id: str, run_id: str) -> list[Instance]:
    """In the order of tasks and map indexes; empty for a run that is not there.

    An XCom that is no record, or names a job that the task instance cannot have started, counts as none.
    Airflow's own decoding of XComs is not used: it may build objects.
    """
    ti, xcom = TaskInstance.__table__.c, XComModel.__table__.c
    records = select(xcom.task_id, xcom.map_index, xcom.value).where(
        xcom.dag_id == dag_id, xcom.run_id == run_id, xcom.key == KEY
    )
    of_ours = or_(
        ti.custom_operator_name == KineticOperator.custom_operator_name,
        ti.task_id.in_(records.with_only_columns(xcom.task_id)),
    )
    rows = (
        select(ti.task_id, ti.map_index, ti.rendered_map_index, ti.state, ti.try_number)
        .where(ti.dag_id == dag_id, ti.run_id == run_id, of_ours)
        .order_by(ti.task_id, ti.map_index)
        .limit(MOST)
    )
    with create_session(scoped=False) as session:
        told = {(each.task_id, each.map_index): each.value for each in session.execute(records)}
        found = list(session.execute(rows))
    return [
        Instance(
            task_id=each.task_id,
            map_index=each.map_index,
            label=each.rendered_map_index or "",
            state=each.state or "no state",
            try_number=each.try_number or 0,
            record=_record(dag_id, run_id, (each.task_id, each.map_index), told),
        )
        for each in found
    ]


def _record(dag_id: str, run_id: str, place: _Place, told: dict[_Place, Any]) -> JobRecord | None:
    value = told.get(place)
    if isinstance(value, str):  # as Airflow before 3.2 stores it
        try:
            value = json.loads(value)
        except ValueError:
            return None
    record = JobRecord.from_value(value)
    return record if record is not None and record.belongs_to(dag_id, run_id, *place) else None
