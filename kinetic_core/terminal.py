"""What a person at a terminal sees while a call is under way; nothing at all when piped."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from kinetic_core.job import JobStatus

if TYPE_CHECKING:
    from kinetic_core.jobs.handle import JobHandle

_WORDS = {
    JobStatus.PENDING: "waiting to start",
    JobStatus.RUNNING: "running",
    JobStatus.SUCCEEDED: "done",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELLED: "cancelled",
    JobStatus.NOT_FOUND: "gone",
}


class Progress:
    """One line per phase on stderr, with the seconds since the call began."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty()
        self._start = time.monotonic()
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    def leave(self, handle: JobHandle) -> None:
        """Say, piped or not, how to find the job of a call that was interrupted."""
        attach = f"kinetic_core.attach({handle.job_id!r}, backend={handle.backend!r})"
        self._stream.write(f"kinetic: {handle.job_id} goes on. To stop it: {attach}.cancel()\n")

    def say(self, phase: str) -> None:
        """Show a phase, once."""
        if self._shown and phase != self._last:
            self._last = phase
            self._stream.write(f"kinetic {time.monotonic() - self._start:6.1f}s  {phase}\n")
            self._stream.flush()

    def status(self, status: JobStatus) -> None:
        """Show the job's new status."""
        self.say(_WORDS[status])
