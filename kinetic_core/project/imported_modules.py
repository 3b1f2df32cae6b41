"""Modules of the project that a job imports: which they are, and whether they ship.

The job imports a module anew, from its file. A file that Git ignores does not ship: that would be a failure
in the pod.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, ModuleType

from kinetic_core.errors import InvalidProject
from kinetic_core.project.ignore import KINETIC_IGNORE, hidden
from kinetic_core.project.root import Project
from kinetic_core.project.serialization import ProjectModules


def reached(modules: ProjectModules) -> list[str]:
    """Return the loaded modules of the project that a job imports, sorted: those which its pickles refer to,
    and what these import, also in functions. Found by the names in their bytecode, so it may be a few more.
    """
    loaded = frozenset(modules.names())
    found: set[str] = set()
    own = sys.modules.get(modules.own)
    pending = sorted(_named(modules.mentioned, _package(own) if own else "", loaded))
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        parent = name.rpartition(".")[0]
        pending += [parent] if parent in loaded else []
        module = sys.modules[name]
        pending += _named(set(_names(_code(module))), _package(module), loaded) - found
    return sorted(found)


def _package(module: ModuleType) -> str:
    return module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]


def _named(names: set[str], package: str, loaded: frozenset[str]) -> set[str]:
    """Return the loaded modules that code of a package with these names in it may import."""
    folders = set()
    while package:
        folders.add(package)
        package = package.rpartition(".")[0]
    found = {name for name in names if name in loaded}
    found |= {f"{folder}.{name}" for folder in folders for name in names} & loaded
    parents = {*found, *(folders & names)}
    return found | ({f"{parent}.{name}" for parent in parents for name in names} & loaded)


def _code(module: ModuleType) -> CodeType | None:
    """Return a module's bytecode, usually from its `.pyc`; None if it has none."""
    get_code = getattr(getattr(module, "__loader__", None), "get_code", None)
    try:
        code = get_code(module.__name__) if get_code is not None else None
    except (ImportError, OSError, SyntaxError, ValueError, EOFError):
        return None
    return code if isinstance(code, CodeType) else None


def _names(code: CodeType | None) -> Iterator[str]:
    if code is None:
        return
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):
            yield constant


def check_ships(
    project: Project, modules: ProjectModules, imported: Sequence[str], default_excludes: bool
) -> None:
    """Raise InvalidProject for one of the `imported` modules, as `reached` lists them, that does not ship.

    What `.kineticignore` names is left out on purpose.
    """
    root, paths = str(project.root), {}
    for name in imported:
        path = modules.relative(str(sys.modules[name].__file__))
        if path is not None and os.path.isfile(os.path.join(root, path)):
            paths[path] = name
    for path, what in hidden(root, paths, default_excludes):
        if what.by == KINETIC_IGNORE:
            continue
        raise InvalidProject(
            f"the job would import {paths[path]}, and {path} does not ship: {what.by} leaves out "
            f"{what.entry}. Add a line '!{what.entry}' to .kineticignore to ship it, or '{what.entry}' if "
            "the job does not need it"
        )
