"""The runner: process 1 of the container. It claims the attempt, watches user code, publishes the outcome.

User code runs in a child process, so that a kill, an `os._exit` or a crash of it is an observed fact.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from . import wire
from .child import OUTCOME_FILE, run_child, wind_down
from .deadline import deadline_of
from .evidence import death, facts
from .exhaustion import NEAR, exhausted, remember
from .gang import Gang
from .job import BadEnvironment, Job, take_job
from .memory import MemoryGauge
from .notice import give_notice
from .outcome import Outcome
from .store import Store, open_store
from .tee import LogTee
from .together import OtherHosts, committed_code, run_together
from .watch import Company, Ending, Signals, watch_child

if TYPE_CHECKING:
    from .hang import HangWatch
    from .lease import Lease
    from .task_log import TaskLog

_Run = Callable[..., tuple[Outcome, Ending]]
_NOT_STARTED = Ending(None, None, False)
"""Where no user code was run, or none that counts."""
_LEAVING_SECONDS = 8.0
"""After user code's grace, for the evidence; the pod has ten (`kinetic_core.cluster.manifest`)."""


def main(opener: Callable[[str], Store] = open_store) -> int:
    """Run the attempt described by this process's environment; the container's exit code."""
    started = time.time()
    try:
        job = take_job(os.environ)
        store = opener(job.store_uri)
    except (BadEnvironment, ValueError) as exc:
        sys.stderr.write(f"kinetic: {exc}\n")
        return wire.EXIT_NEVER_RETRY
    signals = Signals(job.grace + _LEAVING_SECONDS)
    logs: list[TaskLog] = []
    run = partial(_run, store=store, signals=signals, logs=logs)
    try:
        code = _attempt(job, store, opener, signals, started, run)
    finally:
        signals.release()
    for log in logs:
        log.join()
    if job.set_name is None:
        return code
    from .pod_set import leave

    return leave(job, code, bool(signals.told))


def _attempt(
    job: Job, store: Store, opener: Callable[[str], Store], signals: Signals, started: float, run: _Run
) -> int:
    """One attempt; the container's exit code."""
    try:
        if job.set_name is not None:
            return _in_set(job, store, opener, signals, started, run)
        refused = _refusal(job, store, started)
        if refused is None:
            refused = _claim(job, store)
        if refused is not None:
            return refused
        if job.hosts > 1:
            return run_together(job, store, opener(job.store_uri), partial(run, job), signals, started)
        if job.ignored_count > job.infrastructure_retries:
            return _publish(job, store, _worn_out(job), _NOT_STARTED, started)
        if job.ignored_count and (end := exhausted(job, store)) is not None:
            return _publish(job, store, end, _NOT_STARTED, started)
        os.makedirs(job.work_dir, exist_ok=True)
        runs = partial(run, job, lease=_lease(job, opener))
        outcome, ending = _run_in_time(job, store, runs, started)
        return _publish(job, store, outcome, ending, started)
    except OSError as exc:
        sys.stderr.write(f"kinetic: the outcome cannot be published: {exc}\n")
        is_last = job.set_name is None and job.is_last_restart  # of a set, the next start counts them
        return wire.EXIT_NEVER_RETRY if is_last else wire.EXIT_UNPUBLISHED


def _in_set(
    job: Job, store: Store, opener: Callable[[str], Store], signals: Signals, started: float, run: _Run
) -> int:
    """The same in a pod of a LeaderWorkerSet, which Kubernetes makes again and again, and does not count."""
    from .pod_set import after_death, numbered

    job, has_run = numbered(job, store)
    refused = _refusal(job, store, started)
    if refused is not None:
        return refused
    if has_run:
        return after_death(job, store)
    if job.attempt > job.retries + job.infrastructure_retries:
        return _publish(job, store, _worn_out(job), _NOT_STARTED, started)
    return run_together(job, store, opener(job.store_uri), partial(run, job), signals, started)


def _refusal(job: Job, store: Store, started: float) -> int | None:
    """An exit code if the attempt is not to be run."""
    committed = _committed(job, store)
    if committed is not None:
        if job.is_gang:
            Gang(job, store).close()  # whoever committed it may have died before telling the others
        return committed
    from .batch import why_not

    outcome = why_not(job, store)
    if outcome is not None:
        return _publish(job, store, outcome, _NOT_STARTED, started)
    if job.choice is not None:
        from .choice import is_taken

        if not is_taken(job, store):
            sys.stderr.write("kinetic: the job has gone to another accelerator\n")
            return wire.EXIT_FENCED
    return None


def _claim(job: Job, store: Store) -> int | None:
    """Claim the attempt; an exit code if another pod has."""
    claim = f'{{"pod_uid": "{job.pod_uid}", "at": {time.time()!r}}}'.encode()
    if store.create(wire.claim_object(job.job_id, job.attempt, job.host), claim):
        return None
    sys.stderr.write(f"kinetic: attempt {job.attempt} is claimed by another pod\n")
    return wire.EXIT_FENCED


def _worn_out(job: Job) -> Outcome:
    """The Job controller counts what the infrastructure did, but has no limit for it."""
    times = "once" if job.ignored_count == 1 else f"{job.ignored_count} times"
    text = f"pods of this job were interrupted {times}, through no fault of its own"
    failure = wire.Failure(wire.FailureClass.PREEMPTED, text, "start")
    return Outcome("failed", "none", {}, failure, retry=False)


