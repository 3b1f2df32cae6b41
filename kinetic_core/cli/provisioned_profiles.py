"""The profile of a cluster that was made, and its end."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import typer

from kinetic_core.cli.session import Session
from kinetic_core.configuration import Settings
from kinetic_core.profiles import Profile, editing, profiles_file, read_profiles


def keep_profile(settings: Settings, name: str) -> str:
    """Keep a profile of the settings' cluster as the current one; its name.

    What such a profile says of other things, as another address of a service, stays.
    """
    place = {"project": settings.project, "zone": settings.zone, "cluster": settings.cluster}
    with editing(profiles_file(os.environ)) as box:
        old = {**box[0].profiles.get(name, {})}
        kept = {
            key: value for key, value in old.items() if key not in ("kubeconfig", "kube_context", "bucket")
        }
        profile = {**kept, **place, "namespace": settings.namespace, "backend": "gke"}
        box[0] = replace(box[0].having(name, profile), current=name)
    return name


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
    asked = ("project", "zone", "cluster")
    return all(profile.get(field) == getattr(settings, field) for field in asked)
