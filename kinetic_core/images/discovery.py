"""Where a project says what it depends on: asked for, in the script itself, or in a file above it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kinetic_core.errors import InvalidDependencies, InvalidRequest
from kinetic_core.images.lock_files import read_pylock, read_uv_lock
from kinetic_core.images.pyproject import read_pyproject, read_script
from kinetic_core.images.requirements import Dependencies, parse_requirements, read_requirements

_ORDER = ("requirements.txt", "pylock.toml", "uv.lock", "pyproject.toml")
"""The first one in a directory counts: what somebody wrote for an installer, then locks, then ranges."""
_ASKED = re.compile(r"(?P<path>.*?)(\[(?P<extras>[^\[\]]+)\])?(:(?P<groups>[\w.,-]+))?", re.DOTALL)

_PYLOCK = re.compile(r"pylock(\.[^.]+)?\.toml")
"""The names that PEP 751 has for a lock."""

Requirements = str | Path | Sequence[str] | None
"""What `requirements=` may be: a path (`pyproject.toml[extra]`, `uv.lock:group`), or requirements."""


def find_dependencies(
    requirements: Requirements, *, root: Path, script: Path | None, target: Mapping[str, str]
) -> Dependencies:
    """What the function in `script` (None: a notebook) of the project at `root` depends on.

    `requirements` as given by the user: a path is relative to the root, a list is what a requirements file
    there would say, and None looks for a `# /// script` block, then upwards from the script's directory to
    the repository's root. Raises InvalidDependencies, InvalidRequest or TypeError, naming file and line.
    """
    if isinstance(requirements, str | Path):
        return _asked_file(str(requirements), root, target)
    if requirements is not None:
        return parse_requirements(requirements, "requirements", root)
    if script is not None and (found := read_script(script, script.name)) is not None:
        return found
    return _above(root if script is None else script.parent, target)


def check_requirements(requirements: Requirements) -> Requirements:
    """The option as given, a sequence as a tuple. Raises TypeError or InvalidRequest; reads no file."""
    if requirements is None or isinstance(requirements, Path):
        return requirements
    if isinstance(requirements, str):
        if not requirements.strip() or re.search(r"[=<>~!]=|[<>\n]", requirements):
            raise InvalidRequest(
                f"requirements={requirements!r} is no path; put requirements into a list: [{requirements!r}]"
            )
        return requirements
    if not isinstance(requirements, Sequence) or not all(isinstance(one, str) for one in requirements):
        raise TypeError(f"requirements={requirements!r} must be a path, or a list of requirements")
    return tuple(requirements)


def _asked_file(asked: str, root: Path, target: Mapping[str, str]) -> Dependencies:
    parts = _ASKED.fullmatch(asked)
    if parts is None:
        raise InvalidRequest(f"requirements={asked!r} is not 'path', 'path[extra]' or 'path:group'")
    path = root / Path(parts["path"]).expanduser()
    if not path.is_file():
        raise InvalidDependencies(f"requirements={asked!r}: there is no file {str(path)!r}")
    return _read(path, parts["path"], target, _names(parts["extras"]), _names(parts["groups"]))


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _read(
    path: Path, name: str, target: Mapping[str, str], extras: Sequence[str] = (), groups: Sequence[str] = ()
) -> Dependencies:
    if path.name == "uv.lock":
        return read_uv_lock(path, name, target, extras=extras, groups=groups)
    if _PYLOCK.fullmatch(path.name):
        return read_pylock(path, name, target, extras=extras, groups=groups)
    if path.suffix == ".toml":
        return read_pyproject(path, name, extras=extras, groups=groups)
    if extras or groups:
        raise InvalidRequest(f"requirements: {name!r} has neither extras nor groups")
    if path.suffix == ".py":
        return read_script(path, name) or Dependencies(name)
    return read_requirements(path, name)


def _above(start: Path, target: Mapping[str, str]) -> Dependencies:
    """The nearest file up to the repository's root or the home directory; one without content is passed."""
    notices: list[str] = []
    for folder in (start, *start.parents):
        files = [folder / name for name in _ORDER if (folder / name).is_file()]
        for file in files:
            found = _read(file, file.name, target)
            notices += found.notices
            if found.wanted or file.name == _ORDER[0]:
                notices += [*_passed_over(file, files), *_from_afar(file, start)]
                return replace(found, notices=tuple(notices))
        if (folder / ".git").exists() or folder in (Path.home(), Path(folder.anchor)):
            break
    return Dependencies(notices=tuple(notices))


def _from_afar(file: Path, start: Path) -> list[str]:
    """A file above that may be of something else: nothing says where the project ends."""
    if file.parent == start or any((folder / ".git").exists() for folder in (start, *start.parents)):
        return []
    return [f"{file} says what to install: the first such file above {start}, which is in no repository"]


def _passed_over(file: Path, files: Sequence[Path]) -> list[str]:
    """A lock belongs to its `pyproject.toml`; that a requirements file wins over both should be said."""
    others = ", ".join(other.name for other in files if other != file)
    if file.name != _ORDER[0] or not others:
        return []
    return [f"{file} says what to install; {others} beside it does not count. requirements= chooses"]
