"""Buttons of a task in Airflow's UI. Airflow asks for their links on the worker, at every leg's end."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperatorLink

from kinetic_core.jobs import addresses


class WorkloadLink(BaseOperatorLink):
    """Link to the Job in Google's console."""

    name = "Job"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address; "" if there is no such page, or no job yet."""
        del ti_key
        return addresses.workload(operator.job) if operator.job else ""


class LogsLink(BaseOperatorLink):
    """Link to the job's lines in Logs Explorer."""

    name = "Job logs"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address; "" if there is no such page, or no job yet."""
        del ti_key
        return addresses.logs(operator.job) if operator.job else ""


class OutputsLink(BaseOperatorLink):
    """Link to the job's outputs."""

    name = "Outputs"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return a page of Google's console, or a directory of the worker's machine."""
        del ti_key
        return addresses.outputs(operator.job) if operator.job else ""
