"""Runner: process 1 of the container. It claims the attempt, watches user code, publishes the outcome.

User code runs in a child process, so that its kill, `os._exit` or crash is an observed fact.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from . import wire
from .accelerator import missing
from .attempt import BadEnvironment, Job, take_job
from .child import OUTCOME_FILE, renew_signals, reserve, run_child, wind_down
from .claims import take_number
from .deadline import Deadline, deadline_of
from .evidence import death, facts
from .log import LogTee
from .memory import NEAR, MemoryGauge, exhausted, remember
from .notes import ForgedNote
from .notice import give_notice
from .outcome import Outcome, commit, committed_code, failed, leave
from .patience import KEPT_SECONDS, PatientStore
from .phases import StoredTimes
from .processes import adopt_orphans, die_with, end_below, fork_quietly
from .rendezvous import Rendezvous
from .slice import Hosts, run_together
from .store import Store, open_store
from .watch import Ending, Signals, watch_child

if TYPE_CHECKING:
    from .airflow_log import TaskLog
    from .hang import HangWatch
    from .kept_process import KeptProcess
    from .lease import Lease

_Run = Callable[..., tuple[Outcome, Ending]]
_NOT_STARTED = Ending(None, None, False)
"""Ending of an attempt in which no user code ran, or none that counts."""
_LEAVING_SECONDS = 8.0
"""Seconds after user code's grace, for the evidence; the manifest gives the pod ten."""


def main(opener: Callable[[str], Store] = open_store) -> int:
    """Run the attempt described by this process's environment; return the container's exit code."""
    started = time.time()
    try:
        job = take_job(os.environ)
        store = PatientStore(opener(job.store_uri))
    except (BadEnvironment, ValueError) as exc:
        sys.stderr.write(f"kinetic: {exc}\n")
        return wire.EXIT_NEVER_RETRY
    return run_job(job, store, opener, started)


def run_job(
    job: Job,
    store: PatientStore,
    opener: Callable[[str], Store],
    started: float,
    kept: KeptProcess | None = None,
) -> int:
    """Run the attempt of a job, its user code in a process that is `kept` for that, if there is one.

    Returns the container's exit code.
    """
    signals = Signals(job.grace + _LEAVING_SECONDS)
    logs: list[TaskLog] = []
    run = partial(_run, store=store, signals=signals, logs=logs, started=started, kept=kept)
    attempt = partial(_undisturbed, job, store, opener, signals, started, run, kept)
    try:
        code = _attempt(job, store, started, attempt)
    finally:
        signals.release()
    for log in logs:
        log.join()
    if job.set_name is None:
        return code
    from .leader_worker_set import leave

    return leave(job, code, bool(signals.told))


def _attempt(job: Job, store: Store, started: float, undisturbed: Callable[[], int]) -> int:
    """Run one attempt, publishing forged notes as its failure; return the container's exit code."""
    try:
        try:
            return undisturbed()
        except ForgedNote as exc:
            sys.stderr.write(f"kinetic: {exc}\n")
            text = f"{exc}. Remove what is stored of the job with its cleanup(), and submit it again"
            forged = failed(wire.FailureClass.CONFIGURATION, text, "start", retry=False)
            return _publish(job, store, forged, _NOT_STARTED, started)
    except OSError as exc:
        sys.stderr.write(f"kinetic: the outcome cannot be published: {exc}\n")
        is_last = job.set_name is None and job.is_last_restart  # of a set, the next start counts them
        return wire.EXIT_NEVER_RETRY if is_last else wire.EXIT_UNPUBLISHED


