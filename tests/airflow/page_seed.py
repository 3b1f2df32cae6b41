"""Writes what a run of the page's DAGs would have left: states, records, and a job that is alive.

Run with the settings of the Airflow under test: `python page_seed.py DAG_ID RUN_ID ...`.
"""

from __future__ import annotations

import json
import random
import sys
import time
from dataclasses import asdict, replace

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from page_names import BUILD_PAGE, CORPUS, HTML, INPUTS, LIVE, SILENT_BUCKET, UNREACHABLE
from sqlalchemy import bindparam, select

from airflow_provider import batch_record
from airflow_provider.access import Access
from airflow_provider.batch_of_task import batch_id
from airflow_provider.batch_record import BatchRecord, Cause
from airflow_provider.job_of_task import TaskIdentity
from airflow_provider.records import (
    BUILD_KEY,
    EARLIER_KEY,
    KEY,
    BuildWait,
    EarlierJob,
    JobEnd,
    JobRecord,
    earlier_to_value,
)
from kinetic_core._runner.indexes import format_indexes
from kinetic_core.backends.base import open_backend
from kinetic_core.connections import Connections, default_connections
from kinetic_core.job import JobReference, JobStatus
from kinetic_core.jobs.phases import Phase
from kinetic_core.jobs.submit import Call, prepare, submit
from kinetic_core.options import RunOptions

ALIVE, FOREIGN, FORGED, CONNECTED, GONE, AGAIN = 0, 2, 3, 6, 8, 9
BUILT, BUILDING, SCHEDULED = 1, (991, 992, 993), 999
BUILD = BuildWait(1, 1767225000.0, 1767225300.0, 1767225312.0)
"""Map indexes: a job that runs, one of another deployment, a record with another task's job, one whose
connection leads elsewhere, one whose connection is not there, one that failed in the try before; with a build
that is over, with builds that go on, and one that waits for a slot of its pool.
"""
COLUMNS = {"state": "new", "try_number": "number", "rendered_map_index": "label"}
SHAPES = ("tpu-v6e-8", "tpu-v5e-16", "gpu-l4-1")


FAILED = EarlierJob(1, "job-of-the-first-try", "FAILED", "user error", f"ValueError: {HTML}")


def work(text: str) -> None:
    print(text)
    print("epoch 1: loss 0.31", flush=True)
    while True:
        time.sleep(1)


def started(identity: TaskIdentity) -> JobReference:
    options = RunOptions.checked(accelerator="tpu-v6e-8", backend="local")
    return submit(prepare(Call(work, (HTML,), {}), options, default_connections(), job_id=identity.job_id()))


def end_of(index: int, chance: random.Random) -> JobEnd:
    lengths = {
        "queue": 2,
        "scheduling": 9,
        "scale-up": 45,
        "image": 20,
        "start": 4,
        "function": 120,
        "result": 1,
    }
    phases, at = [], 1767225600.0
    for name, mean in lengths.items():
        seconds = mean * chance.uniform(0.3, 1.7)
        phases.append(Phase(name, 0, at, seconds))
        at += seconds
    if index % 9 == 4:
        text = f"ValueError: {HTML} in row {index}"
        return JobEnd(JobStatus.FAILED, "Failed", text, "user error", 1, tuple(phases))
    if index % 50 == 7:
        text = "killed at 31.8 GiB of 32 GiB"
        return JobEnd(JobStatus.FAILED, "Failed", text, "out of memory", 0, tuple(phases))
    return JobEnd(JobStatus.SUCCEEDED, "Completed", "the outcome is committed", "", 0, tuple(phases))


def record_of(identity: TaskIdentity, template: JobReference, chance: random.Random) -> tuple[str, JobRecord]:
    """A task instance's state and record."""
    index = identity.map_index
    job_id = identity.job_id()
    own = replace(
        template,
        job_id=job_id,
        k8s_name=f"kinetic-{job_id}",
        accelerator=SHAPES[index % 3],
        output_dir="javascript:alert(1)" if index == 5 else f"gs://models/sweep/{index}",
    )
    if identity.dag_id == UNREACHABLE:
        there = replace(own, backend="gke", store_uri=f"gs://{SILENT_BUCKET}")
        end = None if index == 0 else end_of(index, chance)
        return "success" if end else "deferred", JobRecord.of(identity, there, end, Access("page_silent"))
    if index in (-1, ALIVE):
        return "deferred", JobRecord.of(identity, template)
    if index == FOREIGN:
        return "deferred", JobRecord.of(identity, replace(own, store_uri="gs://another-deployment"))
    if index in (CONNECTED, GONE):
        conn_id = "page_theirs" if index == CONNECTED else "page_gone"
        return "deferred", JobRecord.of(identity, replace(own, backend="gke"), access=Access(conn_id))
    if index == FORGED:
        return "success", JobRecord.of(identity, template)
    end = end_of(index, chance)
    state = "success" if end.status is JobStatus.SUCCEEDED else "failed"
    return state, JobRecord.of(identity, own, end)


