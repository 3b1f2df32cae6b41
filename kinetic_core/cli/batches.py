"""`kinetic batch`: many inputs, one function."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinetic_core.cli.completion import batch_ids
from kinetic_core.cli.exit_codes import Exit
from kinetic_core.cli.jobs import Statuses, shown_seconds, statuses_named
from kinetic_core.cli.outcomes import make_project_importable, value_fields
from kinetic_core.cli.parallel import side_by_side
from kinetic_core.cli.root import batch_app
from kinetic_core.cli.verb import Session, verb
from kinetic_core.errors import KineticError

if TYPE_CHECKING:
    from kinetic_core.batches.handle import BatchHandle
    from kinetic_core.job import JobStatus

_ID = "grp-0123456789abcdef"
GroupId = Annotated[str, typer.Argument(metavar="BATCH", help="id of the batch", autocompletion=batch_ids)]

_LISTED = 50
"""Inputs that a status lists at a terminal."""
_ORDER = {"FAILED": -1, "SUCCEEDED": 1}
"""Which inputs come first where not all are listed, and which last."""
_ERRORS = 5
"""Failed inputs whose errors a status shows: each is a request, and a batch may have 100,000 inputs."""


@verb(batch_app, "list", examples=["kinetic batch list"])
def list_batches(session: Session) -> None:
    """List the batches that are stored, newest first."""
    from kinetic_core.backends.base import known_backend
    from kinetic_core.batches.submit import batches

    found = batches(known_backend(session.backend, session.connections))
    if session.output.as_json:
        session.output.json("batch.list", {"batches": found})
        return
    if not found:
        session.output.line("no batches")
        return
    rows = [
        (
            one["group_id"],
            one["name"] or "",
            one["function"],
            f"{one['inputs']}",
            shown_seconds(time.time() - one["created_at"]),
            "yes" if one["submitted"] else "no",
        )
        for one in found
    ]
    columns = ("BATCH", "NAME", "FUNCTION", "INPUTS", "AGE", "ALL SUBMITTED")
    session.output.table(columns, rows, ("ALL SUBMITTED", "AGE", "FUNCTION", "NAME"))


@verb(
    batch_app,
    "status",
    examples=[f"kinetic batch status {_ID}", f"kinetic batch status {_ID} --status failed --status running"],
)
def status(
    session: Session,
    group_id: GroupId,
    status: Statuses = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", min=1, help=f"inputs that are listed; at a terminal {_LISTED}, else all"
        ),
    ] = None,
) -> None:
    """Say how the inputs of a batch are, first those that failed if not all are listed."""
    wanted = statuses_named(status or ())
    batch = _attached(session, group_id)
    seen = batch.statuses()
    jobs = batch.jobs
    counts = Counter(state.value for _, state in seen)
    failures = batch.submission_failures
    if session.output.as_json:
        session.output.json(
            "batch.status",
            {
                "group_id": group_id,
                "inputs": len(jobs),
                "counts": dict(counts),
                "jobs": [
                    {"index": index, "job_id": f"{group_id}-{index}", "status": state.value}
                    for index, state in seen
                    if not wanted or state in wanted
                ][:limit],
                "not_submitted": {str(index): str(error) for index, error in failures.items()},
            },
        )
        return
    told = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none submitted"
    session.output.line(f"{group_id}: {len(jobs)} inputs: {told}")
    errors, failed = _first_errors(batch, seen)
    columns = ("INDEX", "STATUS", "ERROR") if errors else ("INDEX", "STATUS")
    listed = [(index, state) for index, state in seen if not wanted or state in wanted]
    most = limit or (_LISTED if session.output.is_terminal else len(listed))
    first = sorted(listed, key=lambda one: (_ORDER.get(one[1].value, 0), one[0]))[:most]
    shown = listed if len(listed) <= most else first
    rows = [(f"{index}", state.value, errors.get(index, ""))[: len(columns)] for index, state in shown]
    session.output.table(columns, rows)
    if len(listed) > len(shown):
        session.output.line(f"and {len(listed) - len(shown)} more: --limit {len(listed)} lists all")
    if failed > len(errors):
        session.output.line(f"hint: `kinetic batch results {group_id}` shows all {failed} errors")
    for index, error in sorted(failures.items()):
        session.output.line(f"input {index} was not submitted: {error}")


def _first_errors(batch: BatchHandle, seen: Sequence[tuple[int, JobStatus]]) -> tuple[dict[int, str], int]:
    """Return why the first few failed inputs failed, by index, and how many failed; no others are asked."""
    from kinetic_core.job import JobStatus

    failed = [index for index, state in seen if state is JobStatus.FAILED]
    jobs = batch.jobs

    def error(index: int) -> str:
        job = jobs[index]
        try:
            return job.observe().message.partition("\n")[0] if job is not None else ""
        except KineticError as exc:
            return str(exc)

    asked = failed[:_ERRORS]
    return dict(zip(asked, side_by_side(error, asked, _ERRORS), strict=True)), len(failed)


@verb(batch_app, "results", examples=[f"kinetic batch results {_ID} --json"])
def results(
    session: Session,
    group_id: GroupId,
    timeout: Annotated[float | None, typer.Option(help="seconds to wait at most")] = None,
    cleanup: Annotated[bool, typer.Option(help="remove pods and payloads after successes")] = True,
) -> int | None:
    """Wait for a batch and print its values in input order; exit code 1 if one has none."""
    batch = _attached(session, group_id, goes_on=True)
    make_project_importable()
    found = batch.results(timeout=timeout, cleanup=cleanup, return_exceptions=True)
    told: list[dict[str, Any]] = []
    for index, value in enumerate(found):
        facts = value_fields(value)
        error = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else None
        told.append({"index": index, "result": facts["result"], "repr": facts["repr"], "error": error})
    if session.output.as_json:
        session.output.json("batch.results", {"group_id": group_id, "results": told})
    else:
        rows = [
            (f"{one['index']}", "FAILED" if one["error"] else "ok", one["error"] or one["repr"])
            for one in told
        ]
        session.output.table(("INDEX", "", "VALUE"), rows)
    return Exit.JOB_FAILED if any(one["error"] for one in told) else None


@verb(batch_app, "cancel", examples=[f"kinetic batch cancel {_ID}"])
def cancel(session: Session, group_id: GroupId) -> None:
    """Submit nothing more of a batch and stop its jobs."""
    from kinetic_core.backends.base import known_backend
    from kinetic_core.batches.submit import cancel_stored

    cancel_stored(known_backend(session.backend, session.connections), group_id)
    if session.output.as_json:
        session.output.json("batch.cancel", {"group_id": group_id})
    session.output.line(f"cancelled {group_id}")


def _attached(session: Session, group_id: str, *, goes_on: bool = False) -> BatchHandle:
    from kinetic_core.batches.submit import attach_batch

    return attach_batch(session.connections, group_id, backend=session.backend, goes_on=goes_on)
