"""`kinetic doctor`: what keeps jobs from running, and what to do about it."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kinetic_core.cli.completion import accelerator_names
from kinetic_core.cli.exit_codes import Exit
from kinetic_core.cli.root import app
from kinetic_core.cli.verb import Session, verb
from kinetic_core.diagnostics.checks import LIMIT_SECONDS, Check, Finding, Report, perform, remedy
from kinetic_core.errors import KineticError

_JOB_SECONDS = 600.0


@verb(
    app,
    "doctor",
    examples=[
        "kinetic doctor",
        "kinetic doctor --accelerator tpu-v5e-4 --job",
        "kinetic doctor --backend local",
    ],
)
def doctor(
    session: Session,
    accelerator: Annotated[
        str | None,
        typer.Option(
            "--accelerator",
            "-a",
            help="hardware to look for, and for --job (cpu)",
            autocompletion=accelerator_names,
        ),
    ] = None,
    job: Annotated[
        bool, typer.Option("--job", help="run a job of one second too, if all else is well")
    ] = False,
    timeout: Annotated[float, typer.Option(help="seconds a check may take; a slow network needs more")] = (
        LIMIT_SECONDS
    ),
) -> int | None:
    """Check what jobs need, all at once; exit code 5 if something keeps them from running."""
    reports = perform(list(_checks(session, accelerator)), timeout)
    if job:
        reports.append(_job(session, accelerator or "cpu", reports))
    failed = any(report.finding.outcome == "fail" for report in reports)
    if session.output.as_json:
        checks: list[dict[str, Any]] = [
            {"name": each.name, "seconds": round(each.seconds, 3), **asdict(each.finding)} for each in reports
        ]
        session.output.json("doctor", {"ok": not failed, "checks": checks})
    else:
        _tell(session, reports)
    return Exit.FINDINGS if failed else None


def _tell(session: Session, reports: list[Report]) -> None:
    rows = [(each.finding.outcome, each.name, each.finding.found) for each in reports]
    session.output.table(("", "CHECK", "FOUND"), rows)
    for each in reports:
        if each.finding.fix and each.finding.outcome != "ok":
            session.output.line(f"{each.name}: {each.finding.fix}")


def _checks(session: Session, accelerator: str | None) -> list[Check]:
    from kinetic_core.accelerators.grammar import parse_accelerator
    from kinetic_core.backends.base import known_backend
    from kinetic_core.diagnostics.machine_checks import local_checks, machine_checks

    parsed = parse_accelerator(accelerator) if accelerator else None
    settings = session.settings
    backend = known_backend(session.backend, session.connections)
    if backend.name == "local":
        return [*machine_checks(settings), *local_checks(settings, backend)]
    from kinetic_core.diagnostics.cluster_checks import cluster_checks

    return [*machine_checks(settings), *cluster_checks(backend, parsed)]


def _job(session: Session, accelerator: str, before: list[Report]) -> Report:
    """A real job, of a function in a project of its own."""
    started = time.monotonic()
    if any(report.finding.outcome == "fail" for report in before):
        return Report("job", Finding("skip", "needs all of the above"), 0.0)
    try:
        value = _run_probe(session, accelerator)
    except KineticError as exc:
        return Report("job", Finding("fail", str(exc), remedy(exc)), time.monotonic() - started)
    seconds = time.monotonic() - started
    return Report(
        "job", Finding("ok", f"{accelerator}: {value}, {seconds:.1f} s from here and back"), seconds
    )


def _run_probe(session: Session, accelerator: str) -> str:
    from kinetic_core.backends.base import known_backend
    from kinetic_core.cli.functions import import_file
    from kinetic_core.jobs.handle import JobHandle
    from kinetic_core.jobs.submit import Call, prepare, submit
    from kinetic_core.options import RunOptions

    name = known_backend(session.backend, session.connections).name
    options = RunOptions.checked(accelerator, backend=name, timeout=_JOB_SECONDS)
    with tempfile.TemporaryDirectory(prefix="kinetic-doctor-") as folder:
        file = Path(folder, "kinetic_probe.py")
        file.write_text(_PROBE)
        call = Call(import_file(file).one_second)
        prepared = prepare(
            call,
            options,
            session.connections.with_settings(replace(session.settings, package_root=folder)),
        )
    return str(JobHandle.of(submit(prepared), session.connections).result())


_PROBE = """\
import platform
import time


def one_second():
    time.sleep(1)
    return f"Python {platform.python_version()} ran for a second"
"""
