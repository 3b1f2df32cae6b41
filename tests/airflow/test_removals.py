"""Removal of jobs whose tasks a trigger has ended. No Airflow starts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from kinetic_core.connections import Connections
from kinetic_core.job import JobReference
from kinetic_core.settings import Settings
from tests.kubernetes.manifests import reference

pytestmark = pytest.mark.airflow


def test_jobs_that_end_at_about_the_same_time_go_together() -> None:
    from airflow_provider.triggers.kinetic import Removals

    one, other = Connections(Settings()), Connections(Settings())
    jobs = [reference(job_id=f"job-{number:016x}") for number in range(7)]
    removed: list[tuple[Any, list[str]]] = []
    done = asyncio.Event()

    def remove(connections: Connections, references: Iterable[JobReference]) -> None:
        removed.append((connections, [each.job_id for each in references]))
        if sum(len(ids) for _, ids in removed) in (5, 7):
            loop.call_soon_threadsafe(done.set)

    async def scene() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        removals = Removals(0.01, remove)
        for job in jobs[:3]:
            removals.add(one, job)
        for job in jobs[3:5]:
            removals.add(other, job)
        await done.wait()
        done.clear()
        for job in jobs[5:]:  # while the first ones are removed, or after that
            removals.add(one, job)
        await done.wait()

    loop: Any = None
    asyncio.run(scene())
    ids = [job.job_id for job in jobs]
    assert removed == [(one, ids[:3]), (other, ids[3:5]), (one, ids[5:])]
