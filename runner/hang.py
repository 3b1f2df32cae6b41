"""A job that hangs: user code that, on all hosts, neither prints nor computes for as long as was allowed.

Computing is processor time of the function's process and of all that it has started: less than a fiftieth of
one core is what idle threads take. A wait that spins is not seen, nor is a device that computes told from one
that does not: what is allowed must be longer than the longest step.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

from . import wire
from .evidence import stacks
from .gang import Gang
from .job import Job
from .outcome import Outcome
from .store import MissingObject, Store, StoreUnavailable
from .tee import LogTee
from .times import times

_IDLE_SHARE = 0.02
_LEAST_SECONDS = 0.03
"""Of processor time: a clock tick or two are no progress, however short the while."""
_ASK_SECONDS = 5.0


class Stillness:
    """For how long user code has not got on. Of a system without /proc nothing is known, and so never."""

    def __init__(
        self,
        printed: Callable[[], int],
        used: Callable[[], float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`printed` gives bytes and `used` seconds, both since it began."""
        self._printed, self._used, self._clock = printed, used, clock
        self._mark = clock(), printed(), used()

    def seconds(self) -> float:
        """Since it last printed or computed."""
        now, printed, used = self._clock(), self._printed(), self._used()
        since, before, base = self._mark
        if printed != before or used is None or base is None or _has_worked(used - base, now - since):
            self._mark = now, printed, used
        return now - self._mark[0]


def _has_worked(used: float, seconds: float) -> bool:
    """Below zero a process has ended, and its share is gone."""
    return used < 0 or used > max(_LEAST_SECONDS, _IDLE_SHARE * seconds)


class HangWatch:
    """As `watch.Company`: stops the child when nothing has got on, here and on all other hosts."""

    def __init__(self, job: Job, tee: LogTee, gang: Gang | None, store: Store) -> None:
        """`gang`: of a slice; its hosts tell each other through the store when they are still."""
        assert job.hang_after is not None  # noqa: S101  only then there is one
        self._job, self._gang, self._store, self._allowed = job, gang, store, job.hang_after
        self._tee = tee
        self._stillness: Stillness | None = None
        self._next = 0.0
        self._told_still = False
        self._stacks: str | None = None

    @property
    def has_hung(self) -> bool:
        """Whether the child was stopped for it."""
        return self._stacks is not None

    def outcome(self) -> Outcome:
        """The failure of a job that hung."""
        what = "on no host was anything" if self._job.hosts > 1 else "nothing was"
        text = f"{what} printed or computed for {self._allowed:g} s (hang_after)"
        where = f"{text}, with the function here:\n{self._stacks}"
        failure = wire.Failure(wire.FailureClass.USER_ERROR, text, "execute", traceback=where)
        return Outcome("failed", "none", {}, failure)

    def look(self, child: int, terminated: bool) -> float | None:
        """The child's grace, once; looks a few times a minute, or once a second if less is allowed."""
        if terminated or self.has_hung or time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + min(_ASK_SECONDS, self._allowed / 5)
        if self._stillness is None or self._tee.is_full:  # then user code waits with its next line
            if "user_started" in times(self._job):
                self._stillness = Stillness(lambda: self._tee.size, processor_seconds)
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
        """Whether host 0, which decides, is still and has heard the same of all others."""
        if self._gang is None:
            return is_still
        if self._job.host != 0:
            if is_still != self._told_still:
                self._store.replace(self._name(self._job.host), json.dumps({"still": is_still}).encode())
                self._told_still = is_still
            return False
        return is_still and all(self._is_still(host) for host in range(1, self._job.hosts))

    def _is_still(self, host: int) -> bool:
        try:
            told = json.loads(self._store.read(self._name(host)))
        except MissingObject:
            return False
        return bool(told["still"])

    def _name(self, host: int) -> str:
        assert self._gang is not None  # noqa: S101  a lone host tells nobody
        return wire.gang_object(self._job.job_id, self._gang.generation.number, f"still-{host}")


def processor_seconds() -> float | None:
    """What all processes below this one have used, as long as they live or were waited for; None where the
    system does not say (proc(5), /proc/pid/stat).
    """
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    try:
        entries = [entry for entry in os.listdir("/proc") if entry.isdigit()]
    except OSError:
        return None
    for entry in entries:
        try:
            with open(f"/proc/{entry}/stat") as stream:
                fields = stream.read().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        parents[int(entry)], used[int(entry)] = int(fields[1]), sum(map(int, fields[11:15]))
    me = os.getpid()
    below = (pid for pid in parents if pid != me and _descends(pid, me, parents))
    return sum(used[pid] for pid in below) / os.sysconf("SC_CLK_TCK")


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor
