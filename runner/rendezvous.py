"""Rendezvous of the hosts of a slice: they begin together and end together.

All they tell each other are create-only, signed objects below `jobs/{id}/gang/{generation}/`, so that
whatever dies can be done again by another, and nothing is decided twice:

    host-{n}      host n has checked in, with its pod's UID
    start         all have: user code may begin. Written by host 0
    debugged      a debugger is attached to host 0, or none came in time; only where one is awaited
    returned-{n}  user code of host n has returned
    stop          the generation is over; the first host that knows says why
    report-{n}    what became of host n: it failed, was interrupted, or was stopped, with its stacks
    end           what all that means, decided once: another generation, or the job's end

A generation follows when the one before has its `end`. A host checks in only when no user code of its own
runs, so a generation in which all have checked in has no user code of an earlier one beside it.

Of a call on warm hosts each attempt of a host counts as a pod of its own. Where hosts keep processes for
their calls, each says of which generation its process is; unless all say the same, all begin with new ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from . import object_names, wire
from .attempt import Job
from .notes import encode_note, read_note
from .store import MissingObject, Store

FAILED = "failed"
INTERRUPTED = "interrupted"
STOPPED = "stopped"
SUCCEEDED = "succeeded"
DEBUGGED = "debugged"
LATE = "late"

_PAUSE, _FIRST_PAUSE = 0.5, 0.05
"""Seconds between two looks for news; those at first, because hosts that are there come in a row."""
HOSTS_A_SECOND = 32
"""Hosts that together ask the store for news each second, however large the slice is."""
_REPORT_SECONDS = 20.0
"""Seconds after a failure in which a host must report; a host that does not is lost, and may be its cause."""
_JUDGE_SECONDS = 45.0
"""Seconds for the host that stopped a generation to store the end, before another does."""

Told = dict[str, Any]


@dataclass(frozen=True)
class Generation:
    """Common start of all hosts, and how many before it ended by the user's failure, or otherwise."""

    number: int = 0
    failed: int = 0
    interrupted: int = 0

    def after(self, end: Told) -> Generation:
        """Return the generation that follows this one's end."""
        failed = end["kind"] == FAILED
        return Generation(self.number + 1, self.failed + failed, self.interrupted + (not failed))


@dataclass(frozen=True)
class ProcessOfHost:
    """Process that runs a call on a host which keeps one: the one of that `mark`, or a new one with it."""

    mark: str
    is_new: bool


