"""Plans at the terminal: shown, agreed to, carried out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import typer

from kinetic_core._runner.log import printable
from kinetic_core.cli.verb import Session
from kinetic_core.connections import Connections
from kinetic_core.errors import InvalidRequest
from kinetic_core.provision.add_ons import add_on_of
from kinetic_core.provision.apply import apply
from kinetic_core.provision.cloud import Cloud
from kinetic_core.provision.plan import Action, Step
from kinetic_core.provision.prepare import Prepared
from kinetic_core.provision.resources import Resource
from kinetic_core.provision.specification import location_faults, meant_location
from kinetic_core.provision.vendored import AddOn


def named_project(session: Session) -> Connections:
    """The connections of this call, whose settings must name a project and a place. Raises InvalidRequest."""
    if not session.settings.project:
        error = InvalidRequest("no project is set: pass --project, or set KINETIC_PROJECT or a profile")
        error.hint = "`kinetic profile create NAME` asks for a project and a cluster, and keeps them"
        raise error
    check_location(session.settings.zone)
    return session.connections


def check_location(zone: str) -> None:
    """Raise InvalidRequest for what is neither a zone nor a region.

    Says which zone or region may be meant by one that is in no known region.
    """
    for fault in location_faults(zone):
        raise InvalidRequest(fault)
    if meant := meant_location(zone):
        say(f"zone {zone!r} is in no region that is known here. Did you mean {meant!r}?")


def carry_out(
    session: Session,
    cloud: Cloud,
    prepared: Prepared,
    *,
    only_plan: bool,
    yes: bool,
    agreed: Callable[[str], bool] | None = None,
) -> bool:
    """Show a plan, and do it if it is agreed to; whether it was done (or there was nothing to do).

    `agreed` asks a person, by default for yes or no.
    Raises InvalidRequest if stdin is not a terminal, ProvisioningError for steps that fail.
    """
    for notice in (notice for pool in prepared.wanted.pools for notice in pool.notices()):
        say(notice)
    show(session, prepared.steps)
    todo = [step for step in prepared.steps if step.acts]
    if only_plan:
        return False
    if not todo:
        session.output.line("nothing to do")
        return True
    ask = agreed or (lambda question: agree(session, question))
    if not yes and not ask(f"{len(todo)} steps in {prepared.wanted.path}: go on?"):
        return False
    apply(cloud, prepared, say)
    return True


def agree(session: Session, question: str) -> bool:
    """Ask a person for yes or no. Raises InvalidRequest where there is none to ask."""
    require_person(session)
    return bool(typer.confirm(question))


def require_person(session: Session) -> None:
    """Raise InvalidRequest where nobody can be asked."""
    if session.output.as_json or not sys.stdin.isatty():
        raise InvalidRequest("stdin is not a terminal: pass --yes to apply, or --plan to only look")


def say(line: str) -> None:
    """Progress, which is no answer."""
    typer.echo(printable(line), err=True)


def show(session: Session, steps: tuple[Step, ...]) -> None:
    """The steps, for people; what is kept is counted, and so are the objects of an add-on."""
    shown = [step for step in steps if step.action is not Action.KEEP]
    rows = [
        row
        for (action, add_on), few in groupby(shown, _folded)
        for row in ([(action.value, *_folded_row(add_on, list(few)))] if add_on else map(_row, few))
    ]
    if rows:
        session.output.table(("ACTION", "KIND", "NAME", "DETAILS"), rows)
    if kept := len(steps) - len(shown):
        session.output.line(f"kept as they are: {kept}")
    new = [step.resource for step in shown if step.action in (Action.CREATE, Action.REPLACE)]
    if told := total(new):
        session.output.line(told)


def total(resources: Sequence[Resource]) -> str:
    """Return what the resources cost together, as a sentence; "" if all of them cost next to nothing."""
    idle, full = Counter[str](), Counter[str]()
    unknown = [str(one) for one in resources if one.hourly(full=True) is None]
    for one in resources:
        idle.update(one.hourly(full=False) or {})
        full.update(one.hourly(full=True) or {})
    if not full and not unknown:
        return ""
    known = f"{_money(idle)} while idle, {_money(full)} with all their machines"
    without = f", and {', '.join(unknown)}, for which no price is known" if unknown else ""
    return f"what is made costs {known}{without}"


def _money(amounts: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:.2f} {currency}/hour" for currency, amount in amounts.items()) or "nothing"


def answer(prepared: Prepared, *, done: bool) -> dict[str, Any]:
    """The fields that every verb with a plan prints as JSON."""
    wanted = prepared.wanted
    steps = [
        {
            "action": step.action.value,
            "kind": step.resource.kind,
            "name": step.resource.name,
            "details": list(step.details),
            "cost": step.resource.cost,
        }
        for step in prepared.steps
    ]
    place = {"project": wanted.project, "zone": wanted.location, "cluster": wanted.cluster}
    return {**place, "done": done, "steps": steps}


def _folded(step: Step) -> tuple[Action, AddOn | None]:
    return step.action, None if step.resource.only_waits else add_on_of(step.resource)


def _folded_row(add_on: AddOn, steps: list[Step]) -> tuple[str, str, str]:
    changes = {detail for step in steps for detail in step.details}
    return steps[0].resource.kind, str(add_on), ", ".join([f"{len(steps)} objects", *sorted(changes)])


def _row(step: Step) -> tuple[str, ...]:
    return step.action.value, step.resource.kind, step.resource.name, _about(step)


def _about(step: Step) -> str:
    cost = [step.resource.cost] if step.action is Action.CREATE and step.resource.cost else []
    return ", ".join([*step.details, *cost])
