"""`kinetic` alone: where jobs go, what runs, what failed last, and what to do next."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import kinetic_core
from kinetic_core.cli.jobs import (
    attached,
    job_table,
    shown_seconds,
    submitted_at,
    summaries_of,
    summary_fields,
)
from kinetic_core.cli.root import app
from kinetic_core.cli.verb import Session, verb
from kinetic_core.errors import KineticError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinetic_core.jobs.listing import JobSummary

_SHOWN = 10
"""Jobs that are listed."""
_RECENT = 200
"""Jobs among which the last failure is looked for."""
_OF_A_BATCH = 20
"""Inputs of one batch among these, so that a map of thousands hides nothing that failed before it."""


@dataclass(frozen=True)
class _Failure:
    """The last job that failed, and why."""

    job: JobSummary
    message: str


@verb(app, "home", examples=["kinetic", "kinetic home --json"])
def home(session: Session) -> None:
    """Say where jobs go, what runs now, what failed last, and what to do next. `kinetic` alone does this."""
    jobs, trouble = _jobs(session)
    alive = [job for job in jobs if not job.problem and not job.status.is_terminal]
    failure = _last_failure(session, jobs)
    hints = [*_remedies(session, alive[:_SHOWN]), *_hints(session, jobs, failure, trouble)]
    if session.output.as_json:
        told = {
            "place": _place(session),
            "alive": [summary_fields(job) for job in alive],
            "failed": None if failure is None else failure.job.job_id,
            "message": "" if failure is None else failure.message,
            "problem": trouble,
            "hints": list(hints),
        }
        session.output.json("home", told)
        return
    line = session.output.line
    line(f"kinetic {kinetic_core.__version__}: jobs run {_place(session)}")
    if trouble:
        line(f"\nits jobs cannot be listed: {trouble}")
    else:
        line(f"\n{_count(alive)}")
        if alive:
            job_table(session, alive[:_SHOWN])
        if len(alive) > _SHOWN:
            line(f"and {len(alive) - _SHOWN} more")
    if failure is not None:
        ago = shown_seconds(time.time() - (failure.job.finished_at or submitted_at(failure.job) or 0.0))
        line(f"\nlast failure, {ago} ago: {failure.job.func_name}, {failure.job.job_id}\n  {failure.message}")
    line()
    for hint in hints:
        line(f"hint: {hint}")


def _place(session: Session) -> str:
    """Where jobs run, in words."""
    settings = session.settings
    backend = session.backend or settings.backend
    profile = f" (profile {settings.profile})" if settings.profile else ""
    if backend == "local" or (backend is None and not (settings.project or settings.bucket)):
        return f"on this machine{profile}"
    where = f"cluster {settings.cluster} of {settings.project}, {settings.zone}"
    if not settings.project:
        where = f"the cluster of {settings.kubeconfig or 'the kubeconfig'}"
    return f"on {where}, namespace {settings.namespace}{profile}"


def _jobs(session: Session) -> tuple[Sequence[JobSummary], str]:
    """The newest jobs, and all that wait or run; else why nobody can say."""
    try:
        return summaries_of(session, _RECENT, and_alive=True, of_a_batch=_OF_A_BATCH), ""
    except KineticError as exc:
        return (), str(exc)


def _last_failure(session: Session, jobs: Sequence[JobSummary]) -> _Failure | None:
    """The job that failed last of those listed; a batch with a failed input counts as one."""
    from kinetic_core.job import JobStatus

    failed = [job for job in jobs if job.status is JobStatus.FAILED]
    if not failed:
        return None
    last = max(failed, key=lambda job: job.finished_at or submitted_at(job) or 0.0)
    if last.inputs:
        return _Failure(last, f"{last.failed} of its {last.inputs} inputs failed")
    try:
        return _Failure(last, attached(session, last.job_id).observe().message)
    except KineticError as exc:
        return _Failure(last, str(exc))


def _count(alive: Sequence[JobSummary]) -> str:
    """How many run and wait, as a sentence."""
    from kinetic_core.job import JobStatus

    if not alive:
        return "no job is waiting or running"
    running = sum(job.status is JobStatus.RUNNING for job in alive)
    return f"{running} running, {len(alive) - running} waiting:"


def _remedies(session: Session, jobs: Sequence[JobSummary]) -> list[str]:
    """What gives the jobs that wait for a node one; asked once for each accelerator."""
    from kinetic_core.backends.kubernetes.names import UNSCHEDULABLE
    from kinetic_core.jobs.fallback import remedy

    found = []
    waiting = {job.accelerator: job for job in jobs if job.reason == UNSCHEDULABLE and not job.inputs}
    for job in waiting.values():
        with suppress(KineticError):
            handle = attached(session, job.job_id)
            found.append(remedy(handle.place, handle, handle.observe()))
    return [each for each in dict.fromkeys(found) if each]


def _hints(session: Session, jobs: Sequence[JobSummary], failure: _Failure | None, trouble: str) -> list[str]:
    """What to do next, each with the command that does it."""
    hints = []
    if trouble:
        hints.append(
            "`kinetic doctor` looks for the cause, and `kinetic config` shows where each setting is from"
        )
    if failure is not None:
        of_job = "jobs result", "its traceback"
        verb, what = ("batch results", "the errors") if failure.job.inputs else of_job
        hints.append(f"`kinetic {verb} {failure.job.job_id}` shows {what}")
    if any(not job.status.is_terminal and not job.problem for job in jobs):
        hints.append("`kinetic jobs watch` follows what runs")
    if not jobs and not trouble:
        hints.append("`kinetic run FILE.py:FUNCTION --accelerator cpu` runs a function as a job")
    if not session.settings.project and not session.settings.kubeconfig:
        hints.append("`kinetic init --project PROJECT` joins or makes a cluster")
    return hints or ["`kinetic cost` sums up the week, and `kinetic --help` lists everything"]
