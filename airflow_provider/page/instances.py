"""The task instances of a DAG run that have, or will have, a job: two queries of Airflow's database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import or_, select

from airflow_provider.operators.kinetic import KineticOperator
from airflow_provider.page.rows import Instance
from airflow_provider.records import EARLIER_KEY, KEY, JobRecord, earlier_from_value

MOST = 20_000
"""Task instances of one run that are looked at."""

_Place = tuple[str, str, int]
"""An XCom's key, a task's id and a map index."""


def instances(dag_id: str, run_id: str) -> list[Instance]:
    """In the order of tasks and map indexes; empty for a run that is not there.

    An XCom that is no record, or names a job that the task instance cannot have started, counts as none.
    Airflow's own decoding of XComs is not used: it may build objects.
    """
    ti, xcom = TaskInstance.__table__.c, XComModel.__table__.c
    records = select(xcom.task_id, xcom.map_index, xcom.key, xcom.value).where(
        xcom.dag_id == dag_id, xcom.run_id == run_id, xcom.key.in_((KEY, EARLIER_KEY))
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
        told = {(each.key, each.task_id, each.map_index): each.value for each in session.execute(records)}
        found = list(session.execute(rows))
    return [_instance(dag_id, run_id, each, told) for each in found]


def _instance(dag_id: str, run_id: str, found: Any, told: Mapping[_Place, Any]) -> Instance:
    place = found.task_id, found.map_index
    record = JobRecord.from_value(_plain(told.get((KEY, *place))))
    started_by = None if record is None else record.started_by(dag_id, run_id, *place)
    return Instance(
        task_id=found.task_id,
        map_index=found.map_index,
        label=found.rendered_map_index or "",
        state=found.state or "no state",
        try_number=found.try_number or 0,
        record=None if started_by is None else record,
        job_try=started_by or 0,
        earlier=earlier_from_value(_plain(told.get((EARLIER_KEY, *place)))),
    )


def _plain(value: Any) -> Any:
    """As Airflow before 3.2 stores it, too: as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None
