"""Modules of the project in a process that runs several calls: kept while their files are as they were."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from . import wire
from .payload import Payload

_MOST_FUNCTIONS = 16


class ProjectModules:
    """What a process has loaded of the project, and the functions that the last calls had.

    `folder` is where the process keeps what its calls share: packages that its image lacks.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)  # what an earlier process has left
        os.makedirs(folder)
        self.installed: Any = None
        """The dependencies that are installed there."""
        self._workspace = ""
        self._files: dict[str, str] = {}
        self._names: set[str] = set()
        self._functions: dict[str, tuple[Payload, Any]] = {}
        """Those of the last calls, by their digests, the oldest first."""
        self._current: Payload | None = None
        """The payload whose `__main__` this process has."""

    def note(self) -> None:
        """Note at the end of a call what the files of its modules are: their directory is removed then."""
        if self._workspace:
            own = self._of_project()
            self._names.update(own)
            self._files = {path: _digest(path) for path in own.values()}

    def leave_paths(self) -> None:
        """Make way for the paths of the next call's project."""
        if self._workspace:
            sys.path[:] = [path for path in sys.path if not _is_in(path, self._workspace)]

    def load(
        self,
        payload: Payload,
        workspace: str,
        header: Mapping[str, Any],
        parts: Mapping[str, bytes],
        spawned: str,
    ) -> tuple[Payload, Any]:
        """Return the function of a call whose project is in `workspace`, and the payload for its arguments.

        Forgets all modules of the project if a file of one has changed, or is gone. If none has, a function
        that an earlier call had is the same one, with all that the call has left in variables of its module.
        """
        self._workspace = workspace
        importlib.invalidate_caches()
        if any(_digest(path) != known for path, known in self._files.items()):
            self._forget()
        digest = payload.digest_of_function()
        known = self._functions.pop(digest, None)
        if known is None and any(each.modules.shipped for each, _ in self._functions.values()):
            self._forget()  # shipped by value: another function may have other values
        if self._current is not None and (known is None or known[0] is not self._current):
            self._current.remove(spawned)
        if known is None:
            self._names.update(header["modules"])
            payload.client_folder = os.path.join(self.folder, "client")
            payload.install(spawned)
            self._current = payload
            known = payload, payload.load_function()
        else:
            known[0].renew(parts, payload)
            if known[0] is not self._current:
                self._current = known[0]
                self._current.install(spawned)
        self._functions[digest] = known
        if len(self._functions) > _MOST_FUNCTIONS:
            del self._functions[next(iter(self._functions))]
        return known

    def _forget(self) -> None:
        """Have everything of the project imported again."""
        for name in {*self._of_project(), *self._names}:
            sys.modules.pop(name, None)
        if (linecache := sys.modules.get("linecache")) is not None:
            linecache.clearcache()
        self._files, self._names, self._functions = {}, set(), {}

    def _of_project(self) -> dict[str, str]:
        """Return the files of the project's modules that this process has, by the modules' names."""
        found = {}
        for name, module in list(sys.modules.items()):
            path = getattr(getattr(module, "__spec__", None), "origin", None)
            if isinstance(path, str) and _is_in(path, self._workspace):
                found[name] = path
        return found


def _is_in(path: Any, folder: str) -> bool:
    return isinstance(path, str) and (path == folder or path.startswith(folder + os.sep))


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return wire.digest(stream.read())
    except OSError:
        return ""