def _committed(job: Job, store: Store) -> int | None:
    """The exit code that agrees with an outcome which is committed already."""
    code = committed_code(job, store)
    if code is not None:
        sys.stderr.write("kinetic: the outcome is committed already\n")
    return code


def _lease(job: Job, opener: Callable[[str], Store]) -> Lease | None:
    """What the attempt must keep to go on, if anything."""
    if job.lease is None:
        return None
    from .lease import Lease

    return Lease(job, opener(job.store_uri))


def _task_log(job: Job) -> TaskLog | None:
    """The log of the Airflow task that the job is for, if pods write there; on this machine Airflow does."""
    if job.task_log is None or job.backend == "local":
        return None
    from .task_log import TaskLog

    return TaskLog(job)


def _run_in_time(job: Job, store: Store, run: _Run, started: float) -> tuple[Outcome, Ending]:
    """Run user code for as long as it may; of one input of a batch, the Job cannot say it was cancelled."""
    deadline = deadline_of(job, store, started)
    if deadline is not None and deadline.is_over:
        return deadline.outcome(), _NOT_STARTED
    outcome, ending = run(company=deadline)
    if outcome.state == "succeeded":
        return outcome, ending
    told = deadline.close() if deadline is not None else None
    if told is None and ending.terminated and job.group_id is not None:
        from .batch import was_cancelled

        told = was_cancelled(job, store)
    return (outcome, ending) if told is None else (told, _NOT_STARTED)


def _run(
    job: Job,
    others: OtherHosts | None = None,
    company: Company | None = None,
    lease: Lease | None = None,
    *,
    store: Store,
    signals: Signals,
    logs: list[TaskLog],
) -> tuple[Outcome, Ending]:
    """Run user code in a child; how it ended. What is still to be written is added to `logs`."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _become_child(job, store, signals, reading, writing)
    os.close(writing)
    if (task_log := _task_log(job)) is not None:
        logs.append(task_log)
    tee = LogTee(job, store, reading, task_log)
    if job.backend == "local" and not job.accelerator.startswith("cpu"):
        tee.say(f"kinetic: asked for {job.accelerator}; backend 'local' runs it on this machine")
    gauge = MemoryGauge(alarm=None if job.is_gang else partial(remember, job), near=NEAR)
    if others is not None:
        others.watch(signals)
    if lease is not None:
        lease.keep(child)
    hang = _hang_watch(job, store, tee, others)
    companies = [each for each in (others, company, hang) if each is not None]
    ending = watch_child(child, tee, job.grace, signals, gauge, companies, partial(give_notice, job))
    if lease is not None:
        lease.close()
    if others is not None:
        others.close()
    try:
        with open(os.path.join(job.work_dir, OUTCOME_FILE), "rb") as stream:
            outcome = Outcome.from_frame(stream.read())
    except FileNotFoundError:
        tee.pump()
        outcome = death(ending, tee.last_lines(), gauge)
    except wire.FrameError as exc:
        tee.pump()
        outcome = death(ending, tee.last_lines(), gauge, f"; its outcome file is unreadable: {exc}")
    if hang is not None and hang.has_hung and outcome.state != "succeeded":
        outcome = hang.outcome()
    tee.close()
    gauge.clear_note()
    return outcome, ending


def _hang_watch(job: Job, store: Store, tee: LogTee, others: OtherHosts | None) -> HangWatch | None:
    """What ends user code that does nothing, if that was asked for."""
    if job.hang_after is None:
        return None
    from .hang import HangWatch

    return HangWatch(job, tee, others.gang if others is not None else None, store)


def _become_child(job: Job, store: Store, signals: Signals, reading: int, writing: int) -> None:
    code = 1
    try:
        import signal

        def stop(_number: int, _frame: object) -> None:
            raise SystemExit(143)  # so that `finally` blocks run; user code may install its own handler

        signals.release()
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(reading)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        run_child(job, store)
        code = wind_down()
    finally:
        os._exit(code)


def _publish(job: Job, store: Store, outcome: Outcome, ending: Ending, started: float) -> int:
    """Store the attempt's outcome and, if it is the job's, commit it. The container's exit code."""
    interrupted = ending.terminated and outcome.state != "succeeded"
    infrastructure = outcome.is_infrastructure
    over = (not infrastructure and job.is_last_try) or not outcome.retry
    over = over or (infrastructure and job.is_last_restart)
    final = outcome.state == "succeeded" or (over and not interrupted)
    frame = outcome.to_frame(facts(job, started), job.outcome_key)
    if not final:
        store.create(wire.attempt_outcome_object(job.job_id, job.attempt), frame)
    elif not store.create(wire.result_object(job.job_id), frame, outcome.state):
        store.create(wire.attempt_outcome_object(job.job_id, job.attempt), frame)
        committed = _committed(job, store)
        return wire.EXIT_NEVER_RETRY if committed is None else committed
    if outcome.state == "succeeded":
        return wire.EXIT_SUCCEEDED
    if final and job.fail_fast:
        from .batch import tell_failure

        tell_failure(job, store, outcome)
    if interrupted:
        return wire.EXIT_INTERRUPTED
    if infrastructure:
        return wire.EXIT_NEVER_RETRY if job.is_last_restart else wire.EXIT_UNPUBLISHED
    return wire.EXIT_USER_ERROR if outcome.retry else wire.EXIT_NEVER_RETRY
