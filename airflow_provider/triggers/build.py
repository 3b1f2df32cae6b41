"""`KineticBuildTrigger`: waits for a container image, so that no worker has to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_provider.triggers.base import ConnectedTrigger
from kinetic_core.errors import ConfigurationError, ImageError
from kinetic_core.images.cloud_build import Following

_LOOK_SECONDS = 5.0


class KineticBuildTrigger(ConnectedTrigger):
    """Trigger that fires once, when the image is built, cannot be built, or at the deadline.

    `build` is that of an `ImageBuilding`. The build belongs to no task: it goes on when the task is killed,
    and others may wait for it too.
    """

    def __init__(
        self,
        build: dict[str, str],
        deferred_at: float,
        deadline: float | None = None,
        conn_id: str | None = None,
    ) -> None:
        super().__init__(deferred_at, deadline, conn_id)
        self.build = build

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and arguments with which another triggerer continues."""
        return self._named(build=self.build)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Show the build's log until it ends, then yield one event."""
        with await self._connected():
            status, message = await self._follow()
        await self._hold()
        yield TriggerEvent(  # type: ignore[no-untyped-call]
            {"status": status, "message": message, "deadline": self.deadline, "build": self.build}
        )

    async def _follow(self) -> tuple[str, str]:
        """Return `built`, `failed` with the reason, or `timeout`; requests without an answer are repeated."""
        following = await asyncio.to_thread(Following.of, self.build)
        while self.remaining > 0:
            lines: list[str] = []
            try:
                digest = await asyncio.to_thread(following.look, lines.append)
            except (ImageError, ConfigurationError) as error:
                return "failed", str(error)
            finally:
                for line in lines:
                    self.log.info("%s", line)
            if digest is not None:
                return "built", ""
            await asyncio.sleep(min(_LOOK_SECONDS, max(0.0, self.remaining)))
        return "timeout", "the image is still being built"
