"""Share of one host in a job on a slice: start with the others, run user code, end with the others."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from . import object_names, wire
from .attempt import Job
from .deadline import Deadline, deadline_of
from .evidence import facts
from .notes import ForgedNote
from .notice import give_notice
from .outcome import Outcome, commit, committed_code, leave
from .phases import note, times
from .rendezvous import FAILED, INTERRUPTED, LATE, STOPPED, Rendezvous, Told
from .stacks import stacks
from .store import Content, Store, StoreUnavailable, exists
from .watch import Ending, Signals

_LEFT_SECONDS = 10.0
"""Seconds for user code to end when it can only wait for a host that failed."""
_COMING_SECONDS = 60.0
"""Seconds for the hosts of a worker to come to a call; else one of them hangs, and the worker must end."""

Runs = Callable[["Hosts"], tuple[Outcome, Ending]]


class _Terminated(BaseException):
    """SIGTERM, while no user code runs here."""


class Hosts:
    """Watcher of the other hosts while user code runs: its thread asks whether they stopped the generation.

    `watching` must have a store of its own, for the thread.
    """

    def __init__(self, rendezvous: Rendezvous, watching: Rendezvous, deadline: Deadline | None) -> None:
        self.rendezvous, self._watching, self._deadline = rendezvous, watching, deadline
        self._stop: Told | None = None
        self._over, self._waking = threading.Event(), threading.Lock()
        self._has_told = self._has_answered = False

    @property
    def over_at(self) -> float:
        """Return when the job's time is over, in Unix seconds."""
        return float("inf") if self._deadline is None else self._deadline.over_at

    def watch(self, signals: Signals) -> None:
        """Start the thread, which makes `signals` wake its reader."""
        threading.Thread(target=self._ask, args=(signals,), daemon=True).start()

    def close(self) -> None:
        """Stop waking, because user code has ended here."""
        with self._waking:
            self._over.set()

    def look(self, child: int, terminated: bool) -> float | None:
        """Report SIGTERM to the others at once, leave when one of them must, and dump stacks if they fail.

        Returns as `watch.Watcher.look` does.
        """
        if terminated and not self._has_told:
            self._has_told = True
            self.rendezvous.report(INTERRUPTED)
            self.rendezvous.stop(INTERRUPTED)
        if self._deadline is not None and (left := self._deadline.look(child, terminated)) is not None:
            return left
        if self._stop is None or self._has_answered:
            return None
        self._has_answered = True
        if self._stop["kind"] == INTERRUPTED:
            give_notice(self.rendezvous.job)
            return self.rendezvous.job.grace
        self.rendezvous.report(STOPPED, stacks=stacks(self.rendezvous.job, child))
        return min(_LEFT_SECONDS, self.rendezvous.job.grace)

    def _ask(self, signals: Signals) -> None:
        while not self._over.wait(self._watching.pause):
            try:
                stop = self._watching.peek("stop")
            except (StoreUnavailable, ForgedNote):
                continue  # asked again: until then this host goes on, and so nothing replaces it
            with self._waking:
                if stop is not None and not self._over.is_set():
                    self._stop = stop
                    signals.wake()
                    return


def run_together(
    job: Job,
    store: Store,
    other: Store,
    run: Runs,
    signals: Signals,
    started: float,
    mark: Callable[[], str] | None = None,
) -> int:
    """Run this host's share; return the container's exit code. `other` is the same store, for a thread.

    `mark` tells that of the process which this host keeps for calls, if it does.
    """
    rendezvous = Rendezvous(job, store, mark=mark)
    deadline = deadline_of(job, store, started)
    coming_until = time.monotonic() + _COMING_SECONDS if job.on_worker else float("inf")

    def is_late() -> bool:
        return time.monotonic() > coming_until or (deadline is not None and deadline.is_over)

    try:
        with signals.raising(_Terminated):
            end = rendezvous.gather(is_late)
    except _Terminated:
        return _interrupted(rendezvous)
    if end is not None and end["kind"] == LATE:
        if deadline is not None and deadline.is_over:
            return _commit(rendezvous, deadline.outcome(), store, started)
        sys.stderr.write(f"kinetic: not all hosts have come to {job.job_id}: the worker gives it up\n")
        return wire.EXIT_UNSURE
    if end is not None:
        return conclude(rendezvous, end, store)
    generation = rendezvous.generation
    os.environ["KINETIC_FAILED_COUNT"] = str(generation.failed)
    os.environ["KINETIC_IGNORED_COUNT"] = str(generation.interrupted)
    os.makedirs(job.work_dir, exist_ok=True)
    note(job, "gathered")
    outcome, ending = run(Hosts(rendezvous, Rendezvous(job, other, generation), deadline))
    if outcome.state != "succeeded" and deadline is not None:
        outcome = deadline.close() or outcome
    if outcome.state == "succeeded":
        return _succeeded(rendezvous, outcome, store, signals, started)
    if ending.terminated:
        return _interrupted(rendezvous)
    _report_failure(rendezvous, outcome, store, started)
    return conclude(rendezvous, rendezvous.end(), store)


