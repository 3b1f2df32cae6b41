"""`kinetic reap`: what dead clients left behind, and what was kept long enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kinetic_core.cli.each import tell
from kinetic_core.cli.root import app
from kinetic_core.cli.session import Session, verb
from kinetic_core.errors import KineticError

if TYPE_CHECKING:
    from kinetic_core.lifecycle.reaping import Orphan


@verb(app, "reap", examples=["kinetic reap", "kinetic reap --older-than 24 --apply"])
def reap(
    session: Session,
    apply: Annotated[bool, typer.Option("--apply", help="do it; else only say what would be done")] = False,
    older_than: Annotated[
        float, typer.Option(min=0, help="hours since a job that was never created was stored")
    ] = 1.0,
    keep_days: Annotated[
        float, typer.Option(min=0, help="days since it was submitted that a job which has ended is kept")
    ] = 30.0,
) -> int | None:
    """Find jobs that nobody can want any more, and with --apply end and remove them.

    Found are jobs that were stored but never created, that were cancelled and still live, whose stored
    objects are gone, and that ended long ago. A job that merely runs on without its client is none of them.
    Outputs are never removed.
    """
    from kinetic_core.configuration import read_settings
    from kinetic_core.lifecycle import reaping
    from kinetic_core.lifecycle.backends import known_backend

    settings = read_settings()
    backend = known_backend(session.backend, settings)
    found = reaping.orphans(backend, settings.namespace, older_than * 3600, keep_days * 86400)
    problems: dict[str, KineticError] = {}
    for orphan in found if apply else ():
        try:
            reaping.reap(backend, orphan)
        except KineticError as exc:
            problems[orphan.job_id] = exc
    _tell(session, found, apply, problems)
    return tell(session, problems)


def _tell(
    session: Session, found: Sequence[Orphan], apply: bool, problems: Mapping[str, KineticError]
) -> None:
    if session.output.as_json:
        listed = [
            {"job_id": one.job_id, "why": one.why, "problem": str(problems.get(one.job_id, ""))}
            for one in found
        ]
        session.output.json("reap", {"orphans": listed, "removed": apply})
        return
    if not found:
        session.output.line("nothing to remove")
        return
    session.output.table(("JOB", "WHY"), [(one.job_id, one.why) for one in found])
    done = f"removed {len(found) - len(problems)} of {len(found)}" if problems else "removed"
    session.output.line(done if apply else "nothing has been done; --apply does it")
