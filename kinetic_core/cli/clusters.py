"""`kinetic up`, `down`, `status`, `init`: a project's cluster, made, removed, looked at."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain, count
from typing import Annotated

import typer

from kinetic_core.cli.completion import accelerator_names
from kinetic_core.cli.plans import answer, carry_out, named_project, require_person
from kinetic_core.cli.root import app
from kinetic_core.cli.verb import Session, verb
from kinetic_core.connections import Connections
from kinetic_core.errors import InvalidRequest
from kinetic_core.jobs.cost import known_prices
from kinetic_core.profiles import Profile, editing, profiles_file, read_profiles
from kinetic_core.provision.cloud import Cloud
from kinetic_core.provision.inventory import clusters
from kinetic_core.provision.plan import absent
from kinetic_core.provision.prepare import Prepared, open_cloud, prepare_down, prepare_up
from kinetic_core.provision.resources import Json
from kinetic_core.provision.specification import Wanted, WantedNamespace, WantedPool, wanted_pool
from kinetic_core.provision.state import look
from kinetic_core.provision.vendored import KUEUE, LWS, AddOn, add_on
from kinetic_core.settings import Settings


def keep_profile(settings: Settings, name: str | None) -> tuple[str, str]:
    """Keep a profile of the settings' cluster as the current one; its name, and what to say of another one.

    What a profile of this cluster says of other things, as another address of a service, stays. Without a
    `name` the profile is called after the cluster; a profile of another cluster that is called so stays.
    """
    place = {field: getattr(settings, field) for field in _PLACE}
    with editing(profiles_file(os.environ)) as box:
        profiles = box[0].profiles
        kept_as = name or _unused_name(profiles, settings)
        old = profiles.get(kept_as, {})
        of_cluster = _names(old, settings)
        left_out = ("kubeconfig", "kube_context", "bucket")
        kept = {key: value for key, value in old.items() if key not in left_out} if of_cluster else {}
        profile = {**kept, **place, "namespace": settings.namespace, "backend": "gke"}
        box[0] = replace(box[0].having(kept_as, profile), current=kept_as)
    if old and not of_cluster:
        return kept_as, f"replaced profile {kept_as}, which was of {_described(old)}"
    if name or kept_as == settings.cluster:
        return kept_as, ""
    other = _described(profiles[settings.cluster])
    return kept_as, f"profile {settings.cluster} is of another cluster: {other}; it stays as it is"


def _unused_name(profiles: Mapping[str, Profile], settings: Settings) -> str:
    """The cluster's name, or if a profile of another cluster has it, one that says the difference."""
    other = profiles.get(settings.cluster, {})
    difference = settings.zone if other.get("project") == settings.project else settings.project
    longer = re.sub(r"[^\w-]", "-", f"{settings.cluster}-{difference}", flags=re.ASCII)[:60]
    numbered = (f"{longer}-{number}" for number in count(2))
    names = chain((settings.cluster, longer), numbered)
    return next(name for name in names if name not in profiles or _names(profiles[name], settings))


def _described(profile: Profile) -> str:
    if profile.get("backend") == "local":
        return "backend local"
    if "kubeconfig" in profile:
        return f"kubeconfig {profile['kubeconfig']}"
    return f"{profile['cluster']} in {profile['zone']} of project {profile['project']}"


def forget_profiles(session: Session, settings: Settings, *, remove: bool) -> list[str]:
    """Remove the profiles of a cluster that has gone, if asked to or agreed to; their names."""
    file = profiles_file(os.environ)
    names = [name for name, profile in read_profiles(file).profiles.items() if _names(profile, settings)]
    if not names:
        return []
    told = ", ".join(names)
    if not remove and sys.stdin.isatty() and not session.output.as_json:
        remove = typer.confirm(f"Remove the profiles that name this cluster too: {told}?")
    if not remove:
        session.output.line(f"profiles that name this cluster stay: {told} (kinetic profile remove NAME)")
        return []
    with editing(file) as box:
        for name in names:
            box[0] = box[0].without(name)
    return names


def _names(profile: Profile, settings: Settings) -> bool:
    return all(profile.get(field) == getattr(settings, field) for field in _PLACE)


_PLACE = ("project", "zone", "cluster")
"""Fields that say which GKE cluster is meant."""


Plan = Annotated[bool, typer.Option("--plan", "--dry-run", help="show the steps and do nothing")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]
Members = Annotated[
    list[str] | None,
    typer.Option("--member", help="user:ADDRESS or group:ADDRESS that may submit jobs in the namespace"),
]
Pools = Annotated[
    list[str] | None,
    typer.Option(
        "--accelerator", "-a", help="also a pool for this TPU or GPU", autocompletion=accelerator_names
    ),
]
Least = Annotated[int | None, typer.Option("--min-nodes", help="machines of each pool that are always there")]
Autopilot = Annotated[
    bool | None, typer.Option("--autopilot/--standard", help="an Autopilot cluster; --zone is a region then")
]
Private = Annotated[bool | None, typer.Option("--private/--public", help="nodes without public addresses")]
ProfileName = Annotated[str | None, typer.Option(help="name of the profile to keep; default: the cluster's")]


