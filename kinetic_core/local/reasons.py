"""Why a job of this machine has not started: said in the Job's conditions, as a cluster says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinetic_core.cluster.names import WAITING_FOR_SLOT
from kinetic_core.local.record import is_over, is_waiting
from kinetic_core.local.slots import core_count


def with_reason(record: Mapping[str, Any]) -> dict[str, Any]:
    """The Job, saying what it waits for if it waits: its turn in a batch, or slots for its agent."""
    job: dict[str, Any] = record["job"]
    if is_waiting(record):
        limit = record["line"]["limit"]
        return _waiting(job, f"waiting for its turn: its batch runs {limit or 'all'} inputs at once")
    if record["pods"] or not record.get("agent") or job["status"].get("startTime") or is_over(record):
        return job
    return _waiting(job, f"waiting for a free CPU slot; this machine has {core_count()}")


def _waiting(job: Mapping[str, Any], message: str) -> dict[str, Any]:
    condition = {"type": WAITING_FOR_SLOT, "status": "True", "message": message}
    return {**job, "status": {**job["status"], "conditions": [condition]}}
