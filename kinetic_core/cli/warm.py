"""`kinetic warm`: the workers of a namespace, which run calls of functions with `warm=`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinetic_core.cli.functions import load
from kinetic_core.cli.jobs import attached
from kinetic_core.cli.parallel import do_each
from kinetic_core.cli.root import warm_app
from kinetic_core.cli.run import Accelerator, Target, Warm
from kinetic_core.cli.verb import Session, verb
from kinetic_core.errors import InvalidRequest, JobNotFound

if TYPE_CHECKING:
    from kinetic_core.backends.base import Backend
    from kinetic_core.jobs.warm import WorkerSummary

_ID = "job-0123456789abcdef"
_MOST = 100
"""Workers that one command starts."""


def _place(session: Session) -> Backend:
    from kinetic_core.backends.base import known_backend

    return known_backend(session.backend, session.connections)


def _workers(session: Session) -> list[WorkerSummary]:
    from kinetic_core.jobs.warm import workers

    return list(workers(_place(session), session.settings.namespace))


@verb(warm_app, "list", examples=["kinetic warm list", "kinetic warm list --json | jq '.workers[].job_id'"])
def list_workers(session: Session) -> None:
    """List the workers that have not ended: what each is, and whether it waits for a call."""
    found = _workers(session)
    if session.output.as_json:
        session.output.json("warm.list", {"workers": [_fields(one) for one in found]})
        return
    if not found:
        session.output.line("no workers")
        return
    rows = [
        (
            one.job_id,
            "idle" if one.is_idle else one.seen.status.value,
            one.accelerator,
            f"instance {one.instance}" if one.instance else one.reuse or "pod",
            str(one.calls),
            f"{one.idle_seconds:g} s",
        )
        for one in found
    ]
    session.output.table(("WORKER", "STATUS", "ACCELERATOR", "SHARED", "CALLS", "ENDS AFTER"), rows)


@verb(
    warm_app,
    "start",
    examples=["kinetic warm start train.py:train --warm 30m", "kinetic warm start evaluate.py -n 4"],
)
def start(
    session: Session,
    target: Target,
    accelerator: Accelerator = None,
    warm: Warm = None,
    count: Annotated[int, typer.Option("--number", "-n", min=1, max=_MOST, help="how many workers")] = 1,
) -> None:
    """Start workers for calls of a function that have yet to come, and print their ids.

    What the function's calls need is uploaded now, an image that is missing is built, and pods are made.
    """
    from kinetic_core.jobs.bundle import pack
    from kinetic_core.jobs.warm import start_worker

    function = load(target, session, accelerator, warm)
    if function.options.warm is None:
        raise InvalidRequest(f"{target}: say for how long a worker waits for a call: --warm 10m")
    packed = pack(function.function, function.options, session.connections)
    started = [start_worker(packed).job_id for _ in range(count)]
    if session.output.as_json:
        session.output.json("warm.start", {"job_ids": started})
        return
    for job_id in started:
        session.output.line(job_id)


@verb(warm_app, "stop", examples=[f"kinetic warm stop {_ID}", "kinetic warm stop --all"])
def stop(
    session: Session,
    job_ids: Annotated[list[str] | None, typer.Argument(metavar="[WORKER]...", help="ids of workers")] = None,
    every: Annotated[bool, typer.Option("--all", help="all workers of the namespace")] = False,
) -> int | None:
    """Stop workers. A call that runs there goes on in a pod of its own, unless it may not be retried."""
    if bool(job_ids) == every:
        raise InvalidRequest("name the workers to stop, or give --all")
    known = [one.job_id for one in _workers(session)]
    if unknown := [one for one in job_ids or () if one not in known]:
        raise InvalidRequest(f"{unknown[0]} is no worker that runs here; `kinetic warm list` lists them")

    def end(job_id: str) -> str:
        try:
            attached(session, job_id).cancel()
        except JobNotFound:  # somebody has removed its handle from the store, or it has another store
            _place(session).delete(session.settings.namespace, job_id)
        return f"stopped {job_id}"

    return do_each(session, "warm.stop", job_ids or known, end)


def _fields(one: WorkerSummary) -> dict[str, Any]:
    """Return what is known of a worker, for JSON."""
    facts = {name: value for name, value in asdict(one).items() if name != "seen"}
    return {**facts, "status": one.seen.status.value}
