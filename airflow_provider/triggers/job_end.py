"""Trigger that waits for the end of a job that is not its task's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Unpack

from airflow.triggers.base import TriggerEvent

from airflow_provider.access import Access, GoogleKeywords
from airflow_provider.threads import in_thread
from airflow_provider.triggers.base import ConnectedTrigger, NoConnection, ShortEvent
from kinetic_core.client import Client
from kinetic_core.connections import Connections
from kinetic_core.errors import CloudError, ClusterError, StoreError
from kinetic_core.job import JobObservation
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.observe import watch


class KineticJobEndTrigger(ConnectedTrigger):
    """Trigger that fires once: when a job has ended or cannot be found, or at `deadline` (Unix seconds).

    The job belongs to somebody else, so nothing that happens to the task or to this trigger cancels it.
    """

    def __init__(
        self,
        job_id: str,
        deferred_at: float,
        deadline: float | None = None,
        conn_id: str | None = None,
        **google: Unpack[GoogleKeywords],
    ) -> None:
        super().__init__(deferred_at, deadline, Access.of(conn_id, **google))
        self.job_id = job_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and arguments with which another triggerer continues."""
        return self._named(job_id=self.job_id)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, then yield one event: the job has "ended", or "timeout"."""
        try:
            job = await self._found(await self._client())
        except NoConnection as error:
            self.log.warning("%s cannot be found: %s", self.job_id, error)
            job = None
        if job is not None:
            self.log.info("no worker is held while %s runs", self.job_id)
            await self._until_end(job)
        await self._hold()
        status = "ended" if self.remaining > 0 else "timeout"
        yield ShortEvent({"status": status, "reference": {"job_id": self.job_id}, "deadline": self.deadline})

    async def _found(self, connections: Connections) -> JobHandle | None:
        """Return the job's handle, None if a worker must say what is wrong. An outage is waited for."""
        while self.remaining > 0:
            try:
                return await in_thread(Client.of(connections).attach, self.job_id)
            except (ClusterError, StoreError, CloudError) as error:
                if not error.is_passing:
                    return None
                self.log.warning("cannot find %s, trying again: %s", self.job_id, error)
            except LookupError:
                return None
            await asyncio.sleep(self.outage_interval)
        return None

    async def _until_end(self, job: JobHandle) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def notice(observation: JobObservation) -> None:
            if observation.is_terminal and not loop.is_closed():
                loop.call_soon_threadsafe(ended.set)

        subscription = await in_thread(watch, job.place, job, notice)
        try:
            limit = None if self.deadline is None else max(0.0, self.remaining)
            await asyncio.wait_for(ended.wait(), limit)
        except TimeoutError:
            self.log.warning("%s has not ended in time; it goes on", self.job_id)
        finally:
            subscription.close()
