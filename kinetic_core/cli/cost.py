"""`kinetic cost`: what jobs have used of their hardware, and what that comes to at the user's own prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinetic_core.cli.exit_codes import exit_code
from kinetic_core.cli.jobs import Origins, attached, of_origin, summaries_of
from kinetic_core.cli.parallel import raise_if_all, side_by_side
from kinetic_core.cli.root import app
from kinetic_core.cli.verb import Session, verb
from kinetic_core.errors import InvalidRequest, KineticError

if TYPE_CHECKING:
    from kinetic_core.jobs.cost import Prices, Usage
    from kinetic_core.jobs.handle import JobHandle

_AT_ONCE = 16
"""Jobs that are looked at side by side; each costs some requests."""


@dataclass(frozen=True)
class _Entry:
    """A job, what it used if that is known, and what it cost if there is a price for it."""

    job_id: str
    accelerator: str
    usage: Usage | None = None
    amount: float | None = None
    problem: str = ""


@verb(
    app,
    "cost",
    examples=[
        "kinetic cost job-0123456789abcdef",
        "kinetic cost --batch grp-0123456789abcdef --prices prices.toml",
        "kinetic cost --origin dag_id=train --origin run_id=manual__2026-11-21T18:00:00+00:00",
    ],
)
def cost(
    session: Session,
    job_ids: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="ids of jobs")] = None,
    batch: Annotated[str | None, typer.Option(help="all jobs of this batch")] = None,
    origin: Origins = None,
    prices: Annotated[
        Path | None, typer.Option(help="your price table, a TOML file; else that of $KINETIC_PRICES")
    ] = None,
) -> int | None:
    """Say what jobs have used of their hardware by now, and on what; with a price table, what it costs.

    WAITING holds no hardware. From PULLING on it does.
    """
    from kinetic_core.jobs.cost import known_prices, read_prices

    table = read_prices(prices) if prices is not None else known_prices(session.settings)
    handles, unknown = _handles(session, job_ids or [], batch, origin or [])
    raise_if_all(unknown, len(unknown) + len(handles))
    entries = side_by_side(lambda handle: _look(handle, table), handles, _AT_ONCE)
    entries += [_Entry(job_id, "", problem=str(error)) for job_id, error in unknown.items()]
    total = _total(entries, table)
    if session.output.as_json:
        session.output.json("cost", {"jobs": [_fields(entry) for entry in entries], **total})
    else:
        _show(session, entries, total)
    return next((exit_code(error) for error in unknown.values()), None)


def _handles(
    session: Session, job_ids: Sequence[str], batch: str | None, origins: Sequence[str]
) -> tuple[list[JobHandle], dict[str, KineticError]]:
    """The jobs that were asked for; of those that cannot be found or read, why."""
    if not job_ids and batch is None and not origins:
        raise InvalidRequest("name jobs, a batch with --batch, or a DAG run with --origin")
    listed = of_origin(summaries_of(session), origins) if origins else []
    found: list[JobHandle] = []
    unknown: dict[str, KineticError] = {}
    is_batch = {**dict.fromkeys(job_ids, False), **{one.job_id: one.inputs > 0 for one in listed}}
    for job_id, has_inputs in is_batch.items():
        try:
            found += _jobs_of(session, job_id) if has_inputs else [attached(session, job_id)]
        except KineticError as exc:
            unknown[job_id] = exc
    if batch is not None:
        found += _jobs_of(session, batch)
    return found, unknown


def _jobs_of(session: Session, group_id: str) -> list[JobHandle]:
    """Those of a batch."""
    from kinetic_core.batches.submit import attach_batch

    batch = attach_batch(session.connections, group_id, backend=session.backend, goes_on=False)
    return [job for job in batch.jobs if job]


def _look(handle: JobHandle, prices: Prices | None) -> _Entry:
    from kinetic_core.jobs.cost import usage_of

    try:
        usage = usage_of(handle.place, handle)
    except KineticError as exc:
        return _Entry(handle.job_id, handle.accelerator, problem=str(exc))
    return _Entry(handle.job_id, str(usage.accelerator), usage, prices.cost(usage) if prices else None)


def _total(entries: Sequence[_Entry], prices: Prices | None) -> dict[str, Any]:
    from kinetic_core.jobs.phases import USES

    known = [entry.usage for entry in entries if entry.usage is not None]
    amounts = [entry.amount for entry in entries if entry.amount is not None]
    return {
        "unit_seconds": {use: sum(each.unit_seconds[use] for each in known) for use in USES[1:]},
        "amount": sum(amounts) if amounts else None,
        "currency": prices.currency if prices else None,
        "without_price": [entry.job_id for entry in entries if prices and entry.amount is None],
    }


def _fields(entry: _Entry) -> dict[str, Any]:
    usage = entry.usage
    return {
        "job_id": entry.job_id,
        "accelerator": entry.accelerator,
        "units": usage.units if usage else None,
        "seconds": dict(usage.seconds) if usage else None,
        "unit_seconds": usage.unit_seconds if usage else None,
        "amount": entry.amount,
        "problem": entry.problem,
    }


def _show(session: Session, entries: Sequence[_Entry], total: dict[str, Any]) -> None:
    from kinetic_core.jobs.phases import USES

    currency = total["currency"]
    money = (currency,) if currency else ()
    rows = []
    for entry in entries:
        spent = [f"{entry.usage.seconds[use]:.1f}" for use in USES] if entry.usage else ["?"] * len(USES)
        amount = ("?" if entry.amount is None else f"{entry.amount:.4f}",) if currency else ()
        rows.append((entry.job_id, entry.accelerator, *spent, *amount))
    columns = ("JOB", "ACCELERATOR", *(use.upper() for use in USES), *money)
    session.output.table(columns, rows, ("IDLE", "INSTALLING", "PULLING", "ACCELERATOR"))
    held = sum(total["unit_seconds"].values())
    told = f", {total['amount']:.4f} {currency}" if total["amount"] is not None else ""
    session.output.line(f"{held:.1f} chip-seconds (of cores, where a job has no chips){told}")
    if total["without_price"]:
        session.output.line(f"no price is known for {len(total['without_price'])} of {len(entries)} jobs")
    for entry in entries:
        if entry.problem:
            session.output.line(f"{entry.job_id}: {entry.problem}")
