"""`kinetic profile`: settings by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kinetic_core.cli.plans import check_location
from kinetic_core.cli.root import profile_app
from kinetic_core.cli.verb import Session, verb
from kinetic_core.errors import InvalidRequest
from kinetic_core.profiles import (
    FIELDS,
    OVERRIDES,
    Profiles,
    editing,
    missing_fields,
    profiles_file,
    read_profiles,
)
from kinetic_core.settings import check_backend


def _file() -> Path:
    return profiles_file(os.environ)


def _names() -> list[str]:
    from kinetic_core.errors import KineticError

    try:
        return sorted(read_profiles(_file()).profiles)
    except KineticError:
        return []


Name = Annotated[str, typer.Argument(metavar="NAME", help="name of the profile", autocompletion=_names)]
_FLAGGED = ("project", "zone", "cluster", "namespace", "backend")


@verb(
    profile_app,
    "create",
    examples=[
        "kinetic profile create team --project my-project --zone europe-west4-b --cluster training",
        "kinetic profile create kind backend=gke kubeconfig=~/.kube/config bucket=my-bucket",
        "kinetic profile create laptop --backend local",
    ],
)
def create(
    session: Session,
    name: Name,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[FIELD=VALUE]...", help=f"fields: {', '.join(FIELDS)}")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace a profile of that name")] = False,
) -> None:
    """Keep a profile. The first one becomes the current one."""
    given = {flag: session.flags[flag] for flag in _FLAGGED if flag in session.flags}
    profile = {**given, **_fields(values or [])}
    if sys.stdin.isatty() and not session.output.as_json:
        profile |= {field: typer.prompt(field.capitalize()) for field in missing_fields(profile)}
    with editing(_file()) as box:
        if name in box[0].profiles and not force:
            raise InvalidRequest(f"profile {name!r} exists; --force replaces it")
        stored = box[0].having(name, profile)
        _check_values(name, profile)
        box[0] = stored
    _tell(session, "profile.create", stored, name, f"kept profile {name} in {stored.file}")


@verb(profile_app, "ls", hidden=True)
@verb(profile_app, "list", examples=["kinetic profile list"])
def list_profiles(session: Session) -> None:
    """List the profiles; * marks the one in use."""
    stored = read_profiles(_file())
    shown = [_facts(stored, name) for name in sorted(stored.profiles)]
    if session.output.as_json:
        session.output.json("profile.list", {"file": str(stored.file), "profiles": shown})
        return
    if not shown:
        session.output.line(f"no profiles in {stored.file}")
        return
    rows = [
        (
            "*" if one["chosen"] else "",
            one["name"],
            *(str(one["settings"].get(field, "")) for field in ("backend", "project", "zone", "cluster")),
            one["settings"].get("namespace", ""),
        )
        for one in shown
    ]
    columns = ("", "PROFILE", "BACKEND", "PROJECT", "ZONE", "CLUSTER", "NAMESPACE")
    session.output.table(columns, rows, ("BACKEND", "NAMESPACE", "ZONE", "PROJECT"))
    if (asked := os.environ.get("KINETIC_PROFILE")) and asked != stored.current:
        session.output.line(f"(KINETIC_PROFILE or --profile; kept as current: {stored.current or 'none'})")


@verb(profile_app, "show", examples=["kinetic profile show", "kinetic profile show team"])
def show(
    session: Session,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="default: the one in use", autocompletion=_names),
    ] = None,
) -> None:
    """Show the fields of a profile."""
    stored = read_profiles(_file())
    name = name or _chosen(stored)
    if name is None:
        raise InvalidRequest("no profile is in use; name one, or choose one with `kinetic profile use NAME`")
    _tell(session, "profile.show", stored, name, "")


@verb(profile_app, "use", examples=["kinetic profile use team", "kinetic profile use --none"])
def use(
    session: Session,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="name of the profile", autocompletion=_names),
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="have no current profile")] = False,
) -> None:
    """Make a profile the current one."""
    if (name is None) != none:
        raise InvalidRequest("give either a name or --none")
    _choose(session, name)


@verb(profile_app, "unset", hidden=True)
def unset(session: Session) -> None:
    """Have no current profile: `use --none`."""
    _choose(session, None)


def _choose(session: Session, name: str | None) -> None:
    from dataclasses import replace

    with editing(_file()) as box:
        if name is not None:
            box[0].get(name)
        box[0] = replace(box[0], current=name)
    if session.output.as_json:
        session.output.json("profile.use", {"current": name})
    session.output.line(f"current profile: {name or 'none'}")
    if asked := os.environ.get("KINETIC_PROFILE"):
        session.output.line(f"but KINETIC_PROFILE={asked} is set and comes first")


@verb(profile_app, "remove", examples=["kinetic profile remove team"])
def remove(session: Session, name: Name) -> None:
    """Remove a profile."""
    with editing(_file()) as box:
        box[0].get(name)
        box[0] = box[0].without(name)
        current = box[0].current
    if session.output.as_json:
        session.output.json("profile.remove", {"removed": name, "current": current})
    session.output.line(f"removed profile {name}")


@verb(profile_app, "rm", hidden=True)
def remove_asking(
    session: Session,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Remove a profile, after a question."""
    read_profiles(_file()).get(name)
    if not yes:
        if session.output.as_json or not sys.stdin.isatty():
            raise InvalidRequest("stdin is not a terminal: pass --yes to remove the profile")
        if not typer.confirm(f"Remove profile {name}?"):
            return
    remove(session, name)


def _tell(session: Session, schema: str, stored: Profiles, name: str, said: str) -> None:
    stored.get(name)
    facts = _facts(stored, name)
    if session.output.as_json:
        session.output.json(schema, facts)
        return
    session.output.line(said or f"{name}{' (in use)' if facts['chosen'] else ''}")
    session.output.table(("FIELD", "VALUE"), [(key, str(value)) for key, value in facts["settings"].items()])


def _facts(stored: Profiles, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "current": name == stored.current,
        "chosen": name == _chosen(stored),
        "settings": dict(stored.profiles[name]),
    }


def _fields(words: list[str]) -> Mapping[str, Any]:
    """FIELD=VALUE; `api_endpoint_overrides.SERVICE=ADDRESS` for one of these."""
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise InvalidRequest(f"{word!r} is not FIELD=VALUE")
        outer, dot, service = key.partition(".")
        if dot and outer == OVERRIDES:
            found.setdefault(OVERRIDES, {})[service] = value
        else:
            found[key] = value
    return found


def _check_values(name: str, profile: Mapping[str, Any]) -> None:
    """Refuse what no command could use with this profile. Raises InvalidRequest or ConfigurationError."""
    if "backend" in profile:
        check_backend(profile["backend"], f"profile {name}")
    if "zone" in profile:
        check_location(profile["zone"])
    # Several kubeconfigs are one text, as in KUBECONFIG.
    paths = [("kubeconfig", path) for path in profile.get("kubeconfig", "").split(os.pathsep)]
    for field, path in (*paths, ("local_store", profile.get("local_store", ""))):
        if path and not os.path.isabs(os.path.expanduser(path)):  # noqa: PTH111, PTH117  Path fails on `~nobody`
            raise InvalidRequest(
                f"{field}={path!r} of profile {name} is a relative path, which would be another file in each "
                f"directory: write {Path(path).absolute()}"
            )


def _chosen(stored: Profiles) -> str | None:
    return os.environ.get("KINETIC_PROFILE") or stored.current
