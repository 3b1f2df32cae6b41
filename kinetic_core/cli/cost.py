"""`kinetic cost`: what jobs have used of their hardware, and what that comes to at the user's own prices."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinetic_core.cli.completion import batch_ids
from kinetic_core.cli.exit_codes import exit_code
from kinetic_core.cli.jobs import Origins, attached, of_origin, submitted_at, submitted_jobs
from kinetic_core.cli.jobs import job_ids as known_ids
from kinetic_core.cli.parallel import raise_if_all, side_by_side
from kinetic_core.cli.root import app
from kinetic_core.cli.verb import Session, verb
from kinetic_core.errors import KineticError

if TYPE_CHECKING:
    from kinetic_core.jobs.cost import Prices, Usage
    from kinetic_core.jobs.handle import JobHandle
    from kinetic_core.jobs.listing import JobSummary

_AT_ONCE = 16
"""Jobs that are looked at side by side; each costs some requests."""
_DAY = 86400.0
_MOST_DAYS = 36500
"""A century; what is far more began before any calendar."""


@dataclass(frozen=True)
class _Entry:
    """A job or a batch, what it used if that is known, and what it cost if there is a price for it."""

    job_id: str
    accelerator: str
    function: str = ""
    user: str = ""
    usage: Usage | None = None
    amount: float | None = None
    problem: str = ""
    jobs: int = 1


@dataclass
class _Group:
    """Sum of the jobs of one function that one user submitted, all on chips or all on cores."""

    function: str
    user: str
    unit: str
    jobs: int = 0
    unit_seconds: Counter[str] = field(default_factory=Counter)
    amounts: list[float] = field(default_factory=list)

    @property
    def held(self) -> float:
        """Seconds of one chip or core, over all uses."""
        return self.unit_seconds.total()

    @property
    def amount(self) -> float | None:
        """What the jobs cost whose price is known; None if no price is."""
        return sum(self.amounts) if self.amounts else None


@dataclass
class _Asked:
    """The jobs that a call means: their handles, why others cannot be had, and what lists say of them."""

    listed: dict[str, JobSummary] = field(default_factory=dict)
    handles: list[JobHandle] = field(default_factory=list)
    batches: dict[str, list[JobSummary]] = field(default_factory=dict)
    """What lists say of a batch: one line of all its inputs, or one of each."""
    unknown: dict[str, KineticError] = field(default_factory=dict)
    not_counted: int = 0

    def add(self, session: Session, job_id: str, *, is_batch: bool) -> None:
        """Add a job, or the jobs of a batch, by id."""
        try:
            self.handles += _jobs_of(session, job_id) if is_batch else [attached(session, job_id)]
        except KineticError as exc:
            self.unknown[job_id] = exc


@verb(
    app,
    "cost",
    examples=[
        "kinetic cost",
        "kinetic cost --days 30 --prices prices.toml",
        "kinetic cost job-0123456789abcdef",
        "kinetic cost --batch grp-0123456789abcdef",
        "kinetic cost --origin dag_id=train --origin run_id=manual__2026-11-21T18:00:00+00:00",
    ],
)
def cost(
    session: Session,
    job_ids: Annotated[
        list[str] | None, typer.Argument(metavar="JOB", help="ids of jobs", autocompletion=known_ids)
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="all jobs of this batch", autocompletion=batch_ids)
    ] = None,
    origin: Origins = None,
    days: Annotated[
        float,
        typer.Option(min=0, max=_MOST_DAYS, help="where no job is named: those submitted in so many days"),
    ] = 7.0,
    limit: Annotated[
        int, typer.Option(min=1, help="where no job is named: the newest so many; a batch counts as one")
    ] = 500,
    prices: Annotated[
        Path | None, typer.Option(help="your price table, a TOML file; else that of $KINETIC_PRICES")
    ] = None,
) -> int | None:
    """Say what jobs have used of their hardware by now, and on what; with a price table, what it costs.

    Without a job, a batch or an origin: the jobs of the last week, by function and user, dearest first.
    WAITING holds no hardware. From PULLING on it does. Of a batch that is not named, RUNNING is the time for
    which its inputs ran, from the start of their runners.
    """
    from kinetic_core.jobs.cost import known_prices, read_prices

    table = read_prices(prices) if prices is not None else known_prices(session.settings)
    named, now = bool(job_ids or batch is not None or origin), time.time()
    if named:
        asked = _named(session, job_ids or [], batch, origin or [])
    else:
        asked = _recent(session, now - days * _DAY, limit)
    entries = _entries(session, asked, table)
    total = _total(entries, table)
    if session.output.as_json:
        told = {
            "groups": [_group_fields(group) for group in _groups(entries)],
            "not_counted": asked.not_counted,
        }
        session.output.json("cost", {"jobs": [_fields(entry) for entry in entries], **told, **total})
    elif named:
        _show(session, entries, total)
    else:
        _show_groups(session, entries, total, _span(now, days), asked.not_counted)
    return next((exit_code(error) for error in asked.unknown.values()), None)


def _entries(session: Session, asked: _Asked, table: Prices | None) -> list[_Entry]:
    """What the jobs and batches have used, by the price table. Raises the first error if none can be had."""
    raise_if_all(asked.unknown, len(asked.unknown) + len(asked.handles) + len(asked.batches))
    found = side_by_side(lambda handle: _look(handle, table, asked.listed), asked.handles, _AT_ONCE)
    look = partial(_look_at_batch, session, table)
    found += side_by_side(look, list(asked.batches.values()), _AT_ONCE)
    return found + [_Entry(job_id, "", problem=str(error)) for job_id, error in asked.unknown.items()]


def _named(session: Session, job_ids: Sequence[str], batch: str | None, origins: Sequence[str]) -> _Asked:
    """The jobs that ids, a batch and an origin name."""
    listed = of_origin(submitted_jobs(session), origins) if origins else []
    asked = _Asked({one.job_id: one for one in listed})
    for job_id in dict.fromkeys((*job_ids, *asked.listed)):
        asked.add(session, job_id, is_batch=job_id in asked.listed and asked.listed[job_id].inputs > 0)
    if batch is not None:
        asked.handles += _jobs_of(session, batch)
    return asked


def _recent(session: Session, since: float, limit: int) -> _Asked:
    """The newest jobs and batches submitted since then, in Unix seconds: at most `limit`."""
    asked = _Asked()
    for job in submitted_jobs(session):
        if job.problem or (submitted_at(job) or 0.0) < since:
            continue
        batch = job.job_id if job.inputs else job.group_id
        if batch in asked.batches:
            asked.batches[batch].append(job)
        elif len(asked.listed) + len(asked.batches) == limit:
            asked.not_counted += job.inputs or 1
        elif batch:
            asked.batches[batch] = [job]
        else:
            asked.listed[job.job_id] = job
            asked.add(session, job.job_id, is_batch=False)
    return asked


def _jobs_of(session: Session, group_id: str) -> list[JobHandle]:
    """Those of a batch; of a map on workers, its lanes, which hold the hardware."""
    from kinetic_core.backends.base import known_backend
    from kinetic_core.batches.submit import attach_batch
    from kinetic_core.jobs.handle import JobHandle
    from kinetic_core.jobs.lanes import lanes_of
    from kinetic_core.jobs.observe import find

    backend = known_backend(session.backend, session.connections)
    if lanes := lanes_of(backend, group_id, every=True):
        known = (find(backend, lane.job_id) for lane in lanes)
        return [JobHandle.of(lane, backend.connections) for lane in known if lane is not None]
    batch = attach_batch(session.connections, group_id, backend=session.backend, goes_on=False)
    return [job for job in batch.jobs if job]


def _look(handle: JobHandle, prices: Prices | None, listed: Mapping[str, JobSummary]) -> _Entry:
    from kinetic_core.jobs.cost import usage_of

    summary = listed.get(handle.job_id) or listed.get(handle.group_id or "")
    user = summary.user if summary else ""
    try:
        usage = usage_of(handle.place, handle)
    except KineticError as exc:
        return _Entry(handle.job_id, handle.accelerator, handle.func_name, user, problem=str(exc))
    amount = prices.cost(usage) if prices else None
    return _Entry(handle.job_id, str(usage.accelerator), handle.func_name, user, usage, amount)


def _look_at_batch(session: Session, prices: Prices | None, listed: Sequence[JobSummary]) -> _Entry:
    """What a batch has used, by the times of its stored objects: a few requests for a thousand inputs."""
    from kinetic_core.backends.base import known_backend
    from kinetic_core.backends.kubernetes.chunks import input_of
    from kinetic_core.batches.snapshot import run_seconds
    from kinetic_core.jobs.cost import usage_in

    one = listed[0]
    group_id = one.job_id if one.inputs else one.group_id
    size = one.inputs or len(listed)
    own = [child for job in listed if (child := input_of(job.job_id)) is not None]
    most = one.inputs or max((index + 1 for _, index in own), default=size)
    facts = group_id, one.accelerator, one.func_name, one.user
    try:
        backend = known_backend(session.backend, session.connections)
        ran = run_seconds(backend.store, group_id, most, time.time())
    except KineticError as exc:
        return _Entry(*facts, problem=str(exc), jobs=size)
    usage = usage_in(group_id, one.accelerator, [("function", ran)])
    return _Entry(*facts, usage, prices.cost(usage) if prices else None, jobs=size)


def _groups(entries: Sequence[_Entry]) -> list[_Group]:
    """The jobs by function, user and unit, the most hardware first."""
    found: dict[tuple[str, str, str], _Group] = {}
    for entry in entries:
        if entry.usage is None:
            continue
        key = (entry.function, entry.user, entry.usage.unit)
        group = found.setdefault(key, _Group(*key))
        group.jobs += entry.jobs
        group.unit_seconds.update(entry.usage.unit_seconds)
        group.amounts += [] if entry.amount is None else [entry.amount]
    return sorted(found.values(), key=lambda group: (-(group.amount or 0.0), -group.held))


def _group_fields(group: _Group) -> dict[str, Any]:
    names = ("function", "user", "unit", "jobs", "amount")
    return {**{name: getattr(group, name) for name in names}, "unit_seconds": dict(group.unit_seconds)}


def _total(entries: Sequence[_Entry], prices: Prices | None) -> dict[str, Any]:
    from kinetic_core.jobs.cost import UNITS
    from kinetic_core.jobs.phases import USES

    known = [entry.usage for entry in entries if entry.usage is not None]
    amounts = [entry.amount for entry in entries if entry.amount is not None]
    sums = {
        f"{unit}_seconds": {
            use: sum(each.unit_seconds[use] for each in known if each.unit == unit) for use in USES[1:]
        }
        for unit in UNITS
    }
    return {
        **sums,
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
        "unit": usage.unit if usage else None,
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
    _show_sum(session, total)
    if total["without_price"]:
        session.output.line(f"no price is known for {len(total['without_price'])} of {len(entries)} jobs")
    for entry in entries:
        if entry.problem:
            session.output.line(f"{entry.job_id}: {entry.problem}")


def _span(now: float, days: float) -> str:
    """Say which time the last so many days are, by this machine's clock."""
    began, ended = (time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) for at in (now - days * _DAY, now))
    return f"in the last {days:g} day{'' if days == 1 else 's'}, from {began} to {ended}"