def _undisturbed(
    job: Job,
    store: PatientStore,
    opener: Callable[[str], Store],
    signals: Signals,
    started: float,
    run: _Run,
    kept: KeptProcess | None,
) -> int:
    """Run one attempt while the store answers and its notes are genuine; return the exit code."""
    if job.set_name is not None:
        return _in_set(job, store, opener, signals, started, run)
    refused = _refusal(job, store, started)
    if refused is not None:
        return refused
    job, is_next = _claim(job, store)
    if job.hosts == 1 and job.ignored_count > job.infrastructure_retries:
        return _publish(job, store, _worn_out(job), _NOT_STARTED, started)
    if not is_next:
        return wire.EXIT_UNSURE
    if job.idle is not None:
        return _serve(job, store, opener, signals, started)
    if job.on_worker and (late := _refusal(job, store, started)) is not None:
        return late  # who cancels a call that no attempt has claimed does not wait for its worker
    if job.lane is not None:
        return _run_lane(job, store, signals, started)
    if job.hosts > 1:
        mark = None if kept is None else kept.mark
        code = run_together(job, store, opener(job.store_uri), partial(run, job), signals, started, mark)
        if code == wire.EXIT_INTERRUPTED:
            _tell_end(job, store, started)
        return code
    if job.ignored_count and (end := exhausted(job, store)) is not None:
        return _publish(job, store, end, _NOT_STARTED, started)
    runs = partial(run, job, lease=_lease(job, opener))
    outcome, ending = _run_in_time(job, store, runs, started)
    return _publish(job, store, outcome, ending, started)


def _serve(job: Job, store: Store, opener: Callable[[str], Store], signals: Signals, started: float) -> int:
    """Run calls until none has come for long enough; return the container's exit code."""
    from .worker import serve

    os.makedirs(job.work_dir, exist_ok=True)
    outcome = serve(job, store, opener, signals)
    if outcome is None:  # of a slice, host 0 tells how the worker ended
        return wire.EXIT_SUCCEEDED
    return _publish(job, store, outcome, _NOT_STARTED, started)


def _run_lane(job: Job, store: PatientStore, signals: Signals, started: float) -> int:
    """Run inputs of a map until none is left; return the container's exit code."""
    from .lane import run_lane

    os.makedirs(job.work_dir, exist_ok=True)
    outcome, ending = run_lane(job, store, signals, started)
    return _publish(job, store, outcome, ending, started)


def _in_set(
    job: Job, store: Store, opener: Callable[[str], Store], signals: Signals, started: float, run: _Run
) -> int:
    """Run one attempt in a pod of a LeaderWorkerSet, whose restarts Kubernetes does not count."""
    from .leader_worker_set import after_death, numbered

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
    """Return an exit code if the attempt must not run."""
    committed = _committed(job, store)
    if committed is not None:
        if job.has_rendezvous:
            Rendezvous(job, store).close()  # whoever committed it may have died before telling the others
        return committed
    from .batch import why_not

    outcome = why_not(job, store)
    if outcome is not None:
        return _publish(job, store, outcome, _NOT_STARTED, started)
    if job.choice is not None:
        from .accelerator_choice import is_taken

        if not is_taken(job, store):
            sys.stderr.write("kinetic: the job has gone to another accelerator\n")
            return wire.EXIT_FENCED
    return None


def _claim(job: Job, store: Store) -> tuple[Job, bool]:
    """Claim this pod's attempt; return the job with it, and False if the attempt before may still run."""
    job, is_next = take_number(job, store)
    counts = (("FAILED", job.failed_count), ("IGNORED", job.attempt - job.failed_count))
    for name, count in counts:
        variable = f"KINETIC_{name}_COUNT"
        if int(os.environ.get(variable) or 0) != count:  # else as Kubernetes says it: nothing, for none
            os.environ[variable] = str(count)
    if not is_next:
        sys.stderr.write(
            f"kinetic: attempt {job.attempt + 1} runs nothing: "
            "another pod has claimed the one before, and may be alive\n"
        )
    return job, is_next


def _tell_end(job: Job, store: Store, started: float) -> None:
    """Record for the next pod of this host that nothing of this one runs, if the Job was suspended."""
    failure = wire.Failure(wire.FailureClass.PREEMPTED, "the host was told to end", "execute")
    leave(job, store, Outcome("failed", "none", {}, failure), facts(job, started))


def _worn_out(job: Job) -> Outcome:
    """Return the failure of too many interruptions, which the Job controller counts without a limit."""
    times = "once" if job.ignored_count == 1 else f"{job.ignored_count} times"
    text = f"pods of this job were interrupted {times}, through no fault of its own"
    failure = wire.Failure(wire.FailureClass.PREEMPTED, text, "start")
    return Outcome("failed", "none", {}, failure, retry=False)


