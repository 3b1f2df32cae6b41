"""`kinetic reap`: what dead clients and DAG runs left behind, and what was kept long enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kinetic_core.cli.jobs import Origins, attached, of_origin, summaries_of
from kinetic_core.cli.parallel import tell
from kinetic_core.cli.root import app
from kinetic_core.cli.verb import Session, verb
from kinetic_core.errors import KineticError

if TYPE_CHECKING:
    from kinetic_core.jobs.listing import JobSummary


@verb(
    app,
    "reap",
    examples=[
        "kinetic reap",
        "kinetic reap --older-than 24 --apply",
        "kinetic reap --origin dag_id=train --origin run_id=manual__2026-11-21T18:00:00+00:00 --apply",
    ],
)
def reap(
    session: Session,
    apply: Annotated[bool, typer.Option("--apply", help="do it; else only say what would be done")] = False,
    older_than: Annotated[
        float,
        typer.Option(
            min=0, help="hours since a job that was never created was stored, or a worker should have ended"
        ),
    ] = 1.0,
    keep_days: Annotated[
        float, typer.Option(min=0, help="days since it was submitted that a job which has ended is kept")
    ] = 30.0,
    origin: Origins = None,
) -> int | None:
    """Find jobs that nobody can want any more, and with --apply end and remove them.

    Found are jobs that were stored but never created, that were cancelled and still live, whose stored
    objects are gone, and that ended long ago, and workers that wait for a call for longer than they may. A
    job that merely runs on without its client is none of them.
    With --origin, instead: the jobs of a DAG run, or a task, that have not ended; --apply cancels them. That
    nobody wants them any more is yours to know. Outputs are never removed.
    """
    from kinetic_core.backends.base import known_backend
    from kinetic_core.jobs import garbage_collection

    if origin:
        return _cancel_those_of(session, origin, apply)
    backend, namespace = known_backend(session.backend, session.connections), session.settings.namespace
    found = garbage_collection.orphans(backend, namespace, older_than * 3600, keep_days * 86400)
    problems: dict[str, KineticError] = {}
    for orphan in found if apply else ():
        try:
            garbage_collection.reap(backend, orphan)
        except KineticError as exc:
            problems[orphan.job_id] = exc
    _tell(session, [(each.job_id, each.why) for each in found], apply, problems)
    return tell(session, problems)


def _cancel_those_of(session: Session, origins: Sequence[str], apply: bool) -> int | None:
    """The jobs of a DAG run that is dead, as whoever calls this says: no job can know."""
    found = [job for job in of_origin(summaries_of(session), origins) if not job.status.is_terminal]
    problems: dict[str, KineticError] = {}
    for job in found if apply else ():
        try:
            _cancel(session, job)
        except KineticError as exc:
            problems[job.job_id] = exc
    why = f"of {', '.join(origins)}"
    told = [(job.job_id, f"it is {job.status.value}, {why}") for job in found]
    _tell(session, told, apply, problems, "cancelled")
    return tell(session, problems)


def _cancel(session: Session, job: JobSummary) -> None:
    from kinetic_core.batches.submit import attach_batch

    if job.inputs:
        attach_batch(session.connections, job.job_id, backend=session.backend, goes_on=False).cancel()
    else:
        attached(session, job.job_id).cancel()


def _tell(
    session: Session,
    found: Sequence[tuple[str, str]],
    apply: bool,
    problems: Mapping[str, KineticError],
    done: str = "removed",
) -> None:
    """What was found, as ids and reasons, and what has been done about it."""
    if session.output.as_json:
        listed = [
            {"job_id": job_id, "why": why, "problem": str(problems.get(job_id, ""))} for job_id, why in found
        ]
        session.output.json("reap", {"orphans": listed, "removed": apply})
        return
    if not found:
        session.output.line("nothing to remove" if done == "removed" else "nothing to cancel")
        return
    session.output.table(("JOB", "WHY"), found)
    counted = f"{done} {len(found) - len(problems)} of {len(found)}" if problems else done
    session.output.line(counted if apply else "nothing has been done; --apply does it")
