"""`kinetic accelerators`: the hardware that can be asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinetic_core.cli.root import app
from kinetic_core.cli.verb import Session, complain, verb
from kinetic_core.errors import ConfigurationError, InvalidRequest, KineticError

if TYPE_CHECKING:
    from kinetic_core.accelerators.grammar import Accelerator
    from kinetic_core.accelerators.shapes import Row

_ON_DEMAND = "(made when asked for)"
"""What stands for the pool of a cluster that makes pools itself."""


@verb(
    app,
    "accelerators",
    examples=[
        "kinetic accelerators",
        "kinetic accelerators --kind gpu",
        "kinetic accelerators v5e",
        "kinetic accelerators --live",
    ],
)
def accelerators(
    session: Session,
    word: Annotated[str, typer.Argument(help="only names with this in them")] = "",
    kind: Annotated[str | None, typer.Option(help="tpu or gpu")] = None,
    live: Annotated[
        bool, typer.Option("--live", help="also which node pools of the GKE cluster have each")
    ] = False,
) -> None:
    """List accelerators by the names `accelerator=` takes."""
    from kinetic_core.accelerators.grammar import known_accelerators, parse_accelerator
    from kinetic_core.backends.kubernetes.capacity import meaning

    if kind not in (None, "tpu", "gpu"):
        raise InvalidRequest(f"{kind!r} is neither tpu nor gpu")
    found = [
        row
        for row in known_accelerators()
        if kind in (None, row.accelerator.kind) and word.lower() in row.accelerator.name
    ]
    cluster = _cluster(session) if live else None
    pools = {
        row.accelerator.name: None if cluster is None else pools_with(cluster, row.accelerator)
        for row in found
    }
    named = {row.accelerator.name: parse_accelerator(row.accelerator.name) for row in found}
    meant = {name: meaning(cluster, one) for name, one in named.items() if cluster is not None}
    if session.output.as_json:
        listed = [_listed(row, pools, named, meant) for row in found]
        session.output.json("accelerators", {"accelerators": listed})
        return
    columns = ("NAME", "CHIPS", "HOSTS", "TOPOLOGY", "MACHINE", *(() if cluster is None else ("POOLS",)))
    rows = [
        (
            *(one.name, f"{one.chips}", f"{one.hosts}", one.topology or "", one.machine_type or ""),
            *(() if cluster is None else (", ".join(pools[one.name] or ()),)),
        )
        for one in (row.accelerator for row in found)
    ]
    session.output.table(columns, rows, ("TOPOLOGY", "HOSTS", "CHIPS", "MACHINE"))
    for name, one in named.items():
        for other in one.others:
            about = other.describe().partition(" (")[2].removesuffix(")")
            here = f"; on this cluster it is {meant[name].exact}" if meant else ""
            session.output.line(
                f"{name} is also {other.exact}, {about}: where the cluster has a pool of that only{here}"
            )


def _listed(
    row: Row,
    pools: Mapping[str, Sequence[str] | None],
    named: Mapping[str, Accelerator],
    meant: Mapping[str, Accelerator],
) -> dict[str, Any]:
    """Return the row of an accelerator in the command's JSON."""
    name = row.accelerator.name
    fields = ("name", "kind", "chips", "hosts", "topology", "machine_type")
    return {
        **{field: getattr(row.accelerator, field) for field in fields},
        "note": row.note,
        "pools": pools[name],
        "also": [other.exact for other in named[name].others],
        "means": meant[name].exact if meant else None,
    }


def _cluster(session: Session) -> Mapping[str, Any] | None:
    """The cluster as the GKE API describes it; None, said on stderr, where that cannot be known."""
    from kinetic_core.backends.base import named_cluster
    from kinetic_core.backends.kubernetes.connection import gke_cluster

    try:
        if not session.settings.project:
            raise ConfigurationError("--live needs a GKE cluster: set KINETIC_PROJECT or --project")
        return gke_cluster(named_cluster(session.settings), session.connections)
    except (KineticError, OSError) as exc:
        complain(exc)
        return None


def pools_with(cluster: Mapping[str, Any], accelerator: Accelerator) -> list[str]:
    """The pools that have the hardware."""
    from kinetic_core.backends.kubernetes.capacity import makes_pools, pool_has

    names = [str(pool["name"]) for pool in cluster.get("nodePools") or () if pool_has(pool, accelerator)]
    return names or ([_ON_DEMAND] if makes_pools(cluster) else [])