@verb(
    app,
    "up",
    examples=[
        "kinetic up --project my-project --accelerator tpu-v6e-8 --plan",
        "kinetic up --project my-project --zone europe-west4-b --accelerator gpu-l4 --spot --yes",
        "kinetic up --project my-project --zone us-central1 --autopilot",
        "kinetic up --project my-project --accelerator tpu-v5e-4 --export terraform infrastructure",
    ],
)
def up(
    session: Session,
    accelerator: Pools = None,
    spot: Annotated[bool, typer.Option("--spot", help="pools of Spot machines")] = False,
    min_nodes: Least = None,
    autopilot: Autopilot = None,
    private: Private = None,
    channel: Annotated[str | None, typer.Option(help="RAPID, REGULAR, STABLE or EXTENDED")] = None,
    network: Annotated[str | None, typer.Option(help="a VPC network; default: default")] = None,
    subnetwork: Annotated[str | None, typer.Option(help="a subnetwork of it")] = None,
    machine_type: Annotated[str | None, typer.Option(help="of the default pool; e2-standard-4")] = None,
    lws: Annotated[
        bool, typer.Option("--lws/--no-lws", help="also LeaderWorkerSet, for slices of several hosts")
    ] = True,
    kueue: Annotated[bool, typer.Option("--kueue", help="also Kueue, for queues")] = False,
    member: Members = None,
    profile_name: ProfileName = None,
    export: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="terraform DIR", help="write the plan as Terraform and do nothing"),
    ] = None,
    plan: Plan = False,
    yes: Yes = False,
) -> None:
    """Make a cluster with all it needs, or what is missing of one. What is as it should be is kept."""
    connections = named_project(session)
    settings = connections.settings
    pools = tuple(wanted_pool(each, spot=spot, min_nodes=min_nodes or 0) for each in accelerator or ())
    wanted = Wanted(
        settings.project,
        settings.zone,
        settings.cluster,
        pools=pools,
        namespaces=(WantedNamespace(settings.namespace, tuple(member or ())),),
        autopilot=autopilot,
        private=private,
        channel=channel.upper() if channel else None,
        network=network,
        subnetwork=subnetwork,
        machine_type=machine_type,
        add_ons=_add_ons(lws=lws, kueue=kueue),
        prices=known_prices(settings),
    )
    if export is not None:
        _export(session, wanted, *export)
        return
    _up(session, connections, wanted, profile_name, plan=plan, yes=yes)


def _up(
    session: Session,
    connections: Connections,
    wanted: Wanted,
    profile_name: str | None,
    *,
    plan: bool,
    yes: bool,
    schema: str = "up",
) -> None:
    cloud = open_cloud(connections)
    prepared = prepare_up(cloud, wanted)
    done = carry_out(session, cloud, prepared, only_plan=plan, yes=yes)
    profile, remark = keep_profile(connections.settings, profile_name) if done else (None, "")
    if session.output.as_json:
        session.output.json(schema, {**answer(prepared, done=done), "profile": profile})
    elif profile is not None:
        session.output.line(f"kept profile {profile}, now the current one; `kinetic doctor` looks it over")
        if remark:
            session.output.line(remark)


def _add_ons(*, lws: bool, kueue: bool) -> tuple[AddOn, ...]:
    return tuple(add_on(name) for name, on in ((LWS, lws), (KUEUE, kueue)) if on)


def _export(session: Session, wanted: Wanted, form: str, folder: str) -> None:
    from pathlib import Path

    from kinetic_core.provision.terraform import write

    if form != "terraform":
        raise InvalidRequest(f"--export {form!r} is not supported: use --export terraform")
    files = [str(path) for path in write(wanted, Path(folder))]
    if session.output.as_json:
        session.output.json("up.export", {"files": files})
    for path in files:
        session.output.line(f"wrote {path}")
    session.output.line(
        "not in it: what is inside the cluster; after `terraform apply`, `kinetic up` makes it"
    )


@verb(app, "down", examples=["kinetic down --plan", "kinetic down", "kinetic down --yes"])
def down(
    session: Session,
    remove_profiles: Annotated[
        bool, typer.Option("--remove-profiles", help="also the profiles that name this cluster")
    ] = False,
    plan: Plan = False,
    yes: Yes = False,
) -> None:
    """Remove a cluster and all that was made for it, with its jobs and what they stored."""
    connections = named_project(session)
    settings = connections.settings
    wanted = Wanted(settings.project, settings.zone, settings.cluster, namespaces=())
    asks = lambda _question: _types_the_name(session, settings.cluster)  # noqa: E731
    prepared, lost, done = take_down(session, open_cloud(connections), wanted, asks, only_plan=plan, yes=yes)
    removed = forget_profiles(session, settings, remove=remove_profiles) if done else []
    remains = prepared.remains
    if session.output.as_json:
        fields = {**answer(prepared, done=done), "lost": lost, "remains": remains}
        session.output.json("down", {**fields, "profiles_removed": removed})
        return
    for line in remains:
        session.output.line(f"remains: {line}")


