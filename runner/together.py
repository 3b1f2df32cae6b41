"""One host's share of a job on a slice: start with the others, run user code, end with the others."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from . import wire
from .deadline import Deadline, deadline_of
from .evidence import facts, stacks
from .gang import FAILED, INTERRUPTED, LATE, STOPPED, Gang, Told
from .job import Job
from .notice import give_notice
from .outcome import Outcome
from .store import Store, StoreUnavailable
from .times import note, times
from .watch import Ending, Signals

_LEFT_SECONDS = 10.0
"""What user code has to end when it can only wait for a host that failed."""

Runs = Callable[["OtherHosts"], tuple[Outcome, Ending]]


class _Terminated(BaseException):
    """SIGTERM, while no user code runs here."""


class OtherHosts:
    """The other hosts while user code runs on this one: a thread asks whether they stopped the generation.

    `watching` must have a store of its own, for the thread's sake.
    """

    def __init__(self, gang: Gang, watching: Gang, deadline: Deadline | None) -> None:
        self.gang, self._watching, self._deadline = gang, watching, deadline
        self._stop: Told | None = None
        self._over, self._waking = threading.Event(), threading.Lock()
        self._has_told = self._has_answered = False

    def watch(self, signals: Signals) -> None:
        """Begin; the thread's news make `signals` wake its reader."""
        threading.Thread(target=self._ask, args=(signals,), daemon=True).start()

    def close(self) -> None:
        """User code has ended here; nothing is woken any more."""
        with self._waking:
            self._over.set()

    def look(self, child: int, terminated: bool) -> float | None:
        """As `watch.Company`: tells the others of SIGTERM at once, leaves when one of them must, and answers
        their failure with stacks.
        """
        if terminated and not self._has_told:
            self._has_told = True
            self.gang.report(INTERRUPTED)
            self.gang.stop(INTERRUPTED)
        if self._deadline is not None and (left := self._deadline.look(child, terminated)) is not None:
            return left
        if self._stop is None or self._has_answered:
            return None
        self._has_answered = True
        if self._stop["kind"] == INTERRUPTED:
            give_notice(self.gang.job)
            return self.gang.job.grace
        self.gang.report(STOPPED, stacks=stacks(self.gang.job, child))
        return min(_LEFT_SECONDS, self.gang.job.grace)

    def _ask(self, signals: Signals) -> None:
        while not self._over.wait(self._watching.pause):
            try:
                stop = self._watching.peek("stop")
            except StoreUnavailable:
                continue  # asked again: until then this host goes on, and so nothing replaces it
            with self._waking:
                if stop is not None and not self._over.is_set():
                    self._stop = stop
                    signals.wake()
                    return


def run_together(job: Job, store: Store, other: Store, run: Runs, signals: Signals, started: float) -> int:
    """Run this host's share; the container's exit code. `other` is the same store, for a thread."""
    gang = Gang(job, store)
    deadline = deadline_of(job, store, started)
    try:
        with signals.raising(_Terminated):
            end = gang.gather() if deadline is None else gang.gather(lambda: deadline.is_over)
    except _Terminated:
        return _interrupted(gang)
    if end is not None and end["kind"] == LATE and deadline is not None:
        return _commit(gang, deadline.outcome(), store, started)
    if end is not None:
        return conclude(gang, end, store)
    generation = gang.generation
    os.environ["KINETIC_FAILED_COUNT"] = str(generation.failed)
    os.environ["KINETIC_IGNORED_COUNT"] = str(generation.interrupted)
    os.makedirs(job.work_dir, exist_ok=True)
    note(job, "gathered")
    outcome, ending = run(OtherHosts(gang, Gang(job, other, generation), deadline))
    if outcome.state != "succeeded" and deadline is not None:
        outcome = deadline.close() or outcome
    if outcome.state == "succeeded":
        return _succeeded(gang, outcome, store, signals, started)
    if ending.terminated:
        return _interrupted(gang)
    _report_failure(gang, outcome, store, started)
    return conclude(gang, gang.end(), store)


