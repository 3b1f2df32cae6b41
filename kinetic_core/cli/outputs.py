"""`kinetic jobs outputs`: what a job left in its output directory."""

from __future__ import annotations

from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer

from kinetic_core.cli.jobs import JobId, attached
from kinetic_core.cli.root import jobs_app
from kinetic_core.cli.session import Session, verb

_ID = "job-0123456789abcdef"


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
