"""Which directory is the user's project: found from the file of the function, or told.

Only paths relative to the project root leave this module, so nothing tells the job where the project
lies on the client.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kinetic_core.errors import InvalidProject

MARKERS = ("pyproject.toml", "requirements.txt", "setup.py", "setup.cfg", ".git")
_INSTALLED = ("site-packages", "dist-packages")
_OVERRIDE = "KINETIC_PACKAGE_ROOT"
_AIRFLOW_TASK = "AIRFLOW_CTX_DAG_ID"
"""Set by Airflow in the process of a task."""


@dataclass(frozen=True)
class Project:
    """What to ship of a function's surroundings, and where in it things are. Paths are POSIX."""

    root: Path
    entry: str = ""
    """The directory of the function's file, relative to the root; "" is the root itself."""
    cwd: str | None = None
    """The current directory relative to the root; None if it is outside."""
    sys_path: tuple[str, ...] = ("",)
    """Import directories below the root, in the order of `sys.path`; the root comes first."""
    only: tuple[str, ...] | None = None
    """Paths below the root that may be shipped, each with all below it; None ships everything.

    Set where the root holds more than one project: a scratch file in a home directory is no reason to
    upload all that lies beside it, nor is a DAG a reason to upload those of other teams.
    """
    elsewhere: tuple[Place, ...] = ()
    """What else ships, from directories outside the root."""
    base: Path | None = None
    """The directory that relative paths of options start from; None is the root."""
    notices: tuple[str, ...] = ()
    """What the user should know of what was found."""

    @property
    def key(self) -> str:
        """A name for this selection of files, the same in every process."""
        if self.only is None and not self.elsewhere:
            return str(self.root)
        selected = [self.only, [(str(place.directory), place.path, place.only) for place in self.elsewhere]]
        return f"{self.root}\0{json.dumps(selected)}"


@dataclass(frozen=True)
class Place:
    """Files of a directory outside a project's root, which appear at `path` below it."""

    directory: Path
    path: str
    only: tuple[str, ...]


def _alone_notice(root: Path, only: tuple[str, ...] | None) -> tuple[str, ...]:
    """What to say when a script's neighbours stay at home, which it may import, or open beside `__file__`."""
    if not only:
        return ()
    imports = any(file.name not in only for file in root.glob("*.py"))
    if not imports and b"__file__" not in (root / only[0]).read_bytes():
        return ()
    notice = (
        f"only {only[0]} is shipped: {root} holds more than a project. Move the project to a directory "
        "of its own, or set KINETIC_PACKAGE_ROOT"
    )
    return (notice,)


def _current_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise InvalidProject(
            "the current directory has been removed; change to one that exists and try again"
        ) from None


def locate_project(
    source_file: Path | None,
    *,
    package_root: str | None = None,
    cwd: Path | None = None,
    sys_path: Sequence[str] | None = None,
    home: Path | None = None,
) -> Project:
    """The project of the function defined in `source_file`; None is a notebook or a prompt.

    `package_root` (the setting `KINETIC_PACKAGE_ROOT`, `~` expanded) replaces detection. `cwd`,
    `sys_path` and `home` default to this process's. Raises InvalidProject for an override that is no
    directory or does not hold the function's file, and for a current directory that was removed.
    """
    here = _absolute(cwd or _current_directory())
    shared = _shared_directories(home)
    source = None if source_file is None else _absolute(source_file)
    if source is not None and (not source.is_file() or is_installed(source)):
        source = None
    working = here if source is None else source.parent
    root = (
        _detected(working, shared) if package_root is None else _overridden(package_root, source and working)
    )
    only: tuple[str, ...] | None = None
    if package_root is None and _is_one_of(root, shared):
        only = () if source is None or source.parent != root else (source.name,)
    return Project(
        root=root,
        entry=relative_path(working, root) or "",
        cwd=relative_path(here, root),
        sys_path=_import_directories(root, sys.path if sys_path is None else sys_path)
        if only is None
        else ("",),
        only=only,
        notices=_alone_notice(root, only),
    )


def _overridden(text: str, working: Path | None) -> Path:
    root = _absolute(Path(text).expanduser())
    if not root.is_dir():
        raise InvalidProject(f"{_OVERRIDE}={text!r} is not a directory; name the project's root, or unset it")
    if working is not None and relative_path(working, root) is None:
        raise InvalidProject(
            f"{_OVERRIDE}={text!r} does not hold {str(working)!r}, where the function is defined; "
            "name a directory above it, or unset it"
        )
    return root


def _detected(working: Path, shared: Sequence[Path]) -> Path:
    base = working
    while (base / "__init__.py").is_file() and base.parent != base and not _is_one_of(base.parent, shared):
        base = base.parent
    for candidate in (base, *base.parents):
        if candidate != base and _is_one_of(candidate, shared):
            break
        if any((candidate / marker).exists() for marker in MARKERS):
            return candidate
    return base


def _shared_directories(home: Path | None) -> tuple[Path, ...]:
    """Directories that hold more than one project by their nature, so are never one themselves."""
    import tempfile

    try:
        own = [_absolute(home or Path.home())]
    except RuntimeError:  # no home directory: an arbitrary user id in a container
        own = []
    if _AIRFLOW_TASK in os.environ:  # nothing of Airflow's own directory but what lies in one of its own
        own.append(_absolute(Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()))
    return (*own, Path("/"), _absolute(Path(tempfile.gettempdir())), Path("/tmp"))  # noqa: S108  named, not used


def _is_one_of(directory: Path, others: Sequence[Path]) -> bool:
    return any(_same(directory, other) for other in others)


def _same(one: Path, other: Path) -> bool:
    return one == other or os.path.realpath(one) == os.path.realpath(other)


def is_installed(source: Path) -> bool:
    """Return whether this file is part of an installed package or of Python itself, so nobody's project."""
    if any(part in _INSTALLED for part in source.parts):
        return True
    return any(relative_path(source, path) is not None for path in _libraries())


@cache
def _libraries() -> frozenset[Path]:
    """Return the folders of the standard library; Python works them out anew each time it is asked."""
    import sysconfig

    found = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    return frozenset(Path(path) for path in found if path)


def _import_directories(root: Path, entries: Sequence[str]) -> tuple[str, ...]:
    found = dict.fromkeys([""])
    for entry in entries:
        if not isinstance(entry, str) or not entry or not os.path.isdir(entry):
            continue
        path = _absolute(Path(entry))
        relative = relative_path(path, root)
        if relative is None or any(part in _INSTALLED for part in path.parts) or in_virtualenv(path, root):
            continue
        found[relative] = None
    return tuple(found)


def in_virtualenv(directory: Path, root: Path) -> bool:
    """Is this directory part of a virtual environment below the root? The root may be one itself."""
    below = (folder for folder in (directory, *directory.parents) if relative_path(folder, root))
    return any((folder / "pyvenv.cfg").is_file() for folder in below)


def relative_path(path: Path, root: Path) -> str | None:
    """`path` below `root` as POSIX text, "" if they are the same, None if it is not below.

    Compared as written first, then with links resolved: /tmp and /private/tmp are one place.
    """
    for one, other in ((path, root), (Path(os.path.realpath(path)), Path(os.path.realpath(root)))):
        if one.is_relative_to(other):
            relative = one.relative_to(other).as_posix()
            return "" if relative == "." else relative
    return None


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))
