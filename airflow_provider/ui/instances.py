"""Task instances with a job or a batch, now or later: three queries of the database, for any subject."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import func, null, or_, select, tuple_

from airflow_provider import batch_record
from airflow_provider.batch_record import BatchRecord
from airflow_provider.config import config
from airflow_provider.operators.batch import KineticBatchOperator
from airflow_provider.operators.kinetic import KineticOperator
from airflow_provider.records import BUILD_KEY, EARLIER_KEY, KEY, BuildWait, JobRecord, earlier_from_value
from airflow_provider.ui.rows import Instance, Times

_Place = tuple[str, str, str, str, int]
"""Key of an XCom, ids of a DAG, a run and a task, and map index."""
_KEYS = (KEY, EARLIER_KEY, BUILD_KEY, batch_record.KEY)
_OPERATORS = (KineticOperator.custom_operator_name, KineticBatchOperator.custom_operator_name)
_LIVE = ("queued", "running", "deferred")
"""States of task instances that hold or want a job now."""


class Subject(NamedTuple):
    """Subject of a query: a DAG run, without `run_id` a task in its latest runs, by default all that runs."""

    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""


def instances(subject: Subject) -> list[Instance]:
    """Return task instances by run, the newest first, task and map index; none for an unknown subject.

    An XCom that is no record, or names a job or a batch that the task instance cannot have started, counts as
    none.
    Airflow's own decoding of XComs is not used: it may build objects.
    """
    with create_session(scoped=False) as session:
        runs = [subject.run_id] if subject.run_id else list(session.scalars(_latest(subject.dag_id)))
        records, rows = _queries(subject, runs)
        told = {(each.key, *_place(each)): each.value for each in session.execute(records)}
        found = [_instance(each, told) for each in session.execute(rows)]
    place = {run_id: number for number, run_id in enumerate(runs)}
    return sorted(found, key=lambda each: place.get(each.run_id, 0))


def runnable_since(instance: Instance) -> float | None:
    """Return since when a task instance's latest try waited for its first worker only, None if unknown.

    That is, of a first try, when its run had begun and the tasks upstream had ended; a task whose trigger
    rule lets it begin earlier waits for those that had ended by then. Of a later one, when the try before
    had ended.
    """
    if instance.times.started is None:
        return None
    with create_session(scoped=False) as session:
        if instance.try_number > 1:
            return _seconds(session.scalar(_end_of_last_try(instance)))
        ti = TaskInstance.__table__.c
        of_run = ti.dag_id == instance.dag_id, ti.run_id == instance.run_id
        versions = select(ti.dag_version_id).where(*of_run, ti.task_id == instance.task_id)
        stored = session.scalar(
            select(SerializedDagModel).where(SerializedDagModel.dag_version_id.in_(versions)).limit(1)
        )
        run = DagRun.__table__.c
        began = session.scalar(
            select(run.start_date).where(run.dag_id == instance.dag_id, run.run_id == instance.run_id)
        )
        task = None if stored is None else stored.dag.task_dict.get(instance.task_id)
        if task is None or began is None:
            return None
        begun = datetime.fromtimestamp(instance.times.started, UTC)
        ended = session.scalar(
            select(func.max(ti.end_date)).where(
                *of_run, ti.task_id.in_(task.upstream_task_ids), ti.end_date <= begun
            )
        )
        return max(filter(None, map(_seconds, (began, ended))))


def _end_of_last_try(instance: Instance) -> Any:
    earlier = TaskInstanceHistory.__table__.c
    return select(func.max(earlier.end_date)).where(
        earlier.dag_id == instance.dag_id,
        earlier.run_id == instance.run_id,
        earlier.task_id == instance.task_id,
        earlier.map_index == instance.map_index,
        earlier.try_number == instance.try_number - 1,
    )


def _place(found: Any) -> tuple[str, str, str, int]:
    return found.dag_id, found.run_id, found.task_id, found.map_index


def _latest(dag_id: str) -> Any:
    run = DagRun.__table__.c
    return select(run.run_id).where(run.dag_id == dag_id).order_by(run.id.desc()).limit(config().page_runs)


def _queries(subject: Subject, runs: Sequence[str]) -> tuple[Any, Any]:
    """Return the queries of the tasks' records and of the task instances.

    Records are found by the number of their run, which the primary key of XComs begins with: no other index
    of theirs tells the XComs of one run from those of all runs of a DAG. SQLite, which keeps no statistics,
    prefers the index of keys, and the index of task instances that is in the rows' order; both read all
    runs. So the key and the order are expressions, for which there is no index.
    """
    ti, xcom, run = TaskInstance.__table__.c, XComModel.__table__.c, DagRun.__table__.c
    records = select(xcom.dag_id, xcom.run_id, xcom.task_id, xcom.map_index, xcom.key, xcom.value).where(
        func.coalesce(xcom.key, "").in_(_KEYS)
    )
    rows = select(
        *(ti.dag_id, ti.run_id, ti.task_id, ti.map_index),
        *(ti.rendered_map_index, ti.state, ti.try_number, ti.pool),
        *(ti.scheduled_dttm, ti.queued_dttm, ti.start_date, ti.end_date),
        ti.get("retry_delay_override", null()).label("retry_delay"),  # Airflow 3.3 and newer
    )
    if subject.dag_id:
        wanted = select(run.id).where(run.dag_id == subject.dag_id, run.run_id.in_(runs))
        records = records.where(xcom.dag_run_id.in_(wanted))
        rows = rows.where(ti.dag_id == subject.dag_id, ti.run_id.in_(runs))
    else:
        live = select(run.id, ti.task_id, ti.map_index).where(
            ti.state.in_(_LIVE), run.dag_id == ti.dag_id, run.run_id == ti.run_id
        )
        records = records.where(tuple_(xcom.dag_run_id, xcom.task_id, xcom.map_index).in_(live))
        rows = rows.where(ti.state.in_(_LIVE))
    of_ours = or_(
        ti.custom_operator_name.in_(_OPERATORS),
        tuple_(ti.dag_id, ti.task_id).in_(records.with_only_columns(xcom.dag_id, xcom.task_id)),
    )
    order = func.coalesce(ti.dag_id, ""), func.coalesce(ti.task_id, ""), ti.map_index
    rows = rows.where(of_ours).order_by(*order).limit(config().page_task_instances)
    if subject.task_id:
        records = records.where(xcom.task_id == subject.task_id)
        rows = rows.where(ti.task_id == subject.task_id)
    return records, rows


def _instance(found: Any, told: Mapping[_Place, Any]) -> Instance:
    place = _place(found)
    record = JobRecord.from_value(_plain(told.get((KEY, *place))))
    started_by = None if record is None else record.started_by(*place)
    batch = BatchRecord.from_value(_plain(told.get((batch_record.KEY, *place))))
    build = BuildWait.from_value(_plain(told.get((BUILD_KEY, *place))))
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
        dag_id=found.dag_id,
        batch=batch if batch is not None and batch.is_of(*place) else None,
        pool=found.pool or "",
        build=build if build is not None and build.try_number == found.try_number else None,
        times=_times(found),
    )


def _times(found: Any) -> Times:
    told = found.scheduled_dttm, found.queued_dttm, found.start_date, found.end_date
    times = Times(*map(_seconds, told))
    if times.ended is None or found.retry_delay is None:
        return times
    return replace(times, next_try=times.ended + found.retry_delay)


def _seconds(when: datetime | None) -> float | None:
    return None if when is None else when.timestamp()


def _plain(value: Any) -> Any:
    """Decode an XCom's JSON, which Airflow before 3.2 also stores as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None
