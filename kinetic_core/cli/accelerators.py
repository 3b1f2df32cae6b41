"""`kinetic accelerators`: the hardware that can be asked for."""

from __future__ import annotations

from typing import Annotated

import typer

from kinetic_core.cli.root import app
from kinetic_core.cli.session import Session, verb
from kinetic_core.errors import InvalidRequest


@verb(
    app,
    "accelerators",
    examples=["kinetic accelerators", "kinetic accelerators --kind gpu", "kinetic accelerators v5e"],
)
def accelerators(
    session: Session,
    word: Annotated[str, typer.Argument(help="only names with this in them")] = "",
    kind: Annotated[str | None, typer.Option(help="tpu or gpu")] = None,
) -> None:
    """List accelerators by the names `accelerator=` takes."""
    from kinetic_core.model.accelerators import known_accelerators

    if kind not in (None, "tpu", "gpu"):
        raise InvalidRequest(f"{kind!r} is neither tpu nor gpu")
    found = [
        row
        for row in known_accelerators()
        if kind in (None, row.accelerator.kind) and word.lower() in row.accelerator.name
    ]
    if session.output.as_json:
        names = ("name", "kind", "chips", "hosts", "topology", "machine_type")
        listed = [
            {**{name: getattr(row.accelerator, name) for name in names}, "note": row.note} for row in found
        ]
        session.output.json("accelerators", {"accelerators": listed})
        return
    rows = [
        (one.name, f"{one.chips}", f"{one.hosts}", one.topology or "", one.machine_type or "")
        for one in (row.accelerator for row in found)
    ]
    session.output.table(("NAME", "CHIPS", "HOSTS", "TOPOLOGY", "MACHINE"), rows)
