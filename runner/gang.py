"""The hosts of a slice as one gang: they begin together and end together.

All they tell each other are create-only objects below `jobs/{id}/gang/{generation}/`, so that whatever dies
can be done again by another, and nothing is decided twice:

    host-{n}      host n has checked in, with its pod's UID
    start         all have: user code may begin. Written by host 0
    debugged      a debugger is attached to host 0, or none came in time; only where one is awaited
    returned-{n}  user code of host n has returned
    stop          the generation is over; the first host that knows says why
    report-{n}    what became of host n: it failed, was interrupted, or was stopped, with its stacks
    end           what all that means, decided once: another generation, or the job's end

A generation follows when the one before has its `end`. A host checks in only when no user code of its own
runs, so a generation in which all have checked in has no user code of an earlier one beside it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import wire
from .job import Job
from .store import MissingObject, Store

FAILED = "failed"
INTERRUPTED = "interrupted"
STOPPED = "stopped"
SUCCEEDED = "succeeded"
DEBUGGED = "debugged"
LATE = "late"

_PAUSE = 0.5
_HOSTS_A_SECOND = 32
"""So many hosts together ask the store for news each second, however large the slice is."""
_REPORT_SECONDS = 20.0
"""A host that has not reported this long after a failure is lost: the failure may be for want of it."""
_JUDGE_SECONDS = 45.0
"""How long the host that stopped a generation has to say what it means, before another does."""

Told = dict[str, Any]


@dataclass(frozen=True)
class Generation:
    """One common start of all hosts, and how many before it ended by the user's failure, or otherwise."""

    number: int = 0
    failed: int = 0
    interrupted: int = 0

    def after(self, end: Told) -> Generation:
        """The one that follows this one's end."""
        failed = end["kind"] == FAILED
        return Generation(self.number + 1, self.failed + failed, self.interrupted + (not failed))


class Gang:
    """The gang as one of its hosts sees it."""

    def __init__(
        self,
        job: Job,
        store: Store,
        generation: Generation | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = job
        self.generation = generation or Generation()
        self.pause = max(_PAUSE, job.hosts / _HOSTS_A_SECOND)
        self._store, self._sleep, self._clock = store, sleep, clock

    def gather(self, is_late: Callable[[], bool] = lambda: False) -> Told | None:
        """Check in and wait until all hosts have, in one generation; the end of a job that is over.

        `is_late` says that it has had its time: then the end is LATE, and told to nobody.
        """
        joined, present = False, 0
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
                    self.tell("start")
            if self.peek("start") is not None:
                return None
            self._sleep(self.pause)

    def stop(self, kind: str) -> None:
        """End the generation, unless another host has."""
        self.tell("stop", kind=kind)

    def report(self, kind: str, **facts: object) -> None:
        """Say what became of this host; only the first report of a host counts."""
        self.tell(f"report-{self.job.host}", kind=kind, **facts)

    def reports(self) -> dict[int, Told]:
        """What is reported of every host, now."""
        told = {host: self.peek(f"report-{host}") for host in range(self.job.hosts)}
        return {host: report for host, report in told.items() if report is not None}

    def all_returned(self) -> bool:
        """For host 0, whose own has: wait until user code of all hosts has returned; False if one stopped."""
        returned = 1
        while (returned := self._count("returned", returned)) < self.job.hosts:
            if self.peek("stop") is not None:
                return False
            self._sleep(self.pause)
        return True

    def end(self) -> Told:
        """How the generation ended. Waits for whoever stopped it to decide, and in the end decides itself."""
        stopped = False
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
            self._sleep(self.pause)
        return end

    def bury(self, kind: str) -> Told | None:
        """The end of the generation in which this pod's container died, of that `kind` if it has not
        reported; None if it was in none that goes on.
        """
        while (end := self.peek("end")) is not None:
            if end["final"]:
                return end
            self.generation = self.generation.after(end)
        before = self.peek(f"host-{self.job.host}")
        if before is None or before["pod"] != self.job.pod_uid:
            return None
        return self._end_of_the_dead(kind)

    def close(self) -> None:
        """After the outcome is committed: tell those who wait, in whichever generation."""
        while not self.tell("end", kind=SUCCEEDED, final=True):
            end = self.peek("end")
            if end is None or end["final"]:
                return
            self.generation = self.generation.after(end)

    def peek(self, name: str) -> Told | None:
        """What an object of this generation says; None if it is not there."""
        try:
            told: Told = json.loads(self._store.read(self._object(name)))
        except MissingObject:
            return None
        return told

    def tell(self, name: str, **facts: object) -> bool:
        """Create an object of this generation; False if it is there."""
        told = {"host": self.job.host, "pod": self.job.pod_uid, "at": time.time(), **facts}
        return self._store.create(self._object(name), json.dumps(told).encode())

    def _object(self, name: str) -> str:
        return wire.gang_object(self.job.job_id, self.generation.number, name)

    def _count(self, name: str, known: int) -> int:
        """How many hosts in a row have told this; `known` are known to have."""
        while known < self.job.hosts and self.peek(f"{name}-{known}") is not None:
            known += 1
        return known

    def _join(self) -> bool:
        """Check in. False if this host's last pod has, and so has ended this generation by its own end."""
        name = f"host-{self.job.host}"
        if self.tell(name, failed=self.job.failed_count):
            return True
        before = self.peek(name)
        if before is None or before["pod"] == self.job.pod_uid:
            return before is not None
        # What Kubernetes counts as failed, with no report, was the death of a whole container.
        self._end_of_the_dead(FAILED if self.job.failed_count > before["failed"] else INTERRUPTED)
        return False

    def _end_of_the_dead(self, kind: str) -> Told:
        """End the generation for a container that could not report any more."""
        self.report(kind, failed_at=0.0, retry=True, outcome=None)
        self.stop(kind)
        return self.end()

    def _judged(self, stop: Told) -> Told:
        """What the generation's end means, from why it was stopped and what is reported."""
        interrupted = {
            "kind": INTERRUPTED,
            "by": stop["host"],
            "final": self.generation.interrupted >= self.job.infrastructure_retries,
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