def conclude(rendezvous: Rendezvous, end: Told, store: Store) -> int:
    """Return the exit code for a generation's end; the end of the job's last one becomes its outcome."""
    job = rendezvous.job
    if not end["final"]:
        sys.stderr.write(f"kinetic: host {end['by']} {end['kind']}: all hosts start anew\n")
        return wire.EXIT_REGROUP
    if end["kind"] == INTERRUPTED and job.on_worker and exists(store, object_names.cancel(job.job_id)):
        return wire.EXIT_INTERRUPTED  # its worker commits that, once nothing of it runs on any host
    if end["kind"] in (FAILED, INTERRUPTED):
        committed = commit(job, store, _failure(rendezvous, end, store), "failed")
        return wire.EXIT_NEVER_RETRY if committed is None else committed
    return committed_code(job, store) or wire.EXIT_SUCCEEDED


def _succeeded(
    rendezvous: Rendezvous, outcome: Outcome, store: Store, signals: Signals, started: float
) -> int:
    job = rendezvous.job
    try:
        with signals.raising(_Terminated):
            if job.host != 0:
                rendezvous.tell(f"returned-{job.host}")
                return conclude(rendezvous, rendezvous.end(), store)
            if not rendezvous.all_returned():
                return conclude(rendezvous, rendezvous.end(), store)
    except _Terminated:
        return _interrupted(rendezvous)
    return _commit(rendezvous, outcome, store, started)


def _commit(rendezvous: Rendezvous, outcome: Outcome, store: Store, started: float) -> int:
    """Store the job's outcome, unless there is one, and tell the others. Return the exit code."""
    job = rendezvous.job
    frame = outcome.to_frame(facts(job, started), job.outcome_key)
    committed = commit(job, store, frame, outcome.state)
    rendezvous.close()
    if committed is not None:
        return committed
    return wire.EXIT_SUCCEEDED if outcome.state == "succeeded" else wire.EXIT_NEVER_RETRY


def _interrupted(rendezvous: Rendezvous) -> int:
    rendezvous.report(INTERRUPTED)
    rendezvous.stop(INTERRUPTED)
    stop = rendezvous.peek("stop")
    if stop is not None and stop["host"] == rendezvous.job.host:
        rendezvous.end()
    return wire.EXIT_INTERRUPTED


def _report_failure(rendezvous: Rendezvous, outcome: Outcome, store: Store, started: float) -> None:
    """Store the evidence of a failure, then report the failure to the other hosts."""
    job = rendezvous.job
    if outcome.is_infrastructure:
        rendezvous.report(INTERRUPTED)
        rendezvous.stop(INTERRUPTED)
        return
    name = leave(job, store, outcome, facts(job, started))
    failed_at = times(job).get("user_finished", time.time())
    rendezvous.report(FAILED, failed_at=failed_at, retry=outcome.retry, outcome=name)
    rendezvous.stop(FAILED)


def _failure(rendezvous: Rendezvous, end: Told, store: Store) -> bytes | Content:
    """Return the job's outcome when its last generation did not succeed, from the outcomes of its hosts."""
    job, reports = rendezvous.job, rendezvous.reports()
    name = reports.get(end["by"], {}).get("outcome")
    if end["kind"] == FAILED and name is not None:
        try:
            frame = store.download(name, lambda: wire.FrameReader(job.outcome_key))
            header, content = frame.close()
            object_names.require_place(header, job.job_id, name)
        except wire.FrameError as exc:
            raise ForgedNote(f"{name} is not what this job has stored: {exc}") from exc
        outcome = Outcome.from_parts(header, content)
        told = {key: header[key] for key in ("attempt", "pod_uid", "python", "peak_memory", "times")}
    else:
        outcome, told = _unexplained(rendezvous, end), {"attempt": job.attempt, "pod_uid": job.pod_uid}
    assert outcome.failure is not None  # noqa: S101  it has failed
    parts = [f"On host {end['by']} of {job.hosts}:", outcome.failure.traceback or outcome.failure.message]
    for host, report in sorted(reports.items()):
        if report.get("stacks"):
            parts.append(f"Meanwhile on host {host}:\n{report['stacks']}")
    failure = replace(outcome.failure, traceback="\n".join(parts))
    whole = replace(outcome, failure=failure, retry=False)
    return whole.to_frame(
        {**told, "job_id": job.job_id, "key_id": job.key_id, "host": end["by"]}, job.outcome_key
    )


def _unexplained(rendezvous: Rendezvous, end: Told) -> Outcome:
    """Return the failure of a host that left no outcome."""
    if end["kind"] == FAILED:
        kind = wire.FailureClass.USER_ERROR
        text = f"the container of host {end['by']} was killed as a whole; had it used all its memory?"
    else:
        kind = wire.FailureClass.PREEMPTED
        count = rendezvous.generation.interrupted + 1
        text = f"hosts of this job were interrupted {count} times, host {end['by']} the last"
    return Outcome("failed", "none", {}, wire.Failure(kind, text, "start"))
