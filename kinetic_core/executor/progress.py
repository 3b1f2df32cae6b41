"""What a person at a terminal sees while a call is under way; nothing at all when piped."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

from kinetic_core.model.states import JobStatus

_WORDS = {
    JobStatus.PENDING: "waiting to start",
    JobStatus.RUNNING: "running",
    JobStatus.SUCCEEDED: "done",
    JobStatus.FAILED: "failed",
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
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.say("interrupted here; the job, if it was submitted, goes on")

    def say(self, phase: str) -> None:
        """Show a phase, once."""
        if self._shown and phase != self._last:
            self._last = phase
            self._stream.write(f"kinetic {time.monotonic() - self._start:6.1f}s  {phase}\n")
            self._stream.flush()

    def status(self, status: JobStatus) -> None:
        """Show the job's new status."""
        self.say(_WORDS[status])
