"""Log of the job's Airflow task: what user code prints appears there too, while it runs.

Airflow's log readers show every object whose name begins with that of the task's log, lines of JSON merged
by their times. Pieces are objects of their own, created once: `{uri}.{job}.{attempt}-{host}-{from}-{to}.log`
holds those bytes of the attempt's log, so that whoever copies the rest knows which bytes are there.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from .attempt import Job
from .lines import Line, LineBuffer
from .store import Store, open_store

_PIECE = 1 << 20
_SECONDS = 5.0
_SHARE = 60
"""Divisor of the time so far that gives the pause between pieces, so that a reader opens few."""
_LONGEST = 300.0
_MOST_PENDING = 16 << 20
_CLOSING_SECONDS = 15.0
_GROUP, _END = "::group::", "::endgroup::"
"""What lines contain where Airflow's page begins and ends a group, which it folds."""


class TaskLog:
    """Writer of pieces in a thread of its own, so that an outage of the bucket never keeps user code waiting.

    A second or later attempt begins with a title. Groups that user code has left open end with the attempt.
    A write that fails for good ends the writing, with a line in the container's log; the worker copies on.
    """

    def __init__(self, job: Job, store: Store | None = None) -> None:
        """Start to write. `store`: that of `job.task_log`, for this object alone."""
        folder, _, name = (job.task_log or "").rpartition("/")
        self._name = f"{name}.{job.job_id}.{job.attempt}-{job.host}"
        self._prefix = f"[host {job.host}] " if job.hosts > 1 else ""
        self._store = store or open_store(folder)
        self._lock = threading.Condition()
        self._unfinished = LineBuffer()
        self._lines: list[str] = []
        self._size = self._from = self._to = self._groups = 0
        if job.attempt:
            self._note(f"attempt {job.attempt + 1} of {job.job_id}")
        self._closing = self._broken = False
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def add(self, chunk: bytes) -> None:
        """Add output of user code."""
        with self._lock:
            if self._broken:
                return
            for line in self._unfinished.add(chunk):
                self._take(line)
            if self._size > _MOST_PENDING:
                self._give_up("more is printed than can be written")
            elif self._size >= _PIECE:
                self._lock.notify()

    def close(self) -> None:
        """Begin to write the rest; `join` waits for it, once the outcome is published."""
        with self._lock:
            if self._unfinished.size:
                self._take(self._unfinished.end())
            for _ in range(self._groups):
                self._note(_END)
            self._closing = True
            self._lock.notify()

    def join(self) -> None:
        """Wait some seconds for the rest to be written."""
        self._thread.join(_CLOSING_SECONDS)

    def _take(self, line: Line) -> None:
        self._to += line.size
        if _GROUP in line.text:
            self._groups += 1
        elif _END in line.text:
            self._groups = max(self._groups - 1, 0)
        self._note(line.text)

    def _note(self, text: str) -> None:
        now = time.time()
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}Z"
        told = {"timestamp": at, "level": "info", "event": self._prefix + text, "logger": "kinetic.job"}
        self._lines.append(json.dumps(told, ensure_ascii=False))
        self._size += len(self._lines[-1])

    def _write(self) -> None:
        while True:
            with self._lock:
                pause = min(max(_SECONDS, (time.monotonic() - self._began) / _SHARE), _LONGEST)
                self._lock.wait_for(lambda: self._closing or self._size >= _PIECE, pause)
                name = f"{self._name}-{self._from:012d}-{self._to:012d}.log"
                content = "".join(f"{line}\n" for line in self._lines).encode()
                self._lines, self._size, self._from = [], 0, self._to
                is_last = self._closing
            if content and not self._broken:
                try:
                    self._store.create_if_absent(name, content)
                except (OSError, LookupError) as exc:
                    with self._lock:
                        self._give_up(str(exc))
            if is_last:
                return

    def _give_up(self, why: str) -> None:
        self._broken = True
        self._lines, self._size = [], 0
        sys.stderr.write(f"kinetic: the task's log gets the rest when the job has ended: {why}\n")