def _committed(job: Job, store: Store) -> int | None:
    """Return the exit code that agrees with an outcome which is committed already."""
    code = committed_code(job, store)
    if code is not None:
        sys.stderr.write("kinetic: the outcome is committed already\n")
    return code


def _lease(job: Job, opener: Callable[[str], Store]) -> Lease | None:
    """Take the lease that the attempt must keep to go on, if it has one."""
    if job.lease is None:
        return None
    from .lease import Lease

    return Lease(job, partial(opener, job.store_uri))


def _task_log(job: Job) -> TaskLog | None:
    """Open the log of the job's Airflow task, if pods write there; on this machine Airflow does."""
    if job.task_log is None or job.backend == "local":
        return None
    from .airflow_log import TaskLog

    return TaskLog(job)


def _run_in_time(job: Job, store: Store, run: _Run, started: float) -> tuple[Outcome, Ending]:
    """Run user code within its deadline; an input of a batch also learns here that it was cancelled."""
    deadline = deadline_of(job, store, started)
    if deadline is not None and deadline.is_over:
        return deadline.outcome(), _NOT_STARTED
    outcome, ending = run(deadline=deadline)
    if outcome.state == "succeeded":
        return outcome, ending
    told = deadline.close() if deadline is not None else None
    if told is None and ending.terminated and (job.group_id is not None or job.on_worker):
        from .batch import was_cancelled

        told = was_cancelled(job, store)
    return (outcome, ending) if told is None else (told, _NOT_STARTED)


def _run(
    job: Job,
    others: Hosts | None = None,
    deadline: Deadline | None = None,
    lease: Lease | None = None,
    *,
    store: PatientStore,
    signals: Signals,
    logs: list[TaskLog],
    started: float,
    kept: KeptProcess | None,
) -> tuple[Outcome, Ending]:
    """Run user code in a child; return how it ended. Logs still to be written are added to `logs`."""
    if (unreserved := reserve(job)) is not None:
        return unreserved, _NOT_STARTED
    reading, writing = os.pipe()
    adopts = adopt_orphans()
    if kept is not None:
        child = _kept_child(job, kept, others, writing)
        if isinstance(child, Outcome):
            return child, _NOT_STARTED
    else:
        child = _forked_child(job, store, signals, reading, writing)
    os.close(writing)
    tee = _tee(job, store, reading, logs)
    _warn(job, tee, adopts=adopts)
    gauge = MemoryGauge(alarm=None if job.has_rendezvous else partial(remember, job), near=NEAR)
    if others is not None:
        others.watch(signals)
    if lease is not None:
        lease.keep(child)
    hang = _hang_watch(job, store, tee, others)
    watchers = [each for each in (others, deadline, hang) if each is not None]
    times = StoredTimes(job, store, started)
    notice = partial(give_notice, job)
    ending = watch_child(child, tee, job.grace, signals, gauge, times, watchers, notice, kept)
    if lease is not None:
        lease.close()
    if others is not None:
        others.close()
    if kept is None:
        _end_descendants(job, child)
    outcome = _left_outcome(job, ending, tee, gauge)
    if hang is not None and hang.has_hung and outcome.state != "succeeded":
        outcome = hang.outcome()
    over_at = min((each.over_at for each in (others, deadline) if each is not None), default=float("inf"))
    _be_patient(store, outcome, ending, over_at)
    tee.close()
    gauge.clear_note()
    return replace(outcome, log_size=tee.whole), ending


def _tee(job: Job, store: Store, reading: int, logs: list[TaskLog]) -> LogTee:
    """Open the job's log, which is read from a pipe; that of its Airflow task, if any, is added to `logs`."""
    if (task_log := _task_log(job)) is not None:
        logs.append(task_log)
    is_verbose = os.environ.get("KINETIC_LOG_LEVEL") == "DEBUG"
    return LogTee(job, store, reading, task_log, is_verbose=is_verbose)


