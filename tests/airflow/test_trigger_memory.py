"""What a trigger keeps while its job goes on: a triggerer has thousands of them. No Airflow starts."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kinetic_core import JobStatus
from kinetic_core.backends.base import backend_of
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.connections import default_connections
from kinetic_core.job import JobObservation, JobReference
from kinetic_core.jobs.submit import Call, prepare, submit
from kinetic_core.jobs.watch import watch_for
from kinetic_core.options import RunOptions

pytestmark = pytest.mark.airflow


def until_told(folder: str) -> None:
    while not Path(folder, "go").exists():
        time.sleep(0.01)


def observations(count: int) -> list[JobObservation]:
    return [JobObservation(JobStatus.PENDING, f"Reason{number}", "") for number in range(count)]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.02)


def test_observations_arrive_in_their_order_from_any_thread() -> None:
    from airflow_provider.triggers.kinetic import News

    async def scene() -> None:
        news, told = News(), observations(4)
        await asyncio.to_thread(lambda: [news.tell(each) for each in told[:3]])
        assert [await news.next(60) for _ in range(3)] == told[:3]
        waiting = asyncio.ensure_future(news.next(float("inf")))
        await asyncio.sleep(0)
        await asyncio.to_thread(news.tell, told[3])
        assert await asyncio.wait_for(waiting, 60) == told[3]

    asyncio.run(scene())


def test_an_observation_that_comes_late_is_not_lost() -> None:
    from airflow_provider.triggers.kinetic import News

    async def scene() -> None:
        news, told = News(), observations(2)
        assert await news.next(0) is None
        assert await news.next(0.01) is None
        given_up = asyncio.ensure_future(news.next(float("inf")))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        for each in told:
            news.tell(each)
        assert [await news.next(60) for _ in told] == told

    asyncio.run(scene())


def test_an_observation_for_a_loop_that_has_ended_is_dropped() -> None:
    from airflow_provider.triggers.kinetic import News

    async def make() -> News:
        return News()

    asyncio.run(make()).tell(observations(1)[0])


def test_a_waiting_trigger_has_no_backend_of_its_own(local_jobs: Path, tmp_path: Path) -> None:
    """`asyncio.wait_for` has a second task for each, and a backend is all that it was made from."""
    from airflow_provider.triggers.kinetic import KineticJobTrigger

    call, options = Call(until_told, (str(tmp_path),), {}), RunOptions.checked(accelerator="cpu")
    connections = default_connections()
    references = [submit(prepare(call, options, connections)) for _ in range(4)]
    jobs = watch_for(backend_of(references[0], connections), references[0].namespace)

    async def waits_for(reference: JobReference) -> list[Any]:
        trigger = KineticJobTrigger(reference.to_dict(), [], deferred_at=time.time() - 60)
        return [event async for event in trigger.run()]

    def backends() -> int:
        gc.collect()
        return sum(isinstance(each, LocalBackend) for each in gc.get_objects())

    async def begun(some: list[JobReference]) -> list[Awaitable[list[Any]]]:
        waiting = [asyncio.ensure_future(waits_for(reference)) for reference in some]
        await until(lambda: {each.job_id for each in some} <= jobs.watched())
        await asyncio.sleep(0.5)  # until those who attach have let go of what they made
        return waiting

    async def scene() -> None:
        first = await begun(references[:1])
        backends_before, tasks_before = backends(), len(asyncio.all_tasks())
        others = await begun(references[1:])
        assert backends() == backends_before
        assert len(asyncio.all_tasks()) == tasks_before + len(others)
        (tmp_path / "go").touch()
        for (event,) in await asyncio.gather(*first, *others):
            assert event.payload["status"] == "ended"

    asyncio.run(scene())
