"""Memory of the container: its limit, its peak, and a note of both that outlives a kill of everything.

Sources: the kernel's cgroup-v1/memory.rst and cgroup-v2.rst. File pages that the kernel can take back at once
do not count as used, as they do not for the kubelet.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from . import object_names, wire
from .attempt import Job
from .notes import ForgedNote, encode_note, read_note
from .outcome import Outcome
from .sizes import shown_size
from .store import MissingObject, Store, exists, open_store

Alarm = Callable[[int, int], None]
NOTE_FILE = "/dev/termination-log"
"""Kubernetes' default `terminationMessagePath`: its content is in the status of the ended container."""
_WORTH_NOTING = 1.02
_SECONDS = 0.2


class MemoryGauge:
    """Samples of this container's memory. `limit` and `peak` are bytes; None where they are unknown."""

    def __init__(self, note_file: str = NOTE_FILE, alarm: Alarm | None = None, near: float = 1.0) -> None:
        """Start without samples. `alarm` is called once with limit and peak, at `near` of the limit."""
        self._alarm, self._near = alarm, near
        self._version, self._folder = _cgroup()
        self.limit = self._number("memory.max", "memory.limit_in_bytes")
        self.peak = 0
        self._noted = 0.0
        self._next = 0.0
        self._note_file = note_file if os.access(note_file, os.W_OK) else None

    def sample(self) -> None:
        """Sample the memory, a few times a second at most, and keep the note current."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _SECONDS
        used = self._number("memory.current", "memory.usage_in_bytes")
        if used is None:
            return
        self.peak = max(self.peak, used - self._counter("memory.stat", "memory.stat", self._reclaimable()))
        if self._alarm and self.limit and self.peak >= self._near * self.limit:
            self._alarm(self.limit, self.peak)
            self._alarm = None
        if self._note_file and self.peak > self._noted * _WORTH_NOTING:
            self._noted = self.peak
            note = json.dumps({"memory_limit": self.limit, "memory_peak": self.peak})
            with suppress(OSError), open(self._note_file, "w") as stream:  # the disk may be full
                stream.write(note)

    def all_time_peak(self) -> int | None:
        """Return the kernel's own peak, which misses nothing but counts file pages too."""
        return self._number("memory.peak", "memory.max_usage_in_bytes")

    def clear_note(self) -> None:
        """Remove the note when the container ends by itself and its outcome says everything."""
        if self._note_file:
            with suppress(OSError):
                open(self._note_file, "w").close()

    def kills(self) -> int:
        """Return how many processes the kernel killed here because memory ran out; 0 if unknown."""
        return self._counter("memory.events", "memory.oom_control", "oom_kill")

    def _reclaimable(self) -> str:
        return "inactive_file" if self._version == 2 else "total_inactive_file"

    def _path(self, v2: str, v1: str) -> str:
        return os.path.join(self._folder, v2 if self._version == 2 else v1)

    def _number(self, v2: str, v1: str) -> int | None:
        try:
            with open(self._path(v2, v1)) as stream:
                value = int(stream.read())
        except (OSError, ValueError):  # "max" is no number: there is no limit
            return None
        return value if value < 1 << 60 else None  # how cgroup v1 writes that there is none

    def _counter(self, v2: str, v1: str, name: str) -> int:
        try:
            with open(self._path(v2, v1)) as stream:
                return next((int(line.split()[1]) for line in stream if line.startswith(name + " ")), 0)
        except (OSError, ValueError):
            return 0


def noted(message: str) -> tuple[int | None, int | None]:
    """Return limit and peak in a container's termination message; None for each that is missing."""
    try:
        note = json.loads(message)
        return note["memory_limit"], note["memory_peak"]
    except (ValueError, KeyError, TypeError):
        return None, None


def ran_out(who: str, limit: int | None, peak: int | None) -> str:
    """Return the message of a death for lack of memory."""
    known = [f"the limit was {shown_size(limit)}"] if limit else []
    known += [f"it had used {shown_size(peak)}"] if peak else []
    detail = f" ({', '.join(known)})" if known else ""
    return f"{who} was killed because the job's memory ran out{detail}. Ask for more with memory="


def _cgroup() -> tuple[int, str]:
    """Return version and directory of this process's memory cgroup; in a container it is the mount's root."""
    groups: dict[str, str] = {}
    try:
        with open("/proc/self/cgroup") as stream:
            for line in stream:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                groups[controllers] = path
    except (OSError, ValueError):
        return 2, ""
    v1 = next((path for names, path in groups.items() if "memory" in names.split(",")), None)
    version, mount = (1, "/sys/fs/cgroup/memory") if v1 is not None else (2, "/sys/fs/cgroup")
    own = mount + (groups.get("", "/") if v1 is None else v1).rstrip("/")
    return version, own if os.path.isdir(own) else mount


NEAR = 0.75
"""Share of the limit from which an attempt leaves its note."""
_BELIEVED = 2
"""Deaths with a note, beyond the user's retries, that may have had another cause."""


def remember(job: Job, limit: int, peak: int) -> None:
    """Store the note from a thread: the memory may be used up before the store has answered."""

    def write() -> None:
        name = object_names.memory(job.job_id, job.attempt)
        note = encode_note(job.outcome_key, name, {"memory_limit": limit, "memory_peak": peak})
        try:
            open_store(job.store_uri).create_if_absent(name, note)
        except (OSError, LookupError) as exc:
            sys.stderr.write(f"kinetic: that memory is nearly used up could not be noted: {exc}\n")

    threading.Thread(target=write, daemon=True).start()


def exhausted(job: Job, store: Store) -> Outcome | None:
    """Return the end of a job whose attempts die repeatedly when their memory is nearly used up."""
    notes = [each for each in (_note(job, store, attempt) for attempt in range(job.attempt)) if each]
    if job.failed_count + len(notes) <= job.retries + _BELIEVED:
        return None
    last = notes[-1]
    text = ran_out(f"{len(notes)} attempts: the container", last["memory_limit"], last["memory_peak"])
    failure = wire.Failure(wire.FailureClass.OUT_OF_MEMORY, text, "function")
    return Outcome("failed", "none", {}, failure, retry=False)


def _note(job: Job, store: Store, attempt: int) -> dict[str, Any] | None:
    """Return the note of an attempt that left nothing else."""
    if exists(store, object_names.attempt_outcome(job.job_id, attempt)):
        return None
    try:
        return read_note(job, store, object_names.memory(job.job_id, attempt))
    except MissingObject:
        return None
    except ForgedNote as exc:
        sys.stderr.write(f"kinetic: {exc}; not counted\n")
        return None