class Rendezvous:
    """Rendezvous as one of its hosts sees it."""

    def __init__(
        self,
        job: Job,
        store: Store,
        generation: Generation | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        mark: Callable[[], str] | None = None,
    ) -> None:
        """Begin with a generation, the first by default. `mark` tells that of this host's kept process."""
        self.job = job
        self._mark = mark
        self._start: Told = {}
        self._pod = f"{job.pod_uid}/{job.attempt}" if job.on_worker else job.pod_uid
        self.generation = generation or Generation()
        self.pause = max(_PAUSE, job.hosts / HOSTS_A_SECOND)
        self._store, self._sleep, self._clock = store, sleep, clock

    def gather(self, is_late: Callable[[], bool] = lambda: False) -> Told | None:
        """Check in and wait until all hosts have, in one generation; return the end of a job that is over.

        Once `is_late` says that the job's time is over, the end is LATE, and not stored.
        """
        joined, present, pauses = False, 0, self._pauses()
        while True:
            if (end := self.peek("end")) is not None:
                if end["final"]:
                    return end
                self.generation = self.generation.after(end)
                joined, present = False, 0
                continue
            if is_late():
                return {"kind": LATE, "final": True, "by": self.job.host}
            if not joined:
                joined = self._join()
                continue
            if self.job.host == 0:
                present = self._count("host", present)
                if present == self.job.hosts:
                    self.tell("start", mark=self._common_mark())
            if (start := self.peek("start")) is not None:
                self._start = start
                return None
            self._sleep(next(pauses))

    def process(self) -> ProcessOfHost:
        """Return which process a host that keeps one uses in this generation, which has begun."""
        if mark := self._start.get("mark"):
            return ProcessOfHost(mark, is_new=False)
        return ProcessOfHost(wire.digest(self.object_name("start").encode()), is_new=True)

    def stop(self, kind: str) -> None:
        """End the generation, unless another host has."""
        self.tell("stop", kind=kind)

    def report(self, kind: str, **facts: object) -> None:
        """Report how this host ended; only the first report of a host counts."""
        self.tell(f"report-{self.job.host}", kind=kind, **facts)

    def reports(self) -> dict[int, Told]:
        """Read the reports of all hosts that have reported."""
        told = {host: self.peek(f"report-{host}") for host in range(self.job.hosts)}
        return {host: report for host, report in told.items() if report is not None}

    def all_returned(self) -> bool:
        """Wait, on host 0, until user code of all hosts has returned; return False if one has stopped."""
        returned, pauses = 1, self._pauses()
        while (returned := self._count("returned", returned)) < self.job.hosts:
            if self.peek("stop") is not None:
                return False
            self._sleep(next(pauses))
        return True

    def end(self) -> Told:
        """Return how the generation ended, after waiting for its stopper to decide, or deciding here."""
        stopped, pauses = False, self._pauses()
        give_up = self._clock() + _JUDGE_SECONDS
        while (end := self.peek("end")) is None:
            stop = self.peek("stop")
            if stop is None:
                give_up = self._clock() + _JUDGE_SECONDS
            elif not stopped:
                stopped = True
                self.report(STOPPED, stacks="")
            if stop is not None and (stop["host"] == self.job.host or self._clock() >= give_up):
                self.tell("end", **self._judged(stop))
                continue
            self._sleep(next(pauses))
        return end

    def bury(self, kind: str) -> Told | None:
        """End the generation in which this pod's container died, by that `kind` if it has not reported.

        Returns None if the container was in no generation that goes on.
        """
        while (end := self.peek("end")) is not None:
            if end["final"]:
                return end
            self.generation = self.generation.after(end)
        before = self.peek(f"host-{self.job.host}")
        if before is None or before["pod"] != self._pod:
            return None
        return self._end_of_the_dead(kind)

    def close(self) -> None:
        """Store that the job is over, for hosts that wait, after the outcome is committed."""
        while not self.tell("end", kind=SUCCEEDED, final=True):
            end = self.peek("end")
            if end is None or end["final"]:
                return
            self.generation = self.generation.after(end)

    def peek(self, name: str) -> Told | None:
        """Read an object of this generation; None if it does not exist. Raises ForgedNote."""
        try:
            return read_note(self.job, self._store, self.object_name(name))
        except MissingObject:
            return None

    def tell(self, name: str, **facts: object) -> bool:
        """Create an object of this generation; return False if it exists."""
        told = {"host": self.job.host, "pod": self._pod, "at": time.time(), **facts}
        content = encode_note(self.job.outcome_key, self.object_name(name), told)
        return self._store.create_if_absent(self.object_name(name), content)

    def object_name(self, name: str) -> str:
        """Return the full name of an object of this generation."""
        return object_names.rendezvous(self.job.job_id, self.generation.number, name)

    def _count(self, name: str, known: int) -> int:
        """Count the hosts in a row that have stored this object; the first `known` are known to have."""
        while known < self.job.hosts and self.peek(f"{name}-{known}") is not None:
            known += 1
        return known

    def _pauses(self) -> Iterator[float]:
        """Yield how many seconds to wait before each next look."""
        pause = min(_FIRST_PAUSE, self.pause)
        while True:
            yield pause
            pause = min(self.pause, 1.5 * pause)

    def _common_mark(self) -> str:
        """Return the mark of the processes that all hosts keep, "" if they differ or some host has none."""
        if self._mark is None:
            return ""
        marks = {(self.peek(f"host-{host}") or {}).get("mark") for host in range(self.job.hosts)}
        return str(marks.pop() or "") if len(marks) == 1 else ""

    def _join(self) -> bool:
        """Check in. Return False if this host's last pod has, and so has ended this generation."""
        name = f"host-{self.job.host}"
        facts = {} if self._mark is None else {"mark": self._mark()}
        if self.tell(name, failed=self.job.failed_count, **facts):
            return True
        before = self.peek(name)
        if before is None or before["pod"] == self._pod:
            return before is not None
        # An end that Kubernetes counts as failed, without a report, was the death of a whole container.
        self._end_of_the_dead(FAILED if self.job.failed_count > before["failed"] else INTERRUPTED)
        return False

    def _end_of_the_dead(self, kind: str) -> Told:
        """End the generation for a container that could not report any more."""
        self.report(kind, failed_at=0.0, retry=True, outcome=None)
        self.stop(kind)
        return self.end()

    def _judged(self, stop: Told) -> Told:
        """Return the generation's end, from the reason why it was stopped and the reports."""
        interrupted = {
            "kind": INTERRUPTED,
            "by": stop["host"],
            "final": self.generation.interrupted - self.job.uncounted >= self.job.infrastructure_retries,
        }
        if stop["kind"] == INTERRUPTED or self.peek("start") is None:
            return interrupted
        reports = self._all_reports()
        lost = [host for host in range(self.job.hosts) if _is_lost(reports.get(host))]
        failures = [each for each in reports.values() if each["kind"] == FAILED]
        if lost or not failures:
            return {**interrupted, "by": (lost or [stop["host"]])[0]}
        first = min(failures, key=_failed_at)
        final = self.generation.failed >= self.job.retries or not first["retry"]
        return {"kind": FAILED, "by": first["host"], "final": final}

    def _all_reports(self) -> dict[int, Told]:
        give_up = self._clock() + _REPORT_SECONDS
        while len(reports := self.reports()) < self.job.hosts and self._clock() < give_up:
            self._sleep(self.pause)
        return reports


def _is_lost(report: Told | None) -> bool:
    return report is None or report["kind"] == INTERRUPTED


def _failed_at(report: Told) -> float:
    return float(report["failed_at"])
