"""Triggers that break: one while its job runs, one when the job has ended, and one of a batch."""

from __future__ import annotations

from collections.abc import AsyncIterator

from airflow.triggers.base import TriggerEvent

from airflow_provider.triggers.batch import KineticBatchTrigger
from airflow_provider.triggers.kinetic import KineticJobTrigger


class BreaksAtOnce(KineticJobTrigger):
    async def run(self) -> AsyncIterator[TriggerEvent]:
        await self._hold()
        raise RuntimeError("this trigger breaks")
        yield  # what makes it a generator


class BreaksInTheEnd(KineticJobTrigger):
    async def run(self) -> AsyncIterator[TriggerEvent]:
        async for _ in super().run():
            raise RuntimeError("this trigger breaks in the end")
        yield


class BatchBreaks(KineticBatchTrigger):
    async def run(self) -> AsyncIterator[TriggerEvent]:
        await self._hold()
        raise RuntimeError("this trigger breaks")
        yield  # what makes it a generator
