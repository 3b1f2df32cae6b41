"""What this machine keeps of a job, and of those of a batch."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count

from kinetic_core.cluster.names import DROPPED
from kinetic_core.local.layout import Layout
from kinetic_core.local.record import end_waiting


def job_ids(layout: Layout, namespace: str, group_id: str) -> list[str]:
    """Those of a batch, in the order of its inputs; none if all was removed."""
    prefix, suffix = f"{group_id}-", ".json"
    try:
        names = os.listdir(layout.cluster(namespace))
    except FileNotFoundError:
        return []
    records = (name for name in names if name.startswith(prefix) and name.endswith(suffix))
    numbers = (name[len(prefix) : -len(suffix)] for name in records)
    return [f"{prefix}{number}" for number in sorted(int(each) for each in numbers if each.isdigit())]


def forget(layout: Layout, namespace: str, job_id: str) -> None:
    """Remove the record and the logs of a job that has ended. Its lock stays."""
    with suppress(FileNotFoundError):
        os.unlink(layout.record(namespace, job_id))
    with suppress(FileNotFoundError):
        for attempt in count():
            os.unlink(layout.log(job_id, attempt))


def drop_waiting(layout: Layout, namespace: str, group_id: str) -> None:
    """End a batch's jobs that wait for their turn; not one that is being started just now."""
    for job_id in job_ids(layout, namespace, group_id):
        path, lock = layout.record(namespace, job_id), layout.lock(namespace, job_id)
        end_waiting(path, lock, DROPPED, "not started: its batch was stopped")
