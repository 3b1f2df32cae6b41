"""Trigger that waits for the end of a job that is not its task's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any, Unpack

from airflow.triggers.base import TriggerEvent

from airflow_provider.access import Access, GoogleKeywords
from airflow_provider.threads import in_thread
from airflow_provider.triggers.base import ConnectedTrigger, NoConnection, ShortEvent
from kinetic_core.client import Client
from kinetic_core.connections import Connections
from kinetic_core.errors import CloudError, ClusterError, KineticError, StoreError
from kinetic_core.job import JobObservation
from kinetic_core.jobs.observe import watch
from kinetic_core.jobs.watch import Subscription

Notice = Callable[[JobObservation | KineticError], None]


class KineticJobEndTrigger(ConnectedTrigger):
    """Trigger that fires once: when a job has ended, cannot be found or may not be seen, or at `deadline`.

    `deadline` is in Unix seconds, None for never.

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
        ended = asyncio.Event()
        try:
            subscription = await self._watched(await self._client(), _setter(ended))
        except NoConnection as error:
            self.log.warning("%s cannot be found: %s", self.job_id, error)
            subscription = None
        if subscription is not None:
            self.log.info("no worker is held while %s runs", self.job_id)
            with closing(subscription):
                await self._until(ended)
        await self._hold()
        status = "ended" if self.remaining > 0 else "timeout"
        yield ShortEvent({"status": status, "reference": {"job_id": self.job_id}, "deadline": self.deadline})

    async def _watched(self, connections: Connections, notice: Notice) -> Subscription | None:
        """Watch the job; None if a worker must say what is wrong. An outage is waited for."""

        def watched() -> Subscription:
            job = Client.of(connections).attach(self.job_id)
            return watch(job.place, job, notice, refused=notice)

        while self.remaining > 0:
            try:
                return await in_thread(watched)
            except (ClusterError, StoreError, CloudError) as error:
                if not error.is_passing:
                    return None
                self.log.warning("cannot find %s, trying again: %s", self.job_id, error)
            except LookupError:
                return None
            await asyncio.sleep(self.outage_interval)
        return None

    async def _until(self, ended: asyncio.Event) -> None:
        limit = None if self.deadline is None else max(0.0, self.remaining)
        try:
            await asyncio.wait_for(ended.wait(), limit)
        except TimeoutError:
            self.log.warning("%s has not ended in time; it goes on", self.job_id)


def _setter(ended: asyncio.Event) -> Notice:
    """Return what sets the event, in any thread, once a job has ended or nobody may say how it is."""
    loop = asyncio.get_running_loop()

    def notice(seen: JobObservation | KineticError) -> None:
        if (isinstance(seen, KineticError) or seen.is_terminal) and not loop.is_closed():
            loop.call_soon_threadsafe(ended.set)

    return notice
