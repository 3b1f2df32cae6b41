"""What a project imports and nobody names: installed as the submitter's environment has it.

A package is added only if this environment has it as an installed distribution, in that version, so that a
name which merely appears in code is never fetched. What came from a directory, a repository or a URL, and
everything where this environment installs from an index of its own, may be called like a stranger's package
on a public index: it is only told of. Frameworks of our own table are no strangers' packages.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from kinetic_core.images.requirements import IMPORTED, Dependencies, Wanted
from kinetic_core.project.import_closure import foreign_imports

DEFAULTS = ("jax", "keras")
"""Installed when they are imported, though this environment may not have them."""
_INDEXES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
_INDEX_FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf", "~/.config/uv/uv.toml")


def with_imports(
    dependencies: Dependencies, script: Path | None, function: str, roots: Collection[Path]
) -> Dependencies:
    """Return the dependencies with what a function of `script`, and what it imports of `roots`, needs too.

    Reads the project's sources and the metadata of installed packages; asks nobody. A notice says what is
    added, from which line, and what is only imported.
    """
    found = foreign_imports(str(script), function, [str(root) for root in roots]) if script else {}
    if not found:
        return dependencies
    there, unknown = _brought({one.name for one in dependencies.wanted})
    added: list[Wanted] = []
    told: dict[str, str] = {}
    private = _private_index(dependencies)
    for module, where in sorted(found.items()):
        names = _packages(module) or {module} & {*DEFAULTS}
        if not names or names & there:
            continue
        name = next(iter(names))
        why = "several installed packages have it" if len(names) > 1 else _doubt(name, private, unknown)
        if why:
            told[name] = f"{module} ({where}): {why}"
        else:
            added.append(Wanted(_as_installed(name), f"{IMPORTED}{where}"))
    for name in _brought({one.name for one in added})[0]:
        told.pop(name, None)
    notices = list(dependencies.notices)
    if added:
        listed = ", ".join(f"{one.requirement} ({one.where})" for one in added)
        notices.append(f"installed besides, because no requirement names it: {listed}")
    if told:
        notices.append(f"imported and not installed, name it if the job needs it: {'; '.join(told.values())}")
    return replace(dependencies, wanted=(*dependencies.wanted, *added), notices=tuple(notices))


def _doubt(name: str, private: str, unknown: str) -> str:
    """Why a package is not installed without being named; "" if it is."""
    if name in DEFAULTS:
        return ""
    if private:
        return f"{name} may be from the package index of {private}"
    if unknown:
        return f"{unknown} is not installed here, so what it requires is not known"
    if distribution(name).read_text("direct_url.json") is not None:
        return f"{name} was not installed from a package index"
    if distribution(name).read_text("RECORD") is None:
        return f"{name} is no installed package, but a directory of sources"
    return ""


def _as_installed(name: str) -> Requirement:
    try:
        version = Version(distribution(name).version)
    except PackageNotFoundError:
        return Requirement(name)
    return Requirement(f"{name}=={version.public}")  # without the build: 2.4.0+cpu


def _brought(names: Iterable[str]) -> tuple[set[str], str]:
    """Return the named packages with all that they require, as far as they are installed here; and one that
    is not, so that what it requires is not known.
    """
    found: set[str] = set()
    unknown = ""
    left = list(names)
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        try:
            left += _required(distribution(name))
        except PackageNotFoundError:
            unknown = unknown or name
    return found, unknown


def _required(package: Distribution) -> list[str]:
    wanted: list[str] = []
    for text in package.requires or ():
        try:
            one = Requirement(text)
        except InvalidRequirement:
            continue
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            wanted.append(canonicalize_name(one.name))
    return wanted


def _private_index(dependencies: Dependencies, environ: Mapping[str, str] = os.environ) -> str:
    """Say where an index besides the public one is set; "" if nowhere."""
    if any("index" in option or "find-links" in option for option in dependencies.options):
        return dependencies.source
    if name := next((name for name in _INDEXES if environ.get(name)), ""):
        return name
    files = [environ.get("PIP_CONFIG_FILE", ""), environ.get("UV_CONFIG_FILE", ""), *_INDEX_FILES]
    return next((file for file in files if file and _names_index(Path(file).expanduser())), "")


def _names_index(file: Path) -> bool:
    try:
        return "index" in file.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def _packages(module: str) -> set[str]:
    """The installed packages that have a top-level module; one of the same name without reading all."""
    try:
        files = distribution(module).files or ()
    except PackageNotFoundError:
        files = ()
    if any(file.parts[0] in (module, f"{module}.py") for file in files):
        return {canonicalize_name(module)}
    return {canonicalize_name(name) for name in packages_distributions().get(module, ())}