def _be_patient(store: PatientStore, outcome: Outcome, ending: Ending, over_at: float) -> None:
    """Let the store be asked for longer from now on, for what is stored of an attempt that has ended."""
    if ending.terminated:  # until the process leaves; one connection that hangs must not take all that time
        store.keep(KEPT_SECONDS, hurried=True)
    elif outcome.state == "succeeded" or not outcome.is_infrastructure:
        store.keep(min(KEPT_SECONDS, over_at - time.time()))


def _warn(job: Job, tee: LogTee, *, adopts: bool) -> None:
    """Say in the job's log what differs from what was asked for. `adopts`: orphans become our children."""
    if not adopts:
        tee.say("kinetic: a process that user code starts in a session of its own may outlive it here")
    if job.backend == "local" and not job.accelerator.startswith("cpu"):
        tee.say(f"kinetic: asked for {job.accelerator}; backend 'local' runs it on this machine")
    if (warning := missing(job)) is not None:
        tee.say(warning)


def _left_outcome(job: Job, ending: Ending, tee: LogTee, gauge: MemoryGauge) -> Outcome:
    """Return the outcome that user code's process has left in its file, or that of its death."""
    try:
        return Outcome.from_file(os.path.join(job.work_dir, OUTCOME_FILE))
    except FileNotFoundError:
        tee.pump()
        return death(ending, tee.last_lines(), gauge)
    except wire.FrameError as exc:
        tee.pump()
        return death(ending, tee.last_lines(), gauge, f"; its outcome file is unreadable: {exc}")


def _end_descendants(job: Job, child: int) -> None:
    """Kill the processes that user code has left behind: its attempt is over, and another may follow."""
    with suppress(ProcessLookupError, PermissionError):  # nothing is left of its group (macOS: but zombies)
        os.killpg(child, signal.SIGKILL)
    if left := end_below(os.getpid(), collect=True, is_local=job.backend == "local"):
        sys.stderr.write(f"kinetic: these processes of user code do not die: {left}\n")


def _hang_watch(job: Job, store: Store, tee: LogTee, others: Hosts | None) -> HangWatch | None:
    """Return the watcher that ends user code which hangs, if requested."""
    if job.hang_after is None:
        return None
    from .hang import HangWatch

    return HangWatch(job, tee, others.rendezvous if others is not None else None, store)


def _kept_child(job: Job, kept: KeptProcess, others: Hosts | None, writing: int) -> int | Outcome:
    """Run user code in the process that is kept for it, or return the failure of that process."""
    try:
        return kept.run(job, writing, None if others is None else others.rendezvous.process())
    except OSError as exc:  # its worker then kills it
        text = f"the process that is kept for calls cannot take this one: {exc}"
        return failed(wire.FailureClass.CONTROL_PLANE, text, "start")


def _forked_child(job: Job, store: Store, signals: Signals, reading: int, writing: int) -> int:
    """Run user code in a session of its own, so that signals to its process group spare the runner."""
    runner = os.getpid()
    sys.stdout.flush()
    child, mask = fork_quietly()
    if child:
        return child
    code = 1
    try:
        die_with(runner)
        os.setsid()
        signals.release()
        renew_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(reading)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        set_up = run_child(job, store)
        code = wind_down(may_hang=set_up.may_hang)
    finally:
        os._exit(code)


def _publish(job: Job, store: Store, outcome: Outcome, ending: Ending, started: float) -> int:
    """Store the attempt's outcome and, if it is the job's, commit it. Return the container's exit code."""
    interrupted = ending.terminated and outcome.state != "succeeded"
    infrastructure = outcome.is_infrastructure
    over = (not infrastructure and job.is_last_try) or not outcome.retry
    over = over or (infrastructure and job.is_last_restart)
    final = outcome.state == "succeeded" or (over and not interrupted)
    told = facts(job, started)
    if not final:
        leave(job, store, outcome, told)
    elif (
        committed := commit(job, store, outcome.to_frame(told, job.outcome_key), outcome.state)
    ) is not None:
        leave(job, store, outcome, told)
        sys.stderr.write("kinetic: the outcome is committed already\n")
        return committed
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
