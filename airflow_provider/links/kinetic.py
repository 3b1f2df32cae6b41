"""Button of a task in Airflow's UI. A worker stores its address at the end of each leg, by a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink

from kinetic_core.job import JobReference
from kinetic_core.jobs import addresses

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator


class JobLink(BaseOperatorLink):
    """Link to the Job in Google's console, or to the outputs of a job that has no page there.

    The page in Airflow's UI links to the log and the outputs as well.
    """

    name = "Job"

    def get_link(self, operator: BaseOperator, *, ti_key: object) -> str:
        """Return the address; "" if no job is known yet, or if nothing shows it."""
        del ti_key
        job = getattr(operator, "job", None)
        if not isinstance(job, JobReference):
            return ""
        return addresses.workload(job) or addresses.outputs(job)