def _show_groups(
    session: Session, entries: Sequence[_Entry], total: Mapping[str, Any], span: str, not_counted: int
) -> None:
    from kinetic_core.jobs.phases import USES

    groups = _groups(entries)
    problems = [entry.problem for entry in entries if entry.problem]
    if not groups and not problems and not not_counted:
        session.output.line(f"no job was submitted {span}")
        return
    session.output.line(f"jobs that were submitted {span}:")
    currency = total["currency"]
    rows = []
    for group in groups:
        spent = [f"{group.unit_seconds[use]:.1f}" for use in USES[1:]]
        amount = ("?" if group.amount is None else f"{group.amount:.4f}",) if currency else ()
        rows.append((group.function, group.user, f"{group.jobs}", f"{group.unit}s", *spent, *amount))
    money = (currency,) if currency else ()
    columns = ("FUNCTION", "USER", "JOBS", "OF", *(use.upper() for use in USES[1:]), *money)
    session.output.table(columns, rows, ("IDLE", "INSTALLING", "PULLING", "USER"))
    _show_sum(session, total)
    if total["without_price"]:
        session.output.line(f"no price is known for {len(total['without_price'])} of the jobs")
    if not_counted:
        session.output.line(f"{not_counted} more jobs are not counted: give a higher --limit")
    if problems:
        session.output.line(f"{len(problems)} jobs could not be looked at, the first: {problems[0]}")


def _show_sum(session: Session, total: Mapping[str, Any]) -> None:
    from kinetic_core.jobs.cost import UNITS

    sums = {unit: sum(total[f"{unit}_seconds"].values()) for unit in UNITS}
    shown = [f"{held:.1f} {unit}-seconds" for unit, held in sums.items() if held] or ["no hardware was held"]
    told = f", {total['amount']:.4f} {total['currency']}" if total["amount"] is not None else ""
    session.output.line(f"{' and '.join(shown)}{told}")
