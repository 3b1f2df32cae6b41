"""A job's log lines on their way into the task's log: read from where the last reader stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider.remote_logs import RemoteLog
from kinetic_core.lifecycle.backends import Backend, backend_of
from kinetic_core.lifecycle.logs import host_count, read_attempt
from kinetic_core.model.job import JobReference

MAX_LINE = 4000
"""Characters of one line that are shown."""
FINAL_LINES = 5000
"""Lines shown at most when a job has ended and nobody has followed it: the last ones."""


@dataclass(frozen=True)
class Cursor:
    """How far a job's log has been shown: so many bytes of so many attempts."""

    attempt: int = 0
    offset: int = 0

    @classmethod
    def from_list(cls, values: Any) -> Self:
        """Rebuild from `to_list()`; the beginning if there is nothing to rebuild from."""
        return cls(int(values[0]), int(values[1])) if values else cls()

    def to_list(self) -> list[int]:
        """Plain JSON for a trigger's event."""
        return [self.attempt, self.offset]


class LineBudget:
    """At most `rate` lines a second for everybody who shares it; what is not shown now is shown later."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._left, self._at = rate, clock()
        self._lock = threading.Lock()

    def left(self) -> int:
        """How many lines may be shown now."""
        with self._lock:
            now = self._clock()
            self._left = min(self._rate, self._left + (now - self._at) * self._rate)
            self._at = now
            return max(int(self._left), 0)

    def spend(self, lines: int) -> None:
        """So many lines were shown."""
        with self._lock:
            self._left -= lines


class LogTail:
    """Reads a job's log onwards from a cursor, whole lines at a time.

    Of a slice, host 0 is followed; the lines of the others come when the job has ended. Each says its host.
    """

    def __init__(
        self,
        reference: JobReference,
        cursor: Cursor | None = None,
        backend: Backend | None = None,
        remote: RemoteLog | None = None,
        *,
        silent: bool = False,
    ) -> None:
        """`backend`: instead of the one the reference names. `remote`: where the job's pods may have written.

        `silent`: they do, so nothing is shown here before the end.
        """
        self._remote, self._silent = remote, silent
        self._reference = reference
        self._backend: Backend = backend or backend_of(reference)
        self._hosts = host_count(reference)
        self.cursor = cursor or Cursor()

    def live(self, limit: int) -> list[str]:
        """The next complete lines, `limit` at most, while the job runs."""
        if self._silent:
            return []
        attempt, offset = self.cursor.attempt, self.cursor.offset
        chunk = self._container_log(attempt, offset)
        if not chunk and self._container_log(attempt + 1, 0):
            self.cursor = Cursor(attempt + 1)
            return self.live(limit)
        lines = chunk.splitlines(keepends=True)
        complete = [line for line in lines if line.endswith(b"\n")][:limit]
        self.cursor = Cursor(attempt, offset + sum(map(len, complete)))
        return [self._shown(line) for line in complete]

    def rest(self, last_attempt: int, limit: int = FINAL_LINES) -> list[str]:
        """All that is left once the job has ended, unfinished lines too; the last `limit` lines of it."""
        lines: list[str] = []
        shown = self._remote.shown(self._reference) if self._remote is not None else {}
        for attempt in range(self.cursor.attempt, last_attempt + 1):
            start = self.cursor.offset if attempt == self.cursor.attempt else 0
            start = max(start, shown.get((attempt, 0), 0))
            text = read_attempt(self._backend, self._reference, attempt)
            lines += (self._shown(line) for line in text[start:].splitlines())
            self.cursor = Cursor(attempt, len(text))
        for host in range(1, self._hosts):
            for attempt in range(last_attempt + 1):
                text = read_attempt(self._backend, self._reference, attempt, host)
                start = shown.get((attempt, host), 0)
                lines += (self._shown(line, host) for line in text[start:].splitlines())
        if len(lines) <= limit:
            return lines
        left_out = f"... {len(lines) - limit} lines left out here; all of them are in the job's own log ..."
        return [left_out, *lines[-limit:]]

    def _shown(self, line: bytes, host: int = 0) -> str:
        text = line.decode(errors="replace").rstrip("\r\n")
        text = text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}... ({len(text)} characters)"
        return f"[host {host}] {text}" if self._hosts > 1 else text

    def _container_log(self, attempt: int, offset: int) -> bytes:
        return self._backend.log(self._reference.namespace, self._reference.job_id, attempt, offset) or b""
