"""`kinetic package`: what ships with a function."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinetic_core.cli.functions import arguments, load
from kinetic_core.cli.root import app
from kinetic_core.cli.run import Accelerator, Target
from kinetic_core.cli.verb import Session, verb
from kinetic_core.errors import InvalidRequest

if TYPE_CHECKING:
    from kinetic_core.jobs.dry_run import Contents

_SHOWN = 20


@verb(
    app,
    "package",
    examples=["kinetic package train.py:train 10 --dry-run", "kinetic package train.py --dry-run --json"],
)
def package(
    session: Session,
    target: Target,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[VALUE|NAME=VALUE]...", help="arguments, as in `run`")
    ] = None,
    accelerator: Accelerator = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="store nothing; show the Kubernetes Job too")
    ] = False,
) -> None:
    """Store the project of a function, so that its jobs start sooner; with --dry-run only say what ships."""
    from kinetic_core.jobs.dry_run import project_contents

    function = load(target, session, accelerator)
    args, kwargs = arguments(values or [])
    settings = function.options.settings(session.settings)
    contents = project_contents(function.function, settings)
    manifest: dict[str, Any] | None = None
    stored, notices = 0, list(contents.notices)
    if dry_run:
        try:
            manifest = function.dry_run(*args, **kwargs)
        except TypeError as exc:  # the arguments do not fit
            raise InvalidRequest(f"{target}: {exc}") from exc
    else:
        tree = contents.store(function.options, session.connections.with_settings(settings))
        stored, notices = tree.stored, list(tree.notices)
    if session.output.as_json:
        session.output.json(
            "package",
            {
                "root": str(contents.root),
                "files": [{"path": file.path, "bytes": file.size} for file in contents.files],
                "bytes": contents.size,
                "left_out": contents.left_out,
                "notices": notices,
                "manifest": manifest,
                "stored_bytes": stored,
            },
        )
        return
    _show(session, contents, notices)
    if manifest is None:
        session.output.line(f"stored {stored:,} bytes")
    else:
        session.output.line(json.dumps(manifest, indent=2))


def _show(session: Session, contents: Contents, notices: Sequence[str]) -> None:
    """What ships, for people: the largest files first."""
    largest = sorted(contents.files, key=lambda file: -file.size)[:_SHOWN]
    session.output.line(f"{contents.root}: {len(contents.files)} files, {contents.size:,} bytes")
    session.output.table(("BYTES", "FILE"), [(f"{file.size}", file.path) for file in largest])
    if len(contents.files) > _SHOWN:
        session.output.line(f"and {len(contents.files) - _SHOWN} smaller ones (--json lists all)")
    for notice in notices:
        session.output.line(f"note: {notice}")
