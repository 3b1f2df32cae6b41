"""`kinetic config`: each setting, and where it comes from."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Annotated

import typer

from kinetic_core.cli.root import app
from kinetic_core.cli.verb import Session, verb
from kinetic_core.errors import InvalidRequest

_NOT_SETTINGS = ("origins", "profile", "google_account", "kubernetes_account")
_PRECEDENCE = "flag or argument, then variable, then profile, then default"


@verb(app, "config", examples=["kinetic config", "kinetic config --profile team --json"])
def config(
    session: Session,
    what: Annotated[str, typer.Argument(metavar="[show]", help="there is nothing else to do")] = "show",
) -> None:
    """Show every setting with its origin."""
    if what != "show":
        raise InvalidRequest(
            f"kinetic config {what}: it only shows; `kinetic profile create` keeps settings, and a flag or "
            "a variable sets one"
        )
    from kinetic_core.profiles import profiles_file
    from kinetic_core.settings import Settings

    settings = session.settings
    names = [each.name for each in fields(Settings) if each.name not in _NOT_SETTINGS]
    told = [
        {
            "name": name,
            "value": _plain(getattr(settings, name)),
            "origin": settings.origin(name),
        }
        for name in names
    ]
    file = str(profiles_file(os.environ))
    if session.output.as_json:
        session.output.json("config", {"profile": settings.profile, "file": file, "settings": told})
        return
    session.output.line(f"profile: {settings.profile or 'none'} ({file})")
    session.output.table(
        ("SETTING", "VALUE", "FROM"),
        [(str(one["name"]), str(one["value"]), str(one["origin"])) for one in told],
    )
    session.output.line(_PRECEDENCE)


def _plain(value: object) -> object:
    if value is None:
        return ""
    return value if isinstance(value, bool | int | float | dict) else str(value)
