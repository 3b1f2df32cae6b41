"""Task instances of a DAG run or a task that have or will have a job: three queries of the database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import or_, select

from airflow_provider.config import config
from airflow_provider.operators.kinetic import KineticOperator
from airflow_provider.records import EARLIER_KEY, KEY, JobRecord, earlier_from_value
from airflow_provider.ui.rows import Instance

_Place = tuple[str, str, str, int]
"""Key of an XCom, id of a run and of a task, and map index."""


class Subject(NamedTuple):
    """Subject of a query: a DAG run, or with `run_id` "" a task in the latest runs."""

    dag_id: str
    run_id: str
    task_id: str = ""


def instances(subject: Subject) -> list[Instance]:
    """Return task instances by run, the newest first, task and map index; none for an unknown subject.

    An XCom that is no record, or names a job that the task instance cannot have started, counts as none.
    Airflow's own decoding of XComs is not used: it may build objects.
    """
    with create_session(scoped=False) as session:
        runs = [subject.run_id] if subject.run_id else list(session.scalars(_latest(subject.dag_id)))
        records, rows = _queries(subject, runs)
        told = {
            (each.key, each.run_id, each.task_id, each.map_index): each.value
            for each in session.execute(records)
        }
        found = [_instance(subject.dag_id, each, told) for each in session.execute(rows)]
    place = {run_id: number for number, run_id in enumerate(runs)}
    return sorted(found, key=lambda each: place[each.run_id])


def _latest(dag_id: str) -> Any:
    run = DagRun.__table__.c
    return select(run.run_id).where(run.dag_id == dag_id).order_by(run.id.desc()).limit(config().page_runs)


def _queries(subject: Subject, runs: Sequence[str]) -> tuple[Any, Any]:
    """Return the queries of the tasks' records and of the task instances."""
    ti, xcom = TaskInstance.__table__.c, XComModel.__table__.c
    records = select(xcom.run_id, xcom.task_id, xcom.map_index, xcom.key, xcom.value).where(
        xcom.dag_id == subject.dag_id, xcom.run_id.in_(runs), xcom.key.in_((KEY, EARLIER_KEY))
    )
    of_ours = or_(
        ti.custom_operator_name == KineticOperator.custom_operator_name,
        ti.task_id.in_(records.with_only_columns(xcom.task_id)),
    )
    rows = (
        select(ti.run_id, ti.task_id, ti.map_index, ti.rendered_map_index, ti.state, ti.try_number)
        .where(ti.dag_id == subject.dag_id, ti.run_id.in_(runs), of_ours)
        .order_by(ti.task_id, ti.map_index)
        .limit(config().page_task_instances)
    )
    if subject.task_id:
        records = records.where(xcom.task_id == subject.task_id)
        rows = rows.where(ti.task_id == subject.task_id)
    return records, rows


def _instance(dag_id: str, found: Any, told: Mapping[_Place, Any]) -> Instance:
    place = found.run_id, found.task_id, found.map_index
    record = JobRecord.from_value(_plain(told.get((KEY, *place))))
    started_by = None if record is None else record.started_by(dag_id, *place)
    return Instance(
        task_id=found.task_id,
        map_index=found.map_index,
        label=found.rendered_map_index or "",
        state=found.state or "no state",
        try_number=found.try_number or 0,
        record=None if started_by is None else record,
        job_try=started_by or 0,
        earlier=earlier_from_value(_plain(told.get((EARLIER_KEY, *place)))),
        run_id=found.run_id,
    )


def _plain(value: Any) -> Any:
    """Decode an XCom's JSON, which Airflow before 3.2 also stores as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None
