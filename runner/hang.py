"""Hang of a job: user code that, on all hosts, neither prints nor computes for longer than allowed.

Computing is processor time of the function's process and all processes it started; idle threads take less
than a fiftieth of one core. A wait that spins counts as computing, and a device that computes is not seen:
the allowed time must be longer than the longest step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

from . import object_names, wire
from .attempt import Job
from .log import LogTee
from .notes import ForgedNote, encode_note, read_note
from .outcome import Outcome
from .phases import times
from .processes import below, statuses
from .rendezvous import Rendezvous
from .stacks import stacks
from .store import MissingObject, Store, StoreUnavailable

_IDLE_SHARE = 0.02
_LEAST_SECONDS = 0.03
"""Seconds of processor time below which a process makes no progress: a clock tick or two."""
_ASK_SECONDS = 5.0


class Stillness:
    """Measure of how long user code has made no progress; always 0 on a system without /proc."""

    def __init__(
        self,
        printed: Callable[[], int],
        used: Callable[[], float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start to measure. `printed` returns bytes and `used` seconds, both since the start."""
        self._printed, self._used, self._clock = printed, used, clock
        self._mark = clock(), printed(), used()

    def seconds(self) -> float:
        """Return the seconds since user code last printed or computed."""
        now, printed, used = self._clock(), self._printed(), self._used()
        since, before, base = self._mark
        if printed != before or used is None or base is None or _has_worked(used - base, now - since):
            self._mark = now, printed, used
        return now - self._mark[0]


def _has_worked(used: float, seconds: float) -> bool:
    """Return whether user code has computed; below zero, a process has ended and its share is gone."""
    return used < 0 or used > max(_LEAST_SECONDS, _IDLE_SHARE * seconds)


class HangWatch:
    """Watcher that stops the child when user code has made no progress, here and on all other hosts."""

    def __init__(self, job: Job, tee: LogTee, rendezvous: Rendezvous | None, store: Store) -> None:
        """Start to watch. `rendezvous`: of a slice, whose hosts report through the store."""
        assert job.hang_after is not None  # noqa: S101  only then there is one
        self._job, self._rendezvous, self._store, self._allowed = job, rendezvous, store, job.hang_after
        self._tee = tee
        self._stillness: Stillness | None = None
        self._next = 0.0
        self._told_still = False
        self._stacks: str | None = None

    @property
    def has_hung(self) -> bool:
        """Return whether the child was stopped because it hung."""
        return self._stacks is not None

    def outcome(self) -> Outcome:
        """Return the failure of a job that hung."""
        what = "on no host was anything" if self._job.hosts > 1 else "nothing was"
        text = f"{what} printed or computed for {self._allowed:g} s (hang_after)"
        where = f"{text}, with the function here:\n{self._stacks}"
        failure = wire.Failure(wire.FailureClass.USER_ERROR, text, "execute", traceback=where)
        return Outcome("failed", "none", {}, failure)

    def look(self, child: int, terminated: bool) -> float | None:
        """Return the child's grace once it hangs; checks a few times a minute, or more often."""
        if terminated or self.has_hung or time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + min(_ASK_SECONDS, self._allowed / 5)
        if self._stillness is None or self._tee.is_full:  # then user code waits with its next line
            if "user_started" in times(self._job):
                used = partial(processor_seconds, child, is_local=self._job.backend == "local")
                self._stillness = Stillness(lambda: self._tee.size, used)
            return None
        is_still = self._stillness.seconds() >= self._allowed
        try:
            with self._store.hurried():
                all_still = self._all_still(is_still)
            if not all_still:
                return None
        except StoreUnavailable:
            return None  # asked again
        self._stacks = stacks(self._job, child)
        return self._job.grace

    def _all_still(self, is_still: bool) -> bool:
        """Return whether host 0, which decides, is still and all others have reported the same."""
        if self._rendezvous is None:
            return is_still
        if self._job.host != 0:
            if is_still != self._told_still:
                self._store.replace(self._name(self._job.host), self._note(is_still))
                self._told_still = is_still
            return False
        return is_still and all(self._is_still(host) for host in range(1, self._job.hosts))

    def _is_still(self, host: int) -> bool:
        try:
            told = read_note(self._job, self._store, self._name(host))
        except (MissingObject, ForgedNote):
            return False
        return bool(told["still"])

    def _note(self, is_still: bool) -> bytes:
        return encode_note(self._job.outcome_key, self._name(self._job.host), {"still": is_still})

    def _name(self, host: int) -> str:
        assert self._rendezvous is not None  # noqa: S101  a lone host tells nobody
        return object_names.still(self._job.job_id, self._rendezvous.generation.number, host)


def processor_seconds(child: int, *, is_local: bool) -> float | None:
    """Return the processor time of user code: of all processes below this one and below the `child`, which
    need not be below this one, that live or were waited for.

    Where the backend `is_local`, without other jobs that were submitted there. None where the system does
    not report it (proc(5), /proc/pid/stat).
    """
    known = statuses()
    if not known:
        return None
    found = [pid for each in (os.getpid(), child) for pid in below(each, known, is_local=is_local)]
    own = {child, *found} & known.keys()
    used = sum(sum(map(int, known[pid][11:15])) for pid in own)
    return used / os.sysconf("SC_CLK_TCK")
