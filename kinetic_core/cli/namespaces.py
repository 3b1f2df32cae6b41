"""`kinetic namespace`: places for jobs, each with its own account, role and part of the bucket."""

from __future__ import annotations

from typing import Annotated

import typer

from kinetic_core.cli.clusters import Members, Plan, Yes
from kinetic_core.cli.plans import answer, carry_out, named_project
from kinetic_core.cli.root import namespace_app
from kinetic_core.cli.verb import Session, verb
from kinetic_core.provision.prepare import open_cloud, prepare_namespace_removal, prepare_namespaces
from kinetic_core.provision.specification import Wanted, WantedNamespace
from kinetic_core.provision.state import live_jobs_by_namespace

Name = Annotated[str, typer.Argument(metavar="NAME", help="name of the namespace")]


@verb(
    namespace_app,
    "add",
    examples=["kinetic namespace add ml", "kinetic namespace add ml --member user:ada@example.org"],
)
def add(session: Session, name: Name, member: Members = None, plan: Plan = False, yes: Yes = False) -> None:
    """Make a namespace ready for jobs: an account, a role, a prefix of the bucket for pods and members."""
    connections = named_project(session)
    settings = connections.settings
    spaces = (WantedNamespace(name, tuple(member or ())),)
    wanted = Wanted(settings.project, settings.zone, settings.cluster, namespaces=spaces)
    cloud = open_cloud(connections)
    prepared = prepare_namespaces(cloud, wanted)
    done = carry_out(session, cloud, prepared, only_plan=plan, yes=yes)
    if session.output.as_json:
        session.output.json("namespace.add", answer(prepared, done=done))
    elif done:
        session.output.line(f"jobs run there with --namespace {name} or KINETIC_NAMESPACE={name}")


@verb(namespace_app, "list", examples=["kinetic namespace list", "kinetic namespace list --json"])
def list_namespaces(session: Session) -> None:
    """List the namespaces that `kinetic` made, with the number of jobs in each that have not ended."""
    counts = live_jobs_by_namespace(open_cloud(named_project(session)))
    if session.output.as_json:
        listed = [{"name": name, "jobs": count} for name, count in counts.items()]
        session.output.json("namespace.list", {"namespaces": listed})
    elif not counts:
        session.output.line("none was made yet: kinetic namespace add NAME makes one")
    else:
        session.output.table(("NAMESPACE", "JOBS"), [(name, f"{count}") for name, count in counts.items()])


@verb(namespace_app, "remove", examples=["kinetic namespace remove ml --plan", "kinetic namespace remove ml"])
def remove(session: Session, name: Name, plan: Plan = False, yes: Yes = False) -> None:
    """Remove what was made of a namespace, with the jobs in it. What they stored stays until it is old."""
    connections = named_project(session)
    settings = connections.settings
    wanted = Wanted(settings.project, settings.zone, settings.cluster, namespaces=(WantedNamespace(name),))
    cloud = open_cloud(connections)
    prepared = prepare_namespace_removal(cloud, wanted)
    done = carry_out(session, cloud, prepared, only_plan=plan, yes=yes)
    if session.output.as_json:
        session.output.json("namespace.remove", answer(prepared, done=done))
    elif done:
        session.output.line(
            f"remains: gs://{wanted.jobs_bucket}/{name}/, of which jobs and outputs go by age"
        )
