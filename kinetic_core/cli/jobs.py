"""`kinetic jobs`: one job, or all of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinetic_core.cli.completion import statuses
from kinetic_core.cli.outcomes import collected, make_project_importable, show_value, value_fields
from kinetic_core.cli.parallel import do_each
from kinetic_core.cli.root import jobs_app
from kinetic_core.cli.verb import Session, verb
from kinetic_core.errors import InvalidRequest

if TYPE_CHECKING:
    from kinetic_core.backends.base import Backend
    from kinetic_core.job import JobStatus
    from kinetic_core.jobs.handle import JobHandle
    from kinetic_core.jobs.listing import JobSummary


def job_ids() -> list[str]:
    """What a shell completes a job id with: the newest ones."""
    from kinetic_core.errors import KineticError

    try:
        return [job.job_id for job in summaries_of(None, limit=30) if not job.inputs]
    except KineticError:
        return []


_ID = "job-0123456789abcdef"
JobId = Annotated[str, typer.Argument(metavar="JOB", help="id of the job", autocompletion=job_ids)]
JobIds = Annotated[list[str], typer.Argument(metavar="JOB...", help="ids of jobs", autocompletion=job_ids)]
Origins = Annotated[
    list[str] | None,
    typer.Option("--origin", metavar="KEY=VALUE", help="jobs of this origin: dag_id=…, run_id=…, task_id=…"),
]
Statuses = Annotated[
    list[str] | None,
    typer.Option(
        help="those that are pending, running, succeeded, failed or cancelled; may be repeated",
        autocompletion=statuses,
    ),
]
Timeout = Annotated[float | None, typer.Option(help="seconds to wait at most; the job goes on")]
Ignored = Annotated[float | None, typer.Option(hidden=True)]
"""An option of keras-kinetic's command, for scripts that give it: no end is polled for here."""


def attached(session: Session, job_id: str) -> JobHandle:
    """The job of that id, where settings and flags say."""
    from kinetic_core.jobs.listing import attach

    return attach(session.connections, job_id, backend=session.backend)


def of_origin(jobs: Iterable[JobSummary], origins: Sequence[str]) -> list[JobSummary]:
    """Those that were asked for by the one whom all of `KEY=VALUE` describe. Raises InvalidRequest."""
    if bad := [each for each in origins if "=" not in each]:
        raise InvalidRequest(f"--origin {bad[0]}: write KEY=VALUE, such as dag_id=train")
    wanted = dict(each.split("=", 1) for each in origins)
    return [job for job in jobs if wanted.items() <= job.origin.items()]


def summaries_of(
    session: Session | None,
    limit: int | None = None,
    *,
    and_alive: bool = False,
    of_a_batch: int | None = None,
) -> list[JobSummary]:
    """The newest jobs of the namespace, `and_alive` the others that have not ended; see `summaries`."""
    from kinetic_core.jobs.listing import summaries

    return summaries(*_place(session), limit, and_alive=and_alive, of_a_batch=of_a_batch)


def submitted_jobs(session: Session | None) -> list[JobSummary]:
    """All jobs of the namespace, newest first, as they were submitted: without status."""
    from kinetic_core.jobs.listing import submitted

    return list(submitted(*_place(session)))


def _place(session: Session | None) -> tuple[Backend, str]:
    """The backend and the namespace whose jobs are listed."""
    from kinetic_core.backends.base import known_backend
    from kinetic_core.connections import default_connections

    connections = session.connections if session else default_connections()
    return known_backend(session.backend if session else None, connections), connections.settings.namespace


def summary_fields(job: JobSummary) -> dict[str, Any]:
    """A job of a list, for JSON."""
    return {**asdict(job), "status": job.status.value, "created_at": submitted_at(job)}


def submitted_at(job: JobSummary | JobHandle) -> float | None:
    """Return when a job was submitted, in Unix seconds; None if that is not known."""
    from kinetic_core.job import is_timestamp

    return datetime.fromisoformat(job.created_at).timestamp() if is_timestamp(job.created_at) else None


