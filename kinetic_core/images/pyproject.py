"""`pyproject.toml` and the metadata of a single script (PEP 723)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from kinetic_core.errors import InvalidDependencies
from kinetic_core.images.requirements import Dependencies, Wanted, check_url, requirement

_SCRIPT = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""The expression of https://packaging.python.org/en/latest/specifications/inline-script-metadata/"""


def read_pyproject(
    path: Path, name: str, *, extras: Sequence[str] = (), groups: Sequence[str] = ()
) -> Dependencies:
    """`[project].dependencies`, with the extras and the dependency groups asked for.

    Raises InvalidDependencies for one that is not there, or that no pod can install.
    """
    text, content = load(path, name)
    project = content.get("project") or {}
    optional = {
        canonicalize_name(key): value for key, value in (project.get("optional-dependencies") or {}).items()
    }
    wanted = list(_checked(project.get("dependencies") or [], text, name))
    for extra in extras:
        if canonicalize_name(extra) not in optional:
            raise _absent(name, "extra", extra, optional)
        wanted += _checked(optional[canonicalize_name(extra)], text, name)
    for group in groups:
        wanted += _group(content.get("dependency-groups") or {}, group, text, name)
    _check_sources(content, wanted)
    return Dependencies(
        name,
        tuple(wanted),
        _constraints(content, text, name),
        _indexes(content, text, name),
        _notices(content, project, wanted, name),
    )


def read_script(path: Path, name: str) -> Dependencies | None:
    """What a script says of itself in a `# /// script` block; None if it has none."""
    text = path.read_text("utf-8", "replace")
    found = list(_SCRIPT.finditer(text))
    if not found:
        return None
    if len(found) > 1:
        raise InvalidDependencies(f"{name} has more than one '# /// script' block")
    body = "".join(
        line[2:] if line.startswith("# ") else line[1:] for line in found[0]["content"].splitlines(True)
    )
    try:
        content = tomllib.loads(body)
    except tomllib.TOMLDecodeError as exc:
        raise InvalidDependencies(f"{name}: its '# /// script' block is not TOML: {exc}") from exc
    wanted = tuple(_checked(content.get("dependencies") or [], text, name))
    _check_sources(content, wanted)
    return Dependencies(name, wanted, _constraints(content, text, name), _indexes(content, text, name))


def load(path: Path, name: str) -> tuple[str, dict[str, Any]]:
    """Text and content of a TOML file. Raises InvalidDependencies."""
    try:
        text = path.read_text("utf-8")
        return text, tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise InvalidDependencies(f"{name} cannot be read: {exc}") from exc


def older_packaging(what: str) -> InvalidDependencies:
    """The error for what a `packaging` as old as that of Airflow 3.1's constraints cannot read."""
    return InvalidDependencies(
        f"{what} cannot be read by packaging {version('packaging')}, which is installed here; install "
        "packaging>=26.1, or name a requirements.txt"
    )


def line_of(text: str, piece: str) -> int:
    """The number of the line that is `piece`, else of the first that has it, else 1."""
    found = [
        (piece != line.strip(), number) for number, line in enumerate(text.splitlines(), 1) if piece in line
    ]
    return min(found, default=(True, 1))[1]


def _checked(texts: Iterable[Any], text: str, name: str) -> Iterable[Wanted]:
    for one in texts:
        if not isinstance(one, str):
            raise InvalidDependencies(f"{name}: {one!r} is not a requirement")
        yield requirement(one, f"{name}:{line_of(text, one)}")


def _group(groups: dict[str, Any], group: str, text: str, name: str) -> Iterable[Wanted]:
    known = {canonicalize_name(key) for key in groups}
    if canonicalize_name(group) not in known:
        raise _absent(name, "dependency group", group, known)
    try:
        from packaging.dependency_groups import DependencyGroupResolver
    except ImportError as exc:
        raise older_packaging(f"{name}: dependency group {group!r}") from exc
    try:
        found = DependencyGroupResolver(groups).resolve(group)
    except (ValueError, LookupError, ExceptionGroup) as exc:
        raise InvalidDependencies(f"{name}: dependency group {group!r}: {exc}") from exc
    return _checked(map(str, found), text, name)


def _uv(content: dict[str, Any]) -> dict[str, Any]:
    return (content.get("tool") or {}).get("uv") or {}


def _constraints(content: dict[str, Any], text: str, name: str) -> tuple[Wanted, ...]:
    return tuple(_checked(_uv(content).get("constraint-dependencies") or [], text, name))


def _indexes(content: dict[str, Any], text: str, name: str) -> tuple[str, ...]:
    """The indexes of `[tool.uv]` as lines of a requirements file, in uv's order: without them, packages would
    come from PyPI, where others may have taken their names.

    An explicit index is left out: only `[tool.uv.sources]` sends packages there. Raises InvalidDependencies
    for an index that no pod can use.
    """
    uv = _uv(content)
    found = [
        (_option_of(index), str(index.get("url")))
        for index in uv.get("index") or ()
        if not index.get("explicit")
    ]
    found += [("--index-url", uv["index-url"])] if "index-url" in uv else []
    found += [("--extra-index-url", url) for url in uv.get("extra-index-url") or ()]
    found += [("--find-links", url) for url in uv.get("find-links") or ()]
    for _, url in found:
        check_url(url, f"{name}:{line_of(text, url)}")
    return tuple(f"{option} {url}" for option, url in found)


def _option_of(index: dict[str, Any]) -> str:
    if index.get("format") == "flat":
        return "--find-links"
    return "--index-url" if index.get("default") else "--extra-index-url"


def _check_sources(content: dict[str, Any], wanted: Iterable[Wanted]) -> None:
    """What `[tool.uv.sources]` redirects would come from the index: another package of that name, maybe."""
    sources = _uv(content).get("sources") or {}
    redirected = {canonicalize_name(key) for key in sources}
    for one in wanted:
        if one.name in redirected:
            raise InvalidDependencies(
                f"{one.where}: {one.requirement.name!r} comes from [tool.uv.sources], which a pod does not "
                "have. Write 'name @ git+https://…' in its place, or run `uv lock`: uv.lock says where it is"
            )


def _absent(name: str, kind: str, asked: str, known: Iterable[str]) -> InvalidDependencies:
    return InvalidDependencies(f"{name} has no {kind} {asked!r}; it has {', '.join(sorted(known)) or 'none'}")


def _notices(
    content: dict[str, Any], project: dict[str, Any], wanted: Sequence[Wanted], name: str
) -> tuple[str, ...]:
    """What may have been meant, where nothing was found."""
    if wanted:
        return ()
    found = ["[tool.poetry.dependencies]"] if (content.get("tool") or {}).get("poetry") else []
    found += ["[dependency-groups]"] if content.get("dependency-groups") else []
    found += ["[project.optional-dependencies]"] if project.get("optional-dependencies") else []
    found += ["dynamic dependencies"] if "dependencies" in (project.get("dynamic") or ()) else []
    if not found:
        return ()
    told = f"{', '.join(found)} {'is' if len(found) == 1 else 'are'}"
    asking = f"requirements='{name}[extra]', '{name}:group', or a list"
    return (f"{name} has no [project].dependencies, and {told} not installed unless asked for: {asking}",)
