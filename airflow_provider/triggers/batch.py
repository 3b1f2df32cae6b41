"""Trigger of a batch, which waits until all its inputs have ended."""

from __future__ import annotations

import asyncio
from typing import Any, Unpack

from airflow.triggers.base import TriggerEvent

from airflow_provider.access import Access, GoogleKeywords
from airflow_provider.batch_of_task import BatchWatch, cancel_batch, cancel_unless_superseded
from airflow_provider.batch_record import KEY, MARKED, record_of_cancelled
from airflow_provider.job_of_task import Origin
from airflow_provider.records import store, stored_value
from airflow_provider.threads import in_thread
from airflow_provider.triggers.base import ShortEvent, WorkTrigger, asked
from airflow_provider.waiting_alert import AlertClock
from kinetic_core.backends.base import Backend
from kinetic_core.batches.definition import manifest_object
from kinetic_core.errors import KineticError
from kinetic_core.job import JobReference
from kinetic_core.retry import Reminders

_LOOK_SECONDS = 1.0


class KineticBatchTrigger(WorkTrigger):
    """Trigger that fires once, when all inputs of a batch have ended or at `deadline`.

    `limits`: with `max_failures` a number, no further input starts once more inputs have failed, and with
    `cancel_running` those that run are stopped, too. `origin` is the try that waits, "" if this Airflow has
    no name. `alert` is a task's `WaitingAlert`, as plain data.
    """

    def __init__(
        self,
        reference: dict[str, Any],
        size: int,
        origin: str,
        limits: dict[str, Any],
        deferred_at: float,
        deadline: float | None = None,
        conn_id: str | None = None,
        alert: dict[str, Any] | None = None,
        **google: Unpack[GoogleKeywords],
    ) -> None:
        super().__init__(reference, deferred_at, deadline, Access.of(conn_id, **google))
        self.alert = alert
        self.size = size
        self.origin = origin
        self.limits = limits

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and arguments with which another triggerer continues."""
        more = {} if self.alert is None else {"alert": self.alert}
        known = {"size": self.size, "origin": self.origin, "limits": self.limits}
        return self._named(reference=self.reference, **known, **more)

    def _event(self, status: str) -> TriggerEvent:
        told = {"status": status, "reference": self.reference, "size": self.size, "deadline": self.deadline}
        return ShortEvent(told)

    def _cancel(self, backend: Backend, reference: JobReference) -> None:
        cancel_batch(backend, reference.job_id)

    def _cancel_for_task(self, backend: Backend, reference: JobReference, *, was_cleared: bool) -> None:
        del was_cleared  # what has a value keeps it
        if not cancel_unless_superseded(backend, reference, Origin.from_text(self.origin)):
            self.log.info("a newer try of the task runs %s: it goes on", reference.job_id)

    async def _tell_cancelled(self, backend: Backend, reference: JobReference) -> None:
        own = Origin.from_text(self.origin)
        if own is None:
            return
        value = await asked(stored_value, self.task_instance, KEY)
        record = await in_thread(record_of_cancelled, value, backend, reference, own.try_number, MARKED)
        if record is not None:
            await asked(store, self.task_instance, KEY, record.to_dict())

    async def _watch(self) -> TriggerEvent:
        """Show the progress until the batch has "ended" or its time is up: "timeout"."""
        reference = JobReference.from_dict(self.reference)
        backend, watch = await self._attached(
            reference, lambda backend: BatchWatch.open(backend, reference, self.limits)
        )
        self.log.info("no worker is held while %s runs", reference.job_id)
        try:
            with self._reconciled(backend, reference):
                clock = AlertClock(self.alert, backend, reference)
                ended = await self._show_until_over(watch, clock)
                if ended:
                    await self._until_store_answers(backend, reference, manifest_object(reference.job_id))
                else:
                    await self._cancel_overdue(backend, reference)
        finally:
            watch.close()
        await self._hold()
        return self._event("ended" if ended else "timeout")

    async def _show_until_over(self, watch: BatchWatch, clock: AlertClock) -> bool:
        """Show how many inputs have ended; return True at the batch's end, False at the deadline."""
        reminders = Reminders()
        while self.remaining > 0:
            try:
                if await in_thread(watch.look, self.log.info):
                    return True
            except (KineticError, OSError) as error:
                if reminders.are_due(type(error)):
                    self.log.warning("cannot stop the batch now, trying again: %s", error)
            clock.see(watch.state)
            if clock.due == 0:
                await clock.send(self.log.warning)
            await asyncio.sleep(min(_LOOK_SECONDS, max(0.0, self.remaining)))
        return False
