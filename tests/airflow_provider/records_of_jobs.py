"""Task instances with jobs, as many as a test needs."""

from __future__ import annotations

from typing import Any

from airflow_provider.access import Access
from airflow_provider.job_of_task import TaskIdentity
from airflow_provider.records import JobEnd, JobRecord
from airflow_provider.ui.rows import Instance
from kinetic_core.job import JobReference, JobStatus
from kinetic_core.jobs.phases import Phase

DAG, RUN = "nightly", "manual__2026-01-01T00:00:00+00:00"


def identity(task_id: str = "train", map_index: int = -1, try_number: int = 1) -> TaskIdentity:
    return TaskIdentity(DAG, RUN, "2026-01-01T00:00:01+00:00", task_id, map_index, try_number)


def reference(job_id: str, **others: Any) -> JobReference:
    fields: dict[str, Any] = {
        "job_id": job_id,
        "backend": "gke",
        "project": "",
        "cluster_name": "",
        "zone": "",
        "namespace": "default",
        "bucket_name": "",
        "k8s_name": f"kinetic-{job_id}",
        "image_uri": "python:3.12",
        "accelerator": "tpu-v6e-8",
        "func_name": "train",
        "display_name": "train",
        "created_at": "2026-01-01T00:00:02Z",
        "store_uri": "memory://jobs",
        "spec_digest": "d1",
        **others,
    }
    return JobReference(**fields)


def ended(status: JobStatus = JobStatus.SUCCEEDED, failure_class: str = "") -> JobEnd:
    phases = (Phase("queue", 0, 1767225602.0, 3.0), Phase("function", 0, 1767225605.0, 60.0))
    return JobEnd(status, "Completed", "the outcome is committed", failure_class, 1, phases)


def record(map_index: int = -1, end: JobEnd | None = None, conn_id: str = "", **others: Any) -> JobRecord:
    who = identity(map_index=map_index)
    return JobRecord.of(who, reference(who.job_id(), **others), end, Access(conn_id))


def instance(
    map_index: int = -1, state: str = "deferred", end: JobEnd | None = None, **others: Any
) -> Instance:
    return Instance("train", map_index, "", state, 1, record(map_index, end, **others))
