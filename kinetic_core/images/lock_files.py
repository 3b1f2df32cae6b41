"""`uv.lock` and `pylock.toml` (PEP 751) as exact requirements of a job's Python on Linux, with hashes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from packaging.markers import Marker, default_environment
from packaging.utils import canonicalize_name

from kinetic_core.errors import InvalidDependencies
from kinetic_core.images.pyproject import line_of, load, older_packaging
from kinetic_core.images.requirements import Dependencies, Wanted, check_url, refused, requirement

if TYPE_CHECKING:
    from packaging.pylock import Package

_NAME = 'name = "{}"'
_PYPI = "https://pypi.org/simple"


def environment(architecture: str = "amd64") -> dict[str, str]:
    """The environment markers of a pod: this Python, on Linux."""
    python = ".".join(map(str, sys.version_info[:2]))
    machine = {"amd64": "x86_64", "arm64": "aarch64"}[architecture]
    here: dict[str, Any] = dict(default_environment())
    return here | {
        "python_version": python,
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
        "platform_release": "",
        "platform_version": "",
    }


def read_pylock(
    path: Path,
    name: str,
    target: Mapping[str, str],
    *,
    extras: Sequence[str] = (),
    groups: Sequence[str] = (),
) -> Dependencies:
    """The packages that a PEP 751 lock wants in `target`, with the default groups or those asked for.

    Raises InvalidDependencies, also where `packaging` is older than 26.1.
    """
    try:
        from packaging.pylock import Pylock, PylockValidationError
    except ImportError as exc:
        raise older_packaging(name) from exc
    text, content = load(path, name)
    try:
        lock = Pylock.from_dict(content)
    except PylockValidationError as exc:
        raise InvalidDependencies(f"{name}: {exc}") from exc
    context: dict[str, Any] = {
        **target,
        "extras": frozenset(map(canonicalize_name, extras)),
        "dependency_groups": frozenset(groups or lock.default_groups or ()),
    }
    found = [
        package
        for package in lock.packages
        if package.marker is None or package.marker.evaluate(context, context="lock_file")
    ]
    wanted = (_of_pylock(one, f"{name}:{line_of(text, _NAME.format(one.name))}") for one in found)
    options = _indexes((package.index for package in found), name)
    return Dependencies(name, tuple(wanted), options=options, is_exact=True)


def _of_pylock(package: Package, where: str) -> Wanted:
    if package.vcs is not None and package.vcs.url:
        address = f"{package.vcs.type}+{package.vcs.url}@{package.vcs.commit_id}"
        return requirement(f"{package.name} @ {_below(address, package.vcs.subdirectory)}", where)
    if package.archive is not None and package.archive.url:
        found = [f"{kind}:{value}" for kind, value in package.archive.hashes.items()]
        address = _below(package.archive.url, package.archive.subdirectory)
        return requirement(f"{package.name} @ {address}", where, hashes=found)
    if package.version is None or package.directory or package.vcs or package.archive:
        raise refused(where, package.name, "is a path of this machine, which no pod has")
    files = [*(package.wheels or ()), *([package.sdist] if package.sdist else ())]
    hashes = {f"{kind}:{value}" for file in files for kind, value in file.hashes.items()}
    return requirement(f"{package.name}=={package.version}", where, hashes=sorted(hashes))


def _below(address: str, folder: str | None) -> str:
    """The address of a package that is in a folder of a repository or an archive."""
    return f"{address}#subdirectory={folder}" if folder else address


@dataclass(frozen=True)
class _UvLock:
    """The packages of a `uv.lock` by name; of one name there may be several versions."""

    packages: Mapping[str, Sequence[Mapping[str, Any]]]
    target: Mapping[str, str]
    text: str
    name: str
    chosen: tuple[str, ...] = ("",)
    """What was asked for, as uv writes it into markers where extras or groups exclude each other."""

    def find(self, edge: Mapping[str, Any]) -> Mapping[str, Any]:
        found = self.packages.get(edge["name"], ())
        for package in found:
            if edge.get("version") in (None, package.get("version")) and (
                "source" not in edge or edge["source"] == package.get("source")
            ):
                return package
        raise InvalidDependencies(f"{self.name} has no package {edge['name']!r}; run `uv lock` again")

    def applies(self, edge: Mapping[str, Any]) -> bool:
        if "marker" not in edge:
            return True
        marker = Marker(edge["marker"])
        return any(marker.evaluate({**self.target, "extra": one}) for one in self.chosen)

    def closure(self, edges: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Every package that the edges lead to, each once."""
        waiting, seen, given = list(edges), set(), set()
        while waiting:
            edge = waiting.pop()
            if not self.applies(edge):
                continue
            package = self.find(edge)
            key = package["name"], package.get("version", "")
            if key not in given:
                given.add(key)
                yield package
            for extra in ("", *edge.get("extra", ())):
                if (*key, extra) not in seen:
                    seen.add((*key, extra))
                    optional = package.get("optional-dependencies") or {}
                    waiting += optional.get(extra, ()) if extra else package.get("dependencies") or ()

    def wanted(self, package: Mapping[str, Any]) -> Wanted:
        name, source = package["name"], package.get("source") or {}
        where = f"{self.name}:{line_of(self.text, _NAME.format(name))}"
        if "git" in source:
            address, _, commit = source["git"].partition("#")
            repository, _, query = address.partition("?")
            (folder,) = parse_qs(query).get("subdirectory", [""])
            return requirement(f"{name} @ {_below(f'git+{repository}@{commit}', folder)}", where)
        if "url" in source:
            return requirement(f"{name} @ {_below(source['url'], source.get('subdirectory'))}", where)
        if "registry" not in source or "://" not in source["registry"]:
            raise refused(where, name, "is a path of this machine, which no pod has")
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
        hashes = sorted({file["hash"] for file in files if "hash" in file})
        return requirement(f"{name}=={package['version']}", where, hashes=hashes)


