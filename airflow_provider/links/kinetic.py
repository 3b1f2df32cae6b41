"""Buttons of a task in Airflow's UI. Airflow asks for their links on the worker, at every leg's end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink

from kinetic_core.job import JobReference
from kinetic_core.jobs import addresses

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator


class WorkloadLink(BaseOperatorLink):
    """Link to the Job in Google's console."""

    name = "Job"

    def get_link(self, operator: BaseOperator, *, ti_key: object) -> str:
        """Return the address; "" if there is no such page, or no job yet."""
        del ti_key
        job = _job_of(operator)
        return addresses.workload(job) if job else ""


class LogsLink(BaseOperatorLink):
    """Link to the job's lines in Logs Explorer."""

    name = "Job logs"

    def get_link(self, operator: BaseOperator, *, ti_key: object) -> str:
        """Return the address; "" if there is no such page, or no job yet."""
        del ti_key
        job = _job_of(operator)
        return addresses.logs(job) if job else ""


class OutputsLink(BaseOperatorLink):
    """Link to the job's outputs."""

    name = "Outputs"

    def get_link(self, operator: BaseOperator, *, ti_key: object) -> str:
        """Return a page of Google's console, or a directory of the worker's machine."""
        del ti_key
        job = _job_of(operator)
        return addresses.outputs(job) if job else ""


def _job_of(operator: object) -> JobReference | None:
    """Return the job of a task of ours, as far as this worker knows one."""
    job = getattr(operator, "job", None)
    return job if isinstance(job, JobReference) else None
