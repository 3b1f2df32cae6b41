"""Phases of an attempt: when each began, noted by the process that sees it, in its working directory.

The outcome says when they began. Until there is one, StoredTimes says it to whoever observes the job.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

from . import object_names
from .attempt import Job
from .notes import encode_note
from .store import Store

_FILE = "times"
_SHORT = 2.0
"""Seconds for which an attempt stores no times: most calls have ended by then, and a write costs money."""
_PAUSE, _PAUSE_AFTER_FAILURE = 1.0, 15.0
"""Seconds between two writes. A silent store holds up the loop that hears signals while it is asked."""
_AT_ONCE = 200
"""Pods of a batch up to which each stores its times as often as alone, as it does its log."""


def note(job: Job, name: str, at: float | None = None) -> None:
    """Note that phase `name` begins `at` that time, None for now; of two notes of one name the later counts.

    A failed write is ignored, so that no attempt ends because user code has filled the disk.
    """
    try:
        with open(os.path.join(job.work_dir, _FILE), "a") as stream:
            stream.write(f"{name} {at or time.time()!r}\n")
    except OSError as exc:
        sys.stderr.write(f"kinetic: when {name} began is not noted: {exc}\n")


def times(job: Job) -> dict[str, float]:
    """Return the noted times in Unix seconds, by phase; what user code has written there is passed over."""
    try:
        with open(os.path.join(job.work_dir, _FILE), errors="replace") as stream:
            pairs = [line.split() for line in stream]
    except OSError:
        return {}
    found = {}
    for pair in pairs:
        with suppress(ValueError):
            name, at = pair
            found[name] = float(at)
    return found


class StoredTimes:
    """Times of an attempt in the store: of each phase, once it has begun, until the outcome tells them.

    A slice is explained by its host 0, so that other hosts store none. `known`: times that are not noted.
    """

    def __init__(
        self,
        job: Job,
        store: Store,
        started: float,
        clock: Callable[[], float] = time.time,
        known: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._job, self._store, self._clock = job, store, clock
        self._known = {"started": started, **known}
        self._pause = _PAUSE * max(1.0, job.at_once / _AT_ONCE)
        self._next = float("inf") if job.host else started + max(_SHORT, self._pause)
        self._size = self._sequence = 0

    def tick(self) -> None:
        """Store the times if it is time to and a phase has begun, without waiting for long.

        A write that failed is tried again, under a name of its own: it may have arrived.
        """
        now = self._clock()
        if now < self._next:
            return
        self._next = now + self._pause
        told = {**self._known, **times(self._job)}
        if len(told) == self._size:
            return
        name = object_names.times(self._job.job_id, self._job.attempt, self._sequence)
        self._sequence += 1
        try:
            with self._store.hurried():
                self._store.create_if_absent(name, encode_note(self._job.outcome_key, name, {"times": told}))
        except OSError as exc:
            sys.stderr.write(f"kinetic: when the attempt's phases began is not stored yet: {exc}\n")
            self._next = self._clock() + max(self._pause, _PAUSE_AFTER_FAILURE)
            return
        self._size = len(told)
