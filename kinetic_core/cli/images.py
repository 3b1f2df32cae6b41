"""`kinetic build-image`: base images for jobs that install their dependencies when they start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kinetic_core._runner.log import printable
from kinetic_core.cli.root import app
from kinetic_core.cli.verb import Session, verb


@verb(
    app,
    "build-image",
    examples=["kinetic build-image", "kinetic build-image --category tpu --repo us-docker.pkg.dev/p/images"],
)
def build_image(
    session: Session,
    repo: Annotated[
        str | None, typer.Option(help="LOCATION-docker.pkg.dev/PROJECT/NAME, or an ACCOUNT of Docker Hub")
    ] = None,
    category: Annotated[list[str] | None, typer.Option(help="cpu, gpu or tpu; all without it")] = None,
    tag: Annotated[str | None, typer.Option(help="instead of this version")] = None,
    dockerfile: Annotated[Path | None, typer.Option(help="a file to build instead of ours")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", hidden=True)] = False,
) -> None:
    """Build and publish base images for container_image="prebuilt"."""
    del yes  # keras-kinetic asks; this verb never does
    from kinetic_core.images.base_images import KINDS
    from kinetic_core.images.base_images import build_image as build

    def show(line: str) -> None:
        typer.echo(printable(line), err=True)

    images = build(
        session.connections, repo, category or KINDS, tag=tag, dockerfile=dockerfile, progress=show
    )
    if session.output.as_json:
        session.output.json("build-image", {"images": images})
    else:
        for kind, uri in images.items():
            session.output.line(f"{kind}: {uri}")
