"""What the triggers of this provider have in common: a task's connection and its time."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from airflow.triggers.base import BaseTrigger

from kinetic_core.configuration import using
from kinetic_core.errors import KineticError

HOLD_SECONDS = 10.0
"""An event sooner than this after the deferral makes Airflow's scheduler fail the task (airflow#71580)."""


class ConnectedTrigger(BaseTrigger):
    """A trigger for a task with `conn_id`, which is read here again: a trigger's row holds no secret.

    `deferred_at` and `deadline`, None for never, are Unix seconds.
    """

    reconnect_seconds = 30.0
    """Between looks at a connection that cannot be read."""

    def __init__(self, deferred_at: float, deadline: float | None, conn_id: str | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's is not annotated
        self.deferred_at = deferred_at
        self.deadline = deadline
        self.conn_id = conn_id

    @property
    def remaining(self) -> float:
        """Seconds until the deadline."""
        return float("inf") if self.deadline is None else self.deadline - time.time()

    def _named(self, **arguments: Any) -> tuple[str, dict[str, Any]]:
        """This trigger as Airflow keeps it, with the arguments of its own."""
        own = {"deferred_at": self.deferred_at, "deadline": self.deadline, "conn_id": self.conn_id}
        return f"{type(self).__module__}.{type(self).__qualname__}", {**arguments, **own}

    async def _hold(self) -> None:
        """Wait until an event does no harm."""
        await asyncio.sleep(max(0.0, self.deferred_at + HOLD_SECONDS - time.time()))

    async def _connected(self) -> AbstractContextManager[None]:
        """Inside, settings are those of the task's connection.

        One that cannot be read now is read later: that is no reason to lose a job.
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
