"""`kinetic jobs watch`: jobs as they go, live on a terminal, a line for each change in a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kinetic_core.cli.exits import Exit
from kinetic_core.cli.jobs import attached, job_ids, summaries_of
from kinetic_core.cli.root import jobs_app
from kinetic_core.cli.session import Session, verb
from kinetic_core.cli.side_by_side import side_by_side

if TYPE_CHECKING:
    from kinetic_core.cli.watched import Watched
    from kinetic_core.lifecycle.handle import JobHandle
    from kinetic_core.model.job import JobObservation

_READERS = 16


@verb(
    jobs_app,
    "watch",
    examples=[
        "kinetic jobs watch",
        "kinetic jobs watch job-0123456789abcdef",
        "kinetic jobs watch --json | jq",
    ],
)
def watch(
    session: Session,
    asked: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB]...", help="default: all that have not ended", autocompletion=job_ids),
    ] = None,
) -> int | None:
    """Watch jobs until they have ended; exit code 1 if one ended without a value.

    On a terminal: a table with the reason of waiting and the log of one job. Keys: up and down choose a job,
    c cancels it, e explains where its time went, q leaves (the jobs go on).
    """
    from kinetic_core.cli.watched import Watched

    handles = _handles(session, asked or [])
    origins = {job.job_id: job.origin for job in summaries_of(session)} if session.output.as_json else {}
    if not handles:
        session.output.line("no job is waiting or running")
    with Watched(handles) as watched:
        if session.output.is_terminal and not session.output.as_json and handles:
            from kinetic_core.cli.screen import show

            show(watched, session.output.stream)
        else:
            _follow(session, watched)
    if session.output.as_json:
        jobs = [
            {**_fields(handle, seen), "origin": dict(origins.get(handle.job_id, {}))}
            for handle, seen in watched.states()
        ]
        session.output.json("jobs.watch", {"jobs": jobs})
    return Exit.JOB_FAILED if watched.has_failures() else None


def _handles(session: Session, asked: list[str]) -> list[JobHandle]:
    """Those asked for, else all that have not ended."""
    if not asked:
        known = summaries_of(session)
        alone = [job for job in known if not job.problem and not job.inputs]
        asked = [job.job_id for job in alone if not job.status.is_terminal]
    return side_by_side(lambda job_id: attached(session, job_id), asked, _READERS)


def _follow(session: Session, watched: Watched) -> None:
    """A line for each change, until all have ended."""
    for handle, seen in watched.changes():
        said = f" {seen.reason}: {seen.message}" if seen.reason else ""
        session.output.line(f"{handle.job_id} {seen.status.value}{said}")


def _fields(handle: JobHandle, seen: JobObservation | None) -> dict[str, object]:
    names = ("job_id", "backend", "func_name", "accelerator", "namespace", "created_at")
    facts: dict[str, object] = {name: getattr(handle, name) for name in names}
    status = seen.status.value if seen else ""
    waits = seen.reason if seen and not seen.is_terminal else ""
    return {
        **facts,
        "group_id": handle.group_id or "",
        "status": status,
        "reason": waits,
        "problem": "",
        **dict.fromkeys(("inputs", "succeeded", "failed"), 0),
    }