def conclude(gang: Gang, end: Told, store: Store) -> int:
    """The exit code that follows from a generation's end; the job's last one becomes its outcome."""
    job = gang.job
    if not end["final"]:
        sys.stderr.write(f"kinetic: host {end['by']} {end['kind']}: all hosts start anew\n")
        return wire.EXIT_REGROUP
    if end["kind"] in (FAILED, INTERRUPTED):
        store.create(wire.result_object(job.job_id), _failure(gang, end, store), "failed")
    return committed_code(job, store) or wire.EXIT_SUCCEEDED


def committed_code(job: Job, store: Store) -> int | None:
    """The exit code that agrees with the committed outcome; None if there is none."""
    try:
        header, _ = wire.decode_frame(store.read(wire.result_object(job.job_id)))
    except LookupError:
        return None
    return wire.EXIT_SUCCEEDED if header.get("state") == "succeeded" else wire.EXIT_NEVER_RETRY


def _succeeded(gang: Gang, outcome: Outcome, store: Store, signals: Signals, started: float) -> int:
    job = gang.job
    try:
        with signals.raising(_Terminated):
            if job.host != 0:
                gang.tell(f"returned-{job.host}")
                return conclude(gang, gang.end(), store)
            if not gang.all_returned():
                return conclude(gang, gang.end(), store)
    except _Terminated:
        return _interrupted(gang)
    return _commit(gang, outcome, store, started)


def _commit(gang: Gang, outcome: Outcome, store: Store, started: float) -> int:
    """Store the job's outcome, unless there is one, and tell the others. The exit code."""
    job = gang.job
    frame = outcome.to_frame(facts(job, started), job.outcome_key)
    store.create(wire.result_object(job.job_id), frame, outcome.state)
    gang.close()
    return committed_code(job, store) or wire.EXIT_SUCCEEDED


def _interrupted(gang: Gang) -> int:
    gang.report(INTERRUPTED)
    gang.stop(INTERRUPTED)
    stop = gang.peek("stop")
    if stop is not None and stop["host"] == gang.job.host:
        gang.end()
    return wire.EXIT_INTERRUPTED


def _report_failure(gang: Gang, outcome: Outcome, store: Store, started: float) -> None:
    """The evidence first, then the news of it."""
    job = gang.job
    if outcome.is_infrastructure:
        gang.report(INTERRUPTED)
        gang.stop(INTERRUPTED)
        return
    name = wire.attempt_outcome_object(job.job_id, job.attempt, job.host)
    store.create(name, outcome.to_frame(facts(job, started), job.outcome_key))
    failed_at = times(job).get("user_finished", time.time())
    gang.report(FAILED, failed_at=failed_at, retry=outcome.retry, outcome=name)
    gang.stop(FAILED)


def _failure(gang: Gang, end: Told, store: Store) -> bytes:
    """The job's outcome when its last generation did not succeed, from what its hosts stored."""
    job, reports = gang.job, gang.reports()
    name = reports.get(end["by"], {}).get("outcome")
    if end["kind"] == FAILED and name is not None:
        frame = store.read(name)
        header, _ = wire.decode_frame(frame, job.outcome_key)
        outcome = Outcome.from_frame(frame)
        told = {key: header[key] for key in ("attempt", "pod_uid", "python", "peak_memory", "times")}
    else:
        outcome, told = _unexplained(gang, end), {"attempt": job.attempt, "pod_uid": job.pod_uid}
    assert outcome.failure is not None  # noqa: S101  it has failed
    parts = [f"On host {end['by']} of {job.hosts}:", outcome.failure.traceback or outcome.failure.message]
    for host, report in sorted(reports.items()):
        if report.get("stacks"):
            parts.append(f"Meanwhile on host {host}:\n{report['stacks']}")
    failure = replace(outcome.failure, traceback="\n".join(parts))
    whole = replace(outcome, failure=failure, retry=False)
    return whole.to_frame({**told, "job_id": job.job_id, "host": end["by"]}, job.outcome_key)


def _unexplained(gang: Gang, end: Told) -> Outcome:
    """A host that left no outcome."""
    if end["kind"] == FAILED:
        kind = wire.FailureClass.USER_ERROR
        text = f"the container of host {end['by']} was killed as a whole; had it used all its memory?"
    else:
        kind = wire.FailureClass.PREEMPTED
        count = gang.generation.interrupted + 1
        text = f"hosts of this job were interrupted {count} times, host {end['by']} the last"
    return Outcome("failed", "none", {}, wire.Failure(kind, text, "start"))
