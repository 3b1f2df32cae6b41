"""Profiles: named sets of settings in a file, `~/.kinetic/profiles.json` or `KINETIC_PROFILES_FILE`.

    {"current": "team", "profiles": {"team": {"project": "p", "zone": "z", "cluster": "c"}}}

The file is read whenever settings are, and written whole: to a temporary file that then takes its name. One
that cannot be understood is refused and never overwritten.

keras-kinetic reads this file too, and knows profiles of GKE clusters only. What it would refuse, other fields
and profiles of other kinds, is written to a file beside it, `profiles.more.json`, and both are read as one.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kinetic_core.errors import ConfigurationError

FIELDS = (
    "project",
    "zone",
    "cluster",
    "namespace",
    "backend",
    "kubeconfig",
    "kube_context",
    "bucket",
    "container_image",
    "local_store",
    "storage_emulator_host",
    "api_endpoint_overrides",
)
"""What a profile may say; each is a setting's name and means what its variable means."""
OVERRIDES = "api_endpoint_overrides"
"""The one field that is an object: a service of Google's, such as `container`, to its address."""
_NAME = re.compile(r"[A-Za-z0-9][-\w]{0,63}", re.ASCII)
_KEYS = ("current", "profiles")
_SHARED = ("project", "zone", "cluster", "namespace")
"""What a profile of keras-kinetic says."""

Profile = Mapping[str, Any]


@dataclass(frozen=True)
class Profiles:
    """What a profiles file says. `current` is None, or one of `profiles`."""

    file: Path
    current: str | None = None
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    def get(self, name: str) -> Profile:
        """A profile; raises ConfigurationError if there is none of that name."""
        if name not in self.profiles:
            known = ", ".join(sorted(self.profiles)) or "none"
            raise ConfigurationError(
                f"there is no profile {name!r} in {self.file} (it has: {known}). `kinetic profile create "
                f"{name}` makes it; KINETIC_PROFILE, `--profile` and `kinetic profile use` choose one"
            )
        return self.profiles[name]

    def having(self, name: str, profile: Profile) -> Profiles:
        """With a profile added or replaced; the first one becomes current. Raises ConfigurationError."""
        fault = _fault(check_name(name), dict(profile))
        if fault := fault or ("" if not (missing := missing_fields(profile)) else _missing(name, missing)):
            raise ConfigurationError(fault)
        current = self.current if self.profiles else name
        return replace(self, current=current, profiles={**self.profiles, name: dict(profile)})

    def without(self, name: str) -> Profiles:
        """With a profile removed."""
        left = {key: value for key, value in self.profiles.items() if key != name}
        return replace(self, current=None if self.current == name else self.current, profiles=left)


def profiles_file(environ: Mapping[str, str]) -> Path:
    """Where profiles are kept."""
    return Path(environ.get("KINETIC_PROFILES_FILE") or "~/.kinetic/profiles.json").expanduser()