def shown_seconds(seconds: float, digits: int = 0) -> str:
    """Write a duration as `kubectl` does: `75s`, `5m`, `3h`, `2d`; below ten seconds with so many digits."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(0.0, seconds):.{digits if seconds < 10 else 0}f}s"


def job_table(session: Session, jobs: Iterable[JobSummary]) -> None:
    """Print jobs as a table: AGE since they were submitted, TOOK from there to their end."""
    from kinetic_core.job import JobStatus

    rows = []
    for job in jobs:
        status = "?" if job.problem and job.status is JobStatus.NOT_FOUND else job.status.value
        begun, ended = submitted_at(job), job.finished_at
        age = shown_seconds(time.time() - begun) if begun is not None else ""
        took = shown_seconds(ended - begun, 1) if begun is not None and ended is not None else ""
        about = job.problem or _waits_for(job) or _outcome(job)
        rows.append((job.job_id, status, job.func_name, job.accelerator, job.user, age, took, about))
    columns = ("JOB", "STATUS", "FUNCTION", "ACCELERATOR", "USER", "AGE", "TOOK", "WAITS FOR")
    session.output.table(columns, rows, ("USER", "TOOK", "AGE", "ACCELERATOR", "WAITS FOR", "FUNCTION"))


def _waits_for(job: JobSummary) -> str:
    """What a job or batch waits for, or does: of one that just runs, its status says so."""
    return "" if job.reason == "Running" else job.reason


def _outcome(job: JobSummary) -> str:
    """What a batch that has ended came to."""
    return f"{job.succeeded} of {job.inputs} succeeded" if job.inputs and job.status.is_terminal else ""


@verb(
    jobs_app,
    "list",
    examples=[
        "kinetic jobs list",
        "kinetic jobs list --status failed --function train",
        "kinetic jobs list --origin dag_id=train",
        "kinetic jobs list --limit 20 --json | jq '.jobs[].job_id'",
    ],
)
def list_jobs(
    session: Session,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="the newest so many only")] = None,
    status: Statuses = None,
    function: Annotated[str | None, typer.Option(help="jobs of this function; `*` matches anything")] = None,
    user: Annotated[str | None, typer.Option(help="jobs of whom; `*` matches anything")] = None,
    origin: Origins = None,
) -> None:
    """List the jobs of a namespace, finished ones too, newest first. A batch in shared Jobs is one line."""
    statuses = statuses_named(status or ())
    selects = bool(origin or statuses or function or user)
    found = [
        job
        for job in of_origin(summaries_of(session, None if selects else limit), origin or ())
        if (not statuses or job.status in statuses)
        and fnmatchcase(job.func_name, function or "*")
        and fnmatchcase(job.user, user or "*")
    ][:limit]
    if session.output.as_json:
        session.output.json("jobs.list", {"jobs": [summary_fields(job) for job in found]})
        return
    if not found:
        session.output.line("no jobs")
        return
    job_table(session, found)


def statuses_named(names: Sequence[str]) -> set[JobStatus]:
    """Read names of statuses. Raises InvalidRequest."""
    from kinetic_core.job import JobStatus

    try:
        return {JobStatus(name.upper()) for name in names}
    except ValueError:
        known = ", ".join(one.value.lower() for one in JobStatus if one is not JobStatus.NOT_FOUND)
        raise InvalidRequest(f"--status {' '.join(names)}: a job can be {known}") from None


@verb(jobs_app, "status", examples=[f"kinetic jobs status {_ID}"])
def status(session: Session, job_id: JobId) -> None:
    """Say how a job is, and why; of one that waits for a node, also what gives it one."""
    from kinetic_core.jobs.fallback import remedy

    handle = attached(session, job_id)
    seen = handle.observe()
    hint = remedy(handle.place, handle, seen)
    if session.output.as_json:
        facts = asdict(seen) | {"job_id": job_id, "status": seen.status.value, "hint": hint}
        facts["failure"] = seen.failure.to_dict() if seen.failure else None
        session.output.json("jobs.status", facts)
        return
    said = f" ({seen.reason}: {seen.message})" if seen.message else ""
    session.output.line(f"{job_id}: {seen.status.value}{said}")
    if hint:
        session.output.line(f"hint: {hint}")


@verb(jobs_app, "logs", examples=[f"kinetic jobs logs {_ID} --follow", f"kinetic jobs logs {_ID} -n 50"])
def logs(
    session: Session,
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until the job ends")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=1, help="the last so many lines")] = None,
) -> None:
    """Print what a job printed."""
    if follow and (tail is not None or session.output.as_json):
        raise InvalidRequest("--follow goes with neither --tail nor --json")
    handle = attached(session, job_id)
    if follow:
        handle.logs(follow=True)
        return
    text = handle.tail(tail) + "\n" if tail is not None else handle.logs() or ""
    if session.output.as_json:
        session.output.json("jobs.logs", {"job_id": job_id, "log": text})
    else:
        session.output.raw(text)


@verb(jobs_app, "result", examples=[f"kinetic jobs result {_ID}", f"kinetic jobs result {_ID} --timeout 60"])
def result(
    session: Session,
    job_id: JobId,
    timeout: Timeout = None,
    cleanup: Annotated[
        bool | None,
        typer.Option(help="remove pod and payload after a success", show_default="unless debug=True"),
    ] = None,
    trust_store: Annotated[bool, typer.Option(help="believe an outcome that cannot be verified")] = False,
    cleanup_timeout: Ignored = None,
    cleanup_poll_interval: Ignored = None,
) -> int | None:
    """Wait for a job and print its value, or what it raised (exit code 1).

    Meanwhile stderr shows what the job does or waits for, and why.
    """
    del cleanup_timeout, cleanup_poll_interval
    from kinetic_core.terminal import Progress

    make_project_importable()
    handle = attached(session, job_id)
    with Progress() as progress:
        ending = collected(
            lambda: handle.attached_result(progress, timeout, cleanup, trust_store=trust_store)
        )
    if ending.error is not None:
        return ending.told(session.output)
    if session.output.as_json:
        session.output.json("jobs.result", {"job_id": job_id, **value_fields(ending.value)})
    else:
        show_value(session.output, ending.value)
    return None


@verb(jobs_app, "explain", examples=[f"kinetic jobs explain {_ID}"])
def explain(session: Session, job_id: JobId) -> None:
    """Say where a job's time went, and what would shorten it."""
    from kinetic_core.jobs.fallback import remedy

    handle = attached(session, job_id)
    told = handle.explain()
    seen = told.observation
    hint = remedy(handle.place, handle, seen)
    if session.output.as_json:
        phases = [{**asdict(phase), "advice": phase.advice} for phase in told.phases]
        facts = {"status": seen.status.value, "reason": seen.reason, "message": seen.message}
        passed = [asdict(one) for one in told.passed_over]
        told_json = {"job_id": job_id, **facts, "phases": phases, "passed_over": passed, "hint": hint}
        session.output.json("jobs.explain", told_json)
    else:
        session.output.line(str(told))
        if hint:
            session.output.line(f"hint: {hint}")


