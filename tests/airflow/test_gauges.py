"""A trigger counts the job it watches: among those that wait, by cause, then among those that run."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.connections import default_connections
from kinetic_core.counters import count
from kinetic_core.jobs.submit import Call, prepare, submit
from kinetic_core.options import RunOptions
from tests.airflow_provider.records_of_jobs import identity
from tests.airflow_provider.stats_client import Client

pytestmark = pytest.mark.airflow


def until_told(folder: str) -> None:
    while not Path(folder, "go").exists():
        time.sleep(0.01)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    from airflow_provider import telemetry as metrics
    from airflow_provider.triggers import kinetic as job

    made = Client(metrics.IN_TRIGGERS)
    monkeypatch.setitem(sys.modules, metrics.IN_TRIGGERS, made)
    monkeypatch.setattr(job._stats, "_client", None)  # as in a process that has measured nothing yet
    return made


@pytest.mark.promise("page: Waiting by reason, running")
@pytest.mark.promise("page: Watch re-lists")
def test_a_job_waits_runs_and_is_gone(client: Client, no_slot_is_free: Any, tmp_path: Path) -> None:
    from airflow_provider.triggers.kinetic import KineticJobTrigger

    who = replace(identity(), run_began=tmp_path.name)
    call, options = Call(until_told, (str(tmp_path),), {}), RunOptions.checked(accelerator="cpu")
    reference = submit(prepare(call, options, default_connections(), job_id=who.job_id()))
    trigger = KineticJobTrigger(reference.to_dict(), [], deferred_at=time.time() - 60)

    def told(name: str) -> list[tuple[Any, str | None]]:
        return [(value, tags.get("reason")) for value, tags in client.of(name)]

    async def reach(name: str, value: tuple[Any, str | None]) -> None:
        async with asyncio.timeout(60):
            while value not in told(name):
                await asyncio.sleep(0.02)

    async def scene() -> list[Any]:
        events = asyncio.ensure_future(_events(trigger))
        await reach("kinetic.jobs.waiting", (1, "WaitingForSlot"))
        no_slot_is_free()
        await reach("kinetic.jobs.running", (1, None))
        count("watch.relists", kind="Pod")
        (tmp_path / "go").touch()
        return await events

    (event,) = asyncio.run(scene())
    assert event.payload["status"] == "ended"
    assert told("kinetic.jobs.waiting")[-1] == (0, "WaitingForSlot")
    assert told("kinetic.jobs.running") == [(1, None), (0, None)]
    assert all(tags["hostname"] for _, tags in client.of("kinetic.jobs.running"))
    assert client.of("kinetic.watch.relists") == [(1, {"kind": "Pod"})]


async def _events(trigger: Any) -> list[Any]:
    return [event async for event in trigger.run()]
