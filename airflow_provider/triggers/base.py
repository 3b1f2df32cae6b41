"""Base of the provider's triggers: a task's connection and deadline."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from airflow.triggers.base import BaseTrigger

from kinetic_core.errors import KineticError
from kinetic_core.settings import using

HOLD_SECONDS = 10.0
"""Seconds after the deferral before which an event makes the scheduler fail the task (airflow#71580)."""


class ConnectedTrigger(BaseTrigger):
    """Trigger for a task with `conn_id`, which is read again here, because a trigger's row holds no secret.

    `deferred_at` and `deadline`, None for never, are Unix seconds.
    """

    reconnect_seconds = 30.0
    """Seconds between readings of a connection that cannot be read."""

    def __init__(self, deferred_at: float, deadline: float | None, conn_id: str | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's is not annotated
        self.deferred_at = deferred_at
        self.deadline = deadline
        self.conn_id = conn_id

    @property
    def remaining(self) -> float:
        """Return the seconds until the deadline."""
        return float("inf") if self.deadline is None else self.deadline - time.time()

    def _named(self, **arguments: Any) -> tuple[str, dict[str, Any]]:
        """Serialize this trigger for Airflow, with the arguments of its subclass."""
        own = {"deferred_at": self.deferred_at, "deadline": self.deadline, "conn_id": self.conn_id}
        return f"{type(self).__module__}.{type(self).__qualname__}", {**arguments, **own}

    async def _hold(self) -> None:
        """Wait until an event can be sent safely, `HOLD_SECONDS` after the deferral."""
        await asyncio.sleep(max(0.0, self.deferred_at + HOLD_SECONDS - time.time()))

    async def _connected(self) -> AbstractContextManager[None]:
        """Use the settings of the task's connection.

        A connection that cannot be read now is read again later, so that no job is lost.
        """
        if not self.conn_id:
            return nullcontext()
        from asgiref.sync import sync_to_async

        from airflow_provider.hooks.kinetic import recent_settings

        while True:
            try:
                return using(await sync_to_async(recent_settings)(self.conn_id))
            except KineticError as error:
                self.log.warning("%s; trying again", error)
            await asyncio.sleep(self.reconnect_seconds)