@verb(jobs_app, "debug", examples=[f"kinetic jobs debug {_ID}", f"kinetic jobs debug {_ID} --port 0"])
def debug(
    session: Session,
    job_id: JobId,
    port: Annotated[int, typer.Option(help="of this machine, for the debugger; 0: any free one")] = 5678,
    working_dir: Annotated[
        str | None, typer.Option(help="the project on this machine, if it is not VS Code's folder")
    ] = None,
) -> None:
    """Let a debugger attach to a job with debug=True, until the job ends or Ctrl-C. The job goes on."""
    with attached(session, job_id).debug_attach(port, working_dir) as opened:
        why = opened.wait()
    if session.output.as_json:
        session.output.json("jobs.debug", {"job_id": job_id, "ended": why})
    else:
        session.output.line(why)


@verb(jobs_app, "cancel", examples=[f"kinetic jobs cancel {_ID}"])
def cancel(
    session: Session,
    job_ids: JobIds,
    cleanup_timeout: Ignored = None,
    cleanup_poll_interval: Ignored = None,
) -> int | None:
    """Stop jobs; what they stored is kept. Returns when nothing of them runs."""
    del cleanup_timeout, cleanup_poll_interval

    def stop(job_id: str) -> str:
        handle = attached(session, job_id)
        if handle.status().is_terminal:
            return f"{job_id} had ended"
        handle.cancel()
        return f"cancelled {job_id}"

    return do_each(session, "jobs.cancel", job_ids, stop)


@verb(jobs_app, "cleanup", examples=[f"kinetic jobs cleanup {_ID}", f"kinetic jobs cleanup {_ID} --no-gcs"])
def cleanup(
    session: Session,
    job_ids: JobIds,
    k8s: Annotated[bool, typer.Option(help="the Kubernetes objects")] = True,
    gcs: Annotated[bool, typer.Option(help="the stored objects: handle, outcome, logs")] = True,
    cleanup_timeout: Ignored = None,
    cleanup_poll_interval: Ignored = None,
) -> int | None:
    """Remove what is left of jobs that have ended. Outputs stay."""
    del cleanup_timeout, cleanup_poll_interval

    def remove(job_id: str) -> str:
        attached(session, job_id).cleanup(k8s=k8s, gcs=gcs)
        return f"cleaned up {job_id}"

    return do_each(session, "jobs.cleanup", job_ids, remove)


@verb(
    jobs_app,
    "outputs",
    examples=[f"kinetic jobs outputs {_ID}", f"kinetic jobs outputs {_ID} 'model/*' --to ./downloads"],
)
def outputs(
    session: Session,
    job_id: JobId,
    pattern: Annotated[str, typer.Argument(help="files to take: `*` also matches `/`")] = "*",
    to: Annotated[Path | None, typer.Option("--to", help="copy the files into this directory")] = None,
) -> None:
    """List the files a job left, or with --to download them."""
    found = attached(session, job_id).outputs()
    files = [file for file in found if fnmatchcase(file.name, pattern)]
    copied = [] if to is None else [str(path) for path in found.download(to, pattern)]
    if session.output.as_json:
        facts = {"job_id": job_id, "location": found.location, "downloaded": copied}
        session.output.json("jobs.outputs", {**facts, "files": [asdict(file) for file in files]})
    elif to is not None:
        for path in copied:
            session.output.line(path)
    elif files:
        session.output.table(("BYTES", "FILE"), [(f"{file.size}", file.name) for file in files])
    else:
        session.output.line(f"no files in {found.location}")
