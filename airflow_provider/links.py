"""The buttons of a task in Airflow's UI. Airflow asks for their links on the worker, at every leg's end."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperatorLink

from airflow_provider import addresses


class WorkloadLink(BaseOperatorLink):
    """The Job in Google's console."""

    name = "Job"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """ "" where there is no such page, or no job yet."""
        del ti_key
        return addresses.workload(operator.job) if operator.job else ""


class LogsLink(BaseOperatorLink):
    """The Job's lines in Logs Explorer."""

    name = "Job logs"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """As for the Job."""
        del ti_key
        return addresses.logs(operator.job) if operator.job else ""


class OutputsLink(BaseOperatorLink):
    """What the job leaves behind."""

    name = "Outputs"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """A page of Google's console, or a directory of the worker's machine."""
        del ti_key
        return addresses.outputs(operator.job) if operator.job else ""
