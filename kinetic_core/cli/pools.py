"""`kinetic pool`: node pools for accelerators."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer

from kinetic_core.cli.clusters import POOL_COLUMNS, Plan, Yes
from kinetic_core.cli.completion import accelerator_names
from kinetic_core.cli.plans import answer, carry_out, named_project
from kinetic_core.cli.root import pool_app
from kinetic_core.cli.verb import Session, verb
from kinetic_core.errors import InvalidRequest
from kinetic_core.jobs.cost import known_prices
from kinetic_core.provision.cloud import Cloud
from kinetic_core.provision.prepare import (
    Prepared,
    open_cloud,
    prepare_pool_removal,
    prepare_pool_sizes,
    prepare_pools,
)
from kinetic_core.provision.specification import Wanted, WantedPool, wanted_pool
from kinetic_core.provision.state import look_at_pools
from kinetic_core.settings import Settings

Name = Annotated[str, typer.Argument(metavar="NAME", help="name of the pool")]
Least = Annotated[int | None, typer.Option("--min-nodes", help="machines that are always there")]
Most = Annotated[int | None, typer.Option("--max-nodes", help="machines there may be at once")]


@verb(
    pool_app,
    "add",
    examples=[
        "kinetic pool add --accelerator tpu-v5e-4 --spot",
        "kinetic pool add -a gpu-a100-8 --reservation my-reservation --max-nodes 4",
        "kinetic pool add -a tpu-v6e-16 --slices 2 --flex-start",
    ],
)
def add(
    session: Session,
    accelerator: Annotated[
        str, typer.Option("--accelerator", "-a", help="a TPU or a GPU", autocompletion=accelerator_names)
    ],
    name: Annotated[str | None, typer.Option(help="default: after the accelerator and its terms")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Spot machines")] = False,
    reservation: Annotated[str, typer.Option(envvar="KINETIC_RESERVATION", help="use this reservation")] = "",
    flex_start: Annotated[
        bool, typer.Option("--flex-start", help="wait for machines (Dynamic Workload Scheduler)")
    ] = False,
    max_run_hours: Annotated[int, typer.Option(help="take machines away after so long; 0 never")] = 0,
    node_zone: Annotated[
        list[str] | None, typer.Option("--node-zone", help="where its machines are, in a regional cluster")
    ] = None,
    slices: Annotated[int, typer.Option(help="as many slices of several hosts, each a pool")] = 1,
    min_nodes: Least = None,
    max_nodes: Most = None,
    plan: Plan = False,
    yes: Yes = False,
) -> None:
    """Add a pool, which grows from nothing when a job needs it; one that is there is resized."""
    pool = wanted_pool(
        accelerator,
        name=name,
        spot=spot,
        min_nodes=min_nodes or 0,
        max_nodes=max_nodes,
        reservation=reservation,
        flex_start=flex_start,
        max_run_hours=max_run_hours,
        zones=tuple(node_zone or ()),
    )
    connections = named_project(session)
    wanted = _with_pools(connections.settings, *_slices(pool, slices))
    cloud = open_cloud(connections)
    _finish(session, "pool.add", cloud, prepare_pools(cloud, wanted), plan=plan, yes=yes)


@verb(pool_app, "update", examples=["kinetic pool update tpu-v5e-4-spot --max-nodes 20"])
def update(
    session: Session,
    name: Name,
    min_nodes: Least = None,
    max_nodes: Most = None,
    plan: Plan = False,
    yes: Yes = False,
) -> None:
    """Change how far a pool grows and shrinks."""
    if min_nodes is None and max_nodes is None:
        raise InvalidRequest("nothing to change: pass --min-nodes or --max-nodes")
    connections = named_project(session)
    settings = connections.settings
    cloud = open_cloud(connections)
    prepared = prepare_pool_sizes(cloud, _with_pools(settings), name, min_nodes, max_nodes)
    _finish(session, "pool.update", cloud, prepared, plan=plan, yes=yes)


@verb(pool_app, "remove", examples=["kinetic pool remove tpu-v5e-4-spot"])
def remove(session: Session, name: Name, plan: Plan = False, yes: Yes = False) -> None:
    """Remove a pool; jobs that run on it are interrupted."""
    connections = named_project(session)
    settings = connections.settings
    cloud = open_cloud(connections)
    prepared = prepare_pool_removal(cloud, _with_pools(settings), name)
    _finish(session, "pool.remove", cloud, prepared, plan=plan, yes=yes)


@verb(pool_app, "list", examples=["kinetic pool list", "kinetic pool list --json"])
def list_pools(session: Session) -> None:
    """List the cluster's pools, whoever made them."""
    connections = named_project(session)
    settings = connections.settings
    pools = look_at_pools(open_cloud(connections), _with_pools(settings))
    if session.output.as_json:
        session.output.json("pool.list", {"pools": [asdict(pool) for pool in pools]})
        return
    session.output.table(POOL_COLUMNS, [pool.row() for pool in pools])


def _with_pools(settings: Settings, *pools: WantedPool) -> Wanted:
    return Wanted(
        settings.project,
        settings.zone,
        settings.cluster,
        pools=pools,
        namespaces=(),
        prices=known_prices(settings),
    )


def _slices(pool: WantedPool, count: int) -> list[WantedPool]:
    """As many pools: `name`, `name-2`, ..."""
    if count < 1 or (count > 1 and pool.accelerator.hosts == 1):
        raise InvalidRequest(
            f"--slices {count}: it counts slices of several hosts; of {pool.accelerator}, which is one host, "
            "--max-nodes says how many there may be"
        )
    return [pool, *(replace(pool, name=f"{pool.name}-{number}") for number in range(2, count + 1))]


def _finish(
    session: Session, schema: str, cloud: Cloud, prepared: Prepared, *, plan: bool, yes: bool
) -> None:
    done = carry_out(session, cloud, prepared, only_plan=plan, yes=yes)
    if session.output.as_json:
        session.output.json(schema, answer(prepared, done=done))
