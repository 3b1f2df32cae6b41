"""`kinetic reap`: what dead clients left behind, and what was kept long enough."""

from __future__ import annotations

from typing import Annotated

import typer

from kinetic_core.cli.root import app
from kinetic_core.cli.session import Session, verb


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
) -> None:
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
    if apply:
        for orphan in found:
            reaping.reap(backend, orphan)
    if session.output.as_json:
        listed = [{"job_id": orphan.job_id, "why": orphan.why} for orphan in found]
        session.output.json("reap", {"orphans": listed, "removed": apply})
        return
    if not found:
        session.output.line("nothing to remove")
        return
    session.output.table(("JOB", "WHY"), [(orphan.job_id, orphan.why) for orphan in found])
    session.output.line("removed" if apply else "nothing has been done; --apply does it")
