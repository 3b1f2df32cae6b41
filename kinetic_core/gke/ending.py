"""The Jobs of one job, and how they are told to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kinetic_core.cluster.access import ClusterApi
from kinetic_core.cluster.informer import SELECTOR
from kinetic_core.cluster.names import CANCELLED, JOB_ID

Object = dict[str, Any]


def jobs_of(api: ClusterApi, namespace: str, job_id: str) -> list[Object]:
    """More than one only for the moment in which a job moves on to its next accelerator."""
    found: list[Object] = api.list("Job", namespace, {"labelSelector": f"{SELECTOR},{JOB_ID}={job_id}"})[
        "items"
    ]
    return found


def end_jobs(api: ClusterApi, jobs: Sequence[Object]) -> None:
    """Let those that were not told yet fail by their deadline, now: their pods get SIGTERM (ADR 0012)."""
    for job in jobs:
        about = job["metadata"]
        if CANCELLED in (about.get("annotations") or {}):
            continue
        body: Object = {
            "metadata": {"annotations": {CANCELLED: "true"}},
            # One that a queue has suspended has no deadline; its pods find the mark and run nothing.
            "spec": {"activeDeadlineSeconds": 1, "suspend": False},
        }
        api.patch("Job", about["namespace"], about["name"], body)