def batch_of(identity: TaskIdentity, size: int) -> BatchRecord:
    """Record of a batch that has not ended."""
    own = batch_id(identity, 1)
    place = default_connections().settings
    told = {"job_id": own, "group_id": own, "func_name": "embed", "accelerator": "tpu-v6e-8"}
    told |= {"backend": "local", "namespace": "default", "created_at": "2026-01-01T00:00:00Z"}
    unset = dict.fromkeys(("project", "cluster_name", "zone", "bucket_name", "image_uri", "display_name"), "")
    store = open_backend("local", Connections(place)).store
    whole = JobReference.from_dict({**unset, **told, "k8s_name": own, "store_uri": store.uri})
    return BatchRecord(whole, size, identity.run_began, 1, 1)


def seed_batch(run_id: str) -> None:
    """Write that a task's batch has ended, and that another task had the same."""
    failed = list(range(5, INPUTS, 97))
    cause = Cause(f"ValueError: {HTML}", "user error", len(failed), tuple(failed[:10]))
    ended = {
        "failed": len(failed),
        "missing": format_indexes(failed),
        "causes": (cause,),
        "run_seconds": 3600.0,
        "seconds": 900.0,
        "waited": 60.0,
    }
    told = replace(batch_of(TaskIdentity(CORPUS, run_id, "began", "embed", -1, 1), INPUTS), **ended)
    ti, of_run = TaskInstance.__table__, {"dag_id": CORPUS, "run_id": run_id}
    with create_session() as session:
        run = session.scalars(select(DagRun.id).filter_by(**of_run)).one()
        place = {
            "dag_run_id": run,
            "map_index": -1,
            "key": batch_record.KEY,
            "value": told.to_dict(),
            **of_run,
        }
        rows = [{**place, "task_id": name} for name in ("embed", "forged")]
        connection = session.connection()
        connection.execute(ti.update().where(ti.c.dag_id == CORPUS).values(state="failed", try_number=1))
        connection.execute(XComModel.__table__.insert(), rows)


def in_cluster(run_id: str, index: int) -> JobRecord:
    """Record of a job that runs in the cluster of a connection."""
    identity = TaskIdentity(LIVE, run_id, "began", "train", index, 1)
    told = {"job_id": identity.job_id(), "func_name": "train", "accelerator": "tpu-v6e-8", "spec_digest": "d"}
    told |= {"backend": "gke", "namespace": "default", "created_at": "2026-01-01T00:00:00Z"}
    unset = dict.fromkeys(("project", "cluster_name", "zone", "bucket_name", "image_uri", "display_name"), "")
    names = {"k8s_name": f"kinetic-{identity.job_id()}", "store_uri": f"gs://{SILENT_BUCKET}"}
    return JobRecord.of(
        identity, JobReference.from_dict({**unset, **told, **names}), access=Access("page_silent")
    )


def seed_live(run_id: str) -> None:
    """Write that the job of each task instance runs."""
    ti, of_run = TaskInstance.__table__, {"dag_id": LIVE, "run_id": run_id}
    with create_session() as session:
        run = session.scalars(select(DagRun.id).filter_by(**of_run)).one()
        indexes = session.scalars(select(TaskInstance.map_index).filter_by(**of_run)).all()
        place = {"dag_run_id": run, "task_id": "train", "key": KEY, **of_run}
        records = [
            {**place, "map_index": each, "value": in_cluster(run_id, each).to_dict()} for each in indexes
        ]
        connection = session.connection()
        connection.execute(ti.update().where(ti.c.dag_id == LIVE).values(state="deferred", try_number=1))
        connection.execute(XComModel.__table__.insert(), records)


