"""Pickling a function and its arguments so that they load in a job.

Functions and classes of the user's project go by value, everything installed goes by name (ADR 0005).
The rule belongs to one dump: nothing is registered anywhere, so threads do not disturb each other.
"""

from __future__ import annotations

import io
import os
import sys
import types
from collections.abc import Callable
from typing import Any, TypeVar

import cloudpickle
from cloudpickle import cloudpickle as _internals

Substitute = Callable[[Any], tuple[Any, ...] | None]
"""What stands for an object in the pickle (its persistent id), None for "pickle it"."""

_OURS = ("kinetic_core", "airflow_provider")
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class ProjectModules:
    """Which modules belong to the project below `root`: loaded from a file there, and not installed.

    A virtualenv inside the project, the standard library and this package are not part of it.
    """

    def __init__(self, root: str) -> None:
        self._prefix = os.path.join(os.path.realpath(root), "")
        self._known: dict[str | None, bool] = {None: False, "__main__": True}
        self._environments = tuple(
            os.path.join(os.path.realpath(prefix), "") for prefix in {sys.prefix, sys.base_prefix}
        )

    def __contains__(self, name: str | None) -> bool:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._belongs(str(name))
        return known

    def names(self) -> list[str]:
        """Every loaded module of the project, sorted."""
        return sorted(name for name in list(sys.modules) if name != "__main__" and name in self)

    def _belongs(self, name: str) -> bool:
        if name.partition(".")[0] in _OURS:
            return False
        file = getattr(sys.modules.get(name), "__file__", None)
        if not isinstance(file, str):
            return False
        path = os.path.realpath(file)
        if not path.startswith(self._prefix) or any(part in path for part in _INSTALLED):
            return False
        inside = [env for env in self._environments if env.startswith(self._prefix)]
        return not path.startswith(tuple(inside)) if inside else True


class ProjectPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """A cloudpickle dump with the rules of one project."""

    def __init__(self, stream: io.BytesIO, project: ProjectModules, substitute: Substitute) -> None:
        super().__init__(stream, protocol=5)
        self._project = project
        self._substitute = substitute

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        return self._substitute(obj)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType):
            if obj.__module__ in self._project:
                return self._dynamic_function_reduce(obj)
        elif isinstance(obj, type):
            if obj.__module__ in self._project:
                return _internals._dynamic_class_reduce(obj)
        elif isinstance(obj, TypeVar) and obj.__module__ in self._project:
            return _internals._make_typevar, _internals._decompose_typevar(obj)
        return super().reducer_override(obj)


def dumps(value: Any, project: ProjectModules, substitute: Substitute) -> bytes:
    """The pickle of a value. Raises whatever the value's own pickling raises."""
    with io.BytesIO() as stream:
        ProjectPickler(stream, project, substitute).dump(value)
        return stream.getvalue()
