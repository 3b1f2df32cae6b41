"""Log of user code: its output goes to the container's own output and, in chunks, to the store."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import object_names
from .attempt import Job
from .stacks import CrashFilter
from .store import Store

if TYPE_CHECKING:
    from .airflow_log import TaskLog

_CHUNK = 256 << 10
_LARGEST = 4 * _CHUNK
"""Bytes that are sent at a time: the store's patience must suffice for all of them."""
_MOST = 64 * _CHUNK
_SECONDS = 5.0
_CALL_SECONDS = 1.0
"""Seconds after which output of a call on a worker is stored, where alone its readers find it."""
_AT_ONCE = 200
"""Pods of a batch up to which each stores its log as often as alone; with more pods, each does more rarely. A
new bucket takes 1,000 writes a second: https://cloud.google.com/storage/docs/request-rate"""
_TAIL = 16 << 10
_TAIL_LINES = 20


class LogTee:
    """Reader of a pipe that writes to stdout and keeps everything in the store, to outlive the pod.

    `size` is how many bytes came. While the store does not answer, up to 16 MiB are kept here; more bytes
    stay in the pipe, so that user code waits with its next line, and nothing is lost.
    """

    def __init__(
        self,
        job: Job,
        store: Store,
        pipe: int,
        also: TaskLog | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_verbose: bool = False,
    ) -> None:
        """Read `pipe`. With `is_verbose`, stacks of crashes have the runner's frames, too."""
        os.set_blocking(pipe, False)
        self.pipe = pipe
        self.size = 0
        self._stored = 0
        self._job = job
        self._store = store
        self._filter = CrashFilter(keeps_all=is_verbose)
        self._pending = bytearray()
        self._tail = b""
        self._sequence = 0
        self._unsure = 0
        self._clock = clock
        self._last = clock()
        self._pause = _CALL_SECONDS if job.on_worker else _SECONDS * max(1.0, job.at_once / _AT_ONCE)
        self._also = also

    @property
    def whole(self) -> int | None:
        """Return the size of the log in bytes once it is closed; None if not all of it could be stored."""
        return None if self._pending else self._stored

    @property
    def is_full(self) -> bool:
        """Return whether the pipe is not read until the store answers."""
        return self._unsure > 0 and len(self._pending) >= _MOST

    def say(self, line: str) -> None:
        """Write a line of the runner's own."""
        text = line.encode() + b"\n"
        self.size += len(text)
        self._take(text)

    def pump(self) -> bool:
        """Read the pipe, at most a certain amount; return False at its end."""
        enough = self.size + _LARGEST
        while self.size < enough and not self.is_full:
            try:
                chunk = os.read(self.pipe, 1 << 16)
            except BlockingIOError:
                return True
            if not chunk:
                self._take(self._filter.rest())
                return False
            self.size += len(chunk)
            self._take(self._filter.passed(chunk))
        return True

    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines of output: the evidence that goes with a death."""
        return tuple(self._tail.decode(errors="replace").splitlines()[-_TAIL_LINES:])

    def tick(self) -> None:
        """Store pending output that has waited long enough, or is large enough, without waiting for long."""
        is_much = len(self._pending) >= _CHUNK and not self._unsure
        if self._pending and (is_much or self._clock() - self._last >= self._pause):
            with self._store.hurried():
                self._flush()

    def close(self) -> None:
        """Store the rest, with all patience."""
        if self._drain():
            self._drain()  # what found no room before
        os.close(self.pipe)
        if self._also is not None:
            self._also.close()

    def _drain(self) -> bool:
        self.pump()
        self._take(self._filter.rest())
        while self._pending:
            if not self._flush():
                return False
        return True

    def _take(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        try:
            while view:
                view = view[os.write(1, view) :]
        except OSError:
            pass  # nobody reads the container's output; the store still gets it
        if self._also is not None:
            self._also.add(chunk)
        self._pending += chunk
        self._tail = (self._tail + chunk)[-_TAIL:]

    def _flush(self) -> bool:
        """Store the pending chunk; when the store fails, keep the chunk for the next time, and return False.

        A write that failed may have arrived: the object is then written again unchanged.
        """
        size = self._unsure or min(len(self._pending), _LARGEST)
        name = object_names.log(self._job.job_id, self._job.attempt, self._sequence, self._job.host)
        self._last = self._clock()
        try:
            self._store.create_if_absent(name, bytes(self._pending[:size]))
        except OSError as exc:
            self._unsure, self._last = size, self._clock()
            sys.stderr.write(f"kinetic: log not stored yet: {exc}\n")
            return False
        self._sequence += 1
        self._stored += size
        self._unsure = 0
        del self._pending[:size]
        return True


def printable(text: str) -> str:
    """Return the text with what a terminal would obey, such as escape sequences and bells, spelt out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