def check_name(name: str) -> str:
    """The name, if it is one. Raises ConfigurationError."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is no name of a profile: letters, digits, '-' and '_', a letter or "
            "digit first, 64 at most"
        )
    return name


def missing_fields(profile: Profile) -> list[str]:
    """What a profile must still say: which GKE cluster, unless it needs none."""
    if profile.get("backend") == "local" or "kubeconfig" in profile:
        return []
    return [key for key in ("project", "zone", "cluster") if key not in profile]


def read_profiles(file: Path) -> Profiles:
    """What the file says, with what the one beside it adds; no profiles if there are none.

    Raises ConfigurationError, naming file and field, for what is not a profiles file.
    """
    shared, more = _read(file), _read(_more(file))
    found: dict[str, Profile] = {
        name: {**profile, **more.profiles.get(name, {})} for name, profile in shared.profiles.items()
    }
    # An addition to a profile that keras-kinetic has removed is nothing by itself.
    alone = {name: each for name, each in more.profiles.items() if not missing_fields(each)}
    found = {**alone, **found}
    for name, profile in found.items():
        if missing := missing_fields(profile):
            raise _unusable(file, _missing(name, missing))
    current = more.current or shared.current
    return Profiles(file, current if current in found else None, found)


def _more(file: Path) -> Path:
    """Where the rest of a profiles file is kept."""
    return file.with_name(f"{file.stem}.more{file.suffix}")


def _read(file: Path) -> Profiles:
    """One file as it is."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Profiles(file)
    except (ValueError, OSError) as exc:
        raise _unusable(file, f"it cannot be read: {exc}") from exc
    if not isinstance(document, dict):
        raise _unusable(file, "it is no JSON object")
    if unknown := sorted(set(document) - set(_KEYS)):
        raise _unusable(file, f"{', '.join(map(repr, unknown))} is unknown; it has {' and '.join(_KEYS)}")
    current, found = document.get("current"), document.get("profiles", {})
    if not isinstance(current, str | None) or not isinstance(found, dict):
        raise _unusable(file, "'current' must be a name or null, and 'profiles' an object")
    for name, profile in found.items():
        if fault := _fault(name, profile):
            raise _unusable(file, fault)
    return Profiles(file, current, found)


@contextmanager
def editing(file: Path) -> Iterator[list[Profiles]]:
    """The profiles in a list, to be replaced in it; what is in it at the end is stored, whole.

    Editors wait for each other. Raises as `read_profiles`, before anything is written.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock(file):
            box = [read_profiles(file)]
            yield box
            _write(box[0])
    except OSError as exc:
        raise ConfigurationError(
            f"the profiles file {file} cannot be written: {exc.strerror or exc}"
        ) from exc


def _write(profiles: Profiles) -> None:
    """Store the profiles: what keras-kinetic would refuse first, so that nothing is ever in neither file."""
    shared: dict[str, Profile] = {}
    more: dict[str, Profile] = {}
    for name, profile in profiles.profiles.items():
        common = {key: profile[key] for key in _SHARED if key in profile}
        if all(key in common for key in _SHARED[:3]):
            shared[name] = common
        else:
            common = {}
        if rest := {key: value for key, value in profile.items() if key not in common}:
            more[name] = rest
    here = profiles.current if profiles.current in shared else None
    beside = _more(profiles.file)
    if more or beside.exists():
        _write_file(beside, None if here else profiles.current, more)
    _write_file(profiles.file, here, shared)


def _write_file(file: Path, current: str | None, profiles: Mapping[str, Profile]) -> None:
    text = json.dumps({"current": current, "profiles": profiles}, indent=2, sort_keys=True) + "\n"
    handle, temporary = tempfile.mkstemp(prefix=".profiles-", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    """Where the system has such locks; elsewhere the last of two editors at once wins."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with file.with_name(f".{file.name}.lock").open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _fault(name: str, values: Any) -> str:
    """What is wrong with a profile; "" if nothing is."""
    where = f"profile {name!r}"
    if not _NAME.fullmatch(name) or not isinstance(values, dict):
        return f"{where} must be a name with an object"
    if unknown := sorted(set(values) - set(FIELDS)):
        return f"{where}: {', '.join(map(repr, unknown))} is unknown; fields are {', '.join(FIELDS)}"
    for key, value in values.items():
        if key == OVERRIDES:
            if not isinstance(value, dict) or not all(isinstance(url, str) for url in value.values()):
                return f"{where}: {key!r} must be an object of services and their addresses"
        elif not isinstance(value, str) or not value:
            return f"{where}: {key!r} must be a text that is not empty"
    return ""


def _missing(name: str, missing: Sequence[str]) -> str:
    return (
        f"profile {name!r} has no {' and no '.join(missing)}, which only one with a kubeconfig or of backend "
        "'local' can do without"
    )


def _unusable(file: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the profiles file {file} cannot be used: {why}. Correct it, move it away, or set "
        "KINETIC_PROFILES_FILE to another; nothing has been changed in it"
    )