def seed(dag_id: str, run_id: str) -> None:
    if dag_id in (CORPUS, LIVE):
        (seed_batch if dag_id == CORPUS else seed_live)(run_id)
        return
    chance = random.Random(7)
    ti, of_run = TaskInstance.__table__, {"dag_id": dag_id, "run_id": run_id}
    with create_session() as session:
        run = session.scalars(select(DagRun.id).filter_by(**of_run)).one()
        indexes = session.scalars(select(TaskInstance.map_index).filter_by(**of_run)).all()
        of = TaskIdentity(dag_id, run_id, "began", "train", min(indexes), 1)
        alive = started(of)
        states, records = [], []
        for index in sorted(indexes):
            if max(index, 0) % 1000 <= 990:  # the others have not begun
                state, told = record_of(replace(of, map_index=index), alive, chance)
                label, number = HTML if index == 1 else None, 2 if index == AGAIN else 1
                states.append({"index": index, "new": state, "label": label, "number": number})
                place = {"dag_run_id": run, "task_id": "train", "map_index": index, **of_run}
                records.append({**place, "key": KEY, "value": told.to_dict()})
            if index in (BUILT, *BUILDING):
                build = BUILD if index == BUILT else BuildWait(1, 1767225000.0 + index, page=BUILD_PAGE)
                place = {"dag_run_id": run, "task_id": "train", "map_index": index, **of_run}
                records.append({**place, "key": BUILD_KEY, "value": asdict(build)})
            if index in BUILDING:
                states.append({"index": index, "new": "deferred", "label": None, "number": 1})
            if index == SCHEDULED:
                states.append({"index": index, "new": "scheduled", "label": None, "number": 0})
            if index == AGAIN:
                records.append({**place, "key": EARLIER_KEY, "value": earlier_to_value([FAILED])})
        mine = ti.update().where(
            ti.c.dag_id == dag_id, ti.c.run_id == run_id, ti.c.map_index == bindparam("index")
        )
        changes = {name: bindparam(told) for name, told in COLUMNS.items()}
        connection = session.connection()
        connection.execute(mine.values(**changes), states)
        connection.execute(XComModel.__table__.insert(), records)


def hand_over(dag_id: str, run_id: str, index: int) -> None:
    """Write that the image for which a task waited is built, and that its job has begun and ended since."""
    of = TaskIdentity(dag_id, run_id, "began", "train", index, 1)
    now, task = time.time(), {"dag_id": dag_id, "run_id": run_id, "task_id": "train"}
    with create_session() as session:
        alive = session.scalars(select(XComModel).filter_by(**task, map_index=ALIVE, key=KEY)).one()
        template = JobRecord.from_value(alive.value)
        assert template is not None
        state, told = record_of(of, template.reference, random.Random(7))
        wait = session.scalars(select(XComModel).filter_by(**task, map_index=index, key=BUILD_KEY)).one()
        built = {**wait.value, "ended": now - 9.0, "sent": now - 2.0, "resumed": now - 1.0}
        place = {**task, "dag_run_id": alive.dag_run_id, "map_index": index, "key": KEY}
        connection, xcom, ti = session.connection(), XComModel.__table__, TaskInstance.__table__
        mine = [ti.c[name] == value for name, value in (task | {"map_index": index}).items()]
        connection.execute(ti.update().where(*mine).values(state=state))
        of_build = [xcom.c[name] == value for name, value in (task | {"map_index": index}).items()]
        connection.execute(xcom.update().where(*of_build, xcom.c.key == BUILD_KEY).values(value=built))
        connection.execute(xcom.insert(), [{**place, "value": told.to_dict()}])


def set_batch(run_id: str, record: str) -> None:
    """Write that a task's batch goes on; `record` is that of it as JSON."""
    ti, xcom = TaskInstance.__table__, XComModel.__table__
    with create_session() as session:
        connection = session.connection()
        connection.execute(
            xcom.update()
            .where(xcom.c.run_id == run_id, xcom.c.task_id == "embed", xcom.c.key == batch_record.KEY)
            .values(value=json.loads(record))
        )
        connection.execute(
            ti.update().where(ti.c.run_id == run_id, ti.c.task_id == "embed").values(state="deferred")
        )


if __name__ == "__main__":
    if sys.argv[1] == "hand-over":
        hand_over(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        sys.exit()
    if sys.argv[1] == "batch":
        set_batch(sys.argv[2], sys.argv[3])
        sys.exit()
    for name, number in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        seed(name, number)