def take_down(
    session: Session,
    cloud: Cloud,
    wanted: Wanted,
    agreed: Callable[[str], bool],
    *,
    only_plan: bool = False,
    yes: bool = False,
) -> tuple[Prepared, list[str], bool]:
    """Show what goes with a cluster, then the steps; ask; remove it. Last value: whether it was."""
    prepared = prepare_down(cloud, wanted)
    lost = look(cloud, prepared.wanted).losses()
    for line in lost:
        session.output.line(line)
    done = carry_out(session, cloud, prepared, only_plan=only_plan, yes=yes, agreed=agreed)
    return prepared, lost, done


def _types_the_name(session: Session, cluster: str) -> bool:
    """Whether a person types the cluster's name, below what will be removed. Raises InvalidRequest."""
    require_person(session)
    if typer.prompt(f"Type the cluster's name, {cluster}, to remove all of this") != cluster:
        raise InvalidRequest("the name does not match: nothing was removed")
    return True


@verb(app, "status", examples=["kinetic status", "kinetic status --json"])
def status(session: Session) -> None:
    """Show a cluster, its pools and its namespaces, as the cloud has them."""
    connections = named_project(session)
    settings = connections.settings
    wanted = Wanted(settings.project, settings.zone, settings.cluster)
    state = look(open_cloud(connections), wanted)
    if session.output.as_json:
        session.output.json("status", state.fields())
        return
    if not state.status:
        session.output.line(absent(wanted, state.elsewhere))
        return
    session.output.table(("CLUSTER", "STATUS", "VERSION", "ENDPOINT"), [state.row()])
    session.output.table(POOL_COLUMNS, [pool.row() for pool in state.pools])
    session.output.line(f"namespaces: {', '.join(state.namespaces) or 'none made by kinetic'}")
    if state.running_jobs:
        session.output.line(f"jobs that have not ended: {', '.join(state.running_jobs)}")
    for each in state.unknown:
        session.output.line(f"not known: {each}")


POOL_COLUMNS = ("POOL", "ACCELERATOR", "MACHINE", "NODES", "TERMS", "STATUS")


@verb(app, "init", examples=["kinetic init --project my-project", "kinetic init --project my-project --yes"])
def init(
    session: Session,
    accelerator: Annotated[
        list[str] | None,
        typer.Option(
            "--accelerator",
            "-a",
            help="of a cluster that is made: also a pool",
            autocompletion=accelerator_names,
        ),
    ] = None,
    profile_name: ProfileName = None,
    yes: Yes = False,
) -> None:
    """Set this machine up: keep a profile of the project's cluster if it has one, else make one."""
    connections = named_project(session)
    settings = connections.settings
    if joined := _to_join(connections):
        settings = settings.with_arguments(zone=joined["location"], cluster=joined["name"])
        _join(session, settings, profile_name)
        return
    pools: tuple[WantedPool, ...] = tuple(map(wanted_pool, accelerator or ()))
    spaces = (WantedNamespace(settings.namespace),)
    wanted = Wanted(
        settings.project,
        settings.zone,
        settings.cluster,
        pools=pools,
        namespaces=spaces,
        add_ons=_add_ons(lws=True, kueue=False),
        prices=known_prices(settings),
    )
    _up(session, connections, wanted, profile_name, plan=False, yes=yes, schema="init")


def _to_join(connections: Connections) -> Json | None:
    """The one cluster that was made here, or that is named. Raises InvalidRequest if there are several."""
    settings = connections.settings
    named = {key for key in ("zone", "cluster") if settings.origin(key) != "default"}
    found = [
        each
        for each in clusters(open_cloud(connections), settings.project)
        if ("cluster" in named or (each.get("resourceLabels") or {}).get("kinetic"))
        and ("cluster" not in named or each["name"] == settings.cluster)
        and ("zone" not in named or each.get("location") == settings.zone)
    ]
    if len(found) > 1:
        names = ", ".join(f"{each['name']} ({each['location']})" for each in found)
        raise InvalidRequest(
            f"{settings.project} has several clusters: {names}; choose with --cluster and --zone"
        )
    return found[0] if found else None


def _join(session: Session, settings: Settings, profile_name: str | None) -> None:
    profile, remark = keep_profile(settings, profile_name)
    if session.output.as_json:
        place = {"project": settings.project, "zone": settings.zone, "cluster": settings.cluster}
        session.output.json("init", {**place, "done": True, "steps": [], "profile": profile})
    session.output.line(
        f"joined {settings.cluster} in {settings.zone}: profile {profile}; `kinetic doctor` looks it over"
    )
    if remark:
        session.output.line(remark)