def read_uv_lock(
    path: Path,
    name: str,
    target: Mapping[str, str],
    *,
    extras: Sequence[str] = (),
    groups: Sequence[str] = (),
) -> Dependencies:
    """What `uv.lock` has for its own project: its dependencies, and the extras and groups asked for.

    Development groups are left out unless asked for: jobs need what the project needs.
    """
    text, content = load(path, name)
    packages: dict[str, list[Mapping[str, Any]]] = {}
    for package in content.get("package", ()):
        packages.setdefault(package["name"], []).append(package)
    root = _root(content, name)
    own = f"{len(root['name'])}-{root['name']}"
    chosen = (*(f"extra-{own}-{one}" for one in extras), *(f"group-{own}-{one}" for one in groups))
    lock = _UvLock(packages, target, text, name, chosen or ("",))
    edges = list(root.get("dependencies", ()))
    for kind, asked, table in (
        ("extra", extras, root.get("optional-dependencies") or {}),
        ("dependency group", groups, root.get("dev-dependencies") or {}),
    ):
        for one in asked:
            if one not in table:
                known = ", ".join(sorted(table)) or "none"
                raise InvalidDependencies(f"{name} has no {kind} {one!r}; it has {known}")
            edges += table[one]
    found = list(lock.closure(edges))
    options = _indexes(((package.get("source") or {}).get("registry") for package in found), name)
    return Dependencies(name, tuple(map(lock.wanted, found)), options=options, is_exact=True)


def _root(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The project the lock is of: the package whose source is the lock's own directory."""
    for package in content.get("package", ()):
        source = package.get("source") or {}
        if "." in (source.get("editable"), source.get("virtual")):
            return dict(package)
    raise InvalidDependencies(f"{name} does not say which package is the project; run `uv lock` again")


def _indexes(urls: Iterable[str | None], name: str) -> tuple[str, ...]:
    """The indexes besides PyPI, as lines of a requirements file."""
    others = sorted({url for url in urls if url and "://" in url and url.rstrip("/") != _PYPI})
    for url in others:
        check_url(url, name)
    return tuple(f"--extra-index-url {url}" for url in others)
