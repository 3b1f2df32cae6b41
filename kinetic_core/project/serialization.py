"""Pickling a function and its arguments so that they load in a job.

What modules of the user's project define goes by name, with a copy to fall back on: the project ships, and
imported once, everything in it is itself (`isinstance`, `except`, module state). The function that becomes
a job goes by value, with the functions beside it, and so does what has no name a job could import: the main
script, notebooks, closures. Everything installed goes by name (ADR 0005). The rule belongs to one dump:
nothing is registered, so threads do not disturb each other.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar

import cloudpickle
from cloudpickle import cloudpickle as _internals

from kinetic_core.project.file_paths import FilePaths
from kinetic_core.project.module_source import ModuleSource

Substitute = Callable[[Any], tuple[Any, ...] | None]
"""What stands for an object in the pickle (its persistent id), None for "pickle it"."""

_OURS = ("kinetic_core", "airflow_provider")
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class ProjectModules:
    """Which modules belong to the project below `root`: loaded from a file there, and not installed.

    `elsewhere`: directories outside the root that ship too, each with its path in the project.

    A virtualenv inside the project, the standard library and this package are not part of it. `own` is the
    module of the function that becomes a job: its functions travel together, with the globals they have now.
    `mentioned` collects names by which what is pickled may refer to modules: those of modules, and all that
    code of functions uses.
    """

    def __init__(
        self,
        root: str,
        own: str = "",
        *,
        elsewhere: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.own = own
        self.mentioned: set[str] = set()
        places = [(root, ""), *((directory, path + "/") for directory, path in elsewhere)]
        self._prefixes = tuple(os.path.join(os.path.realpath(directory), "") for directory, _ in places)
        self._shipped_at = dict(zip(self._prefixes, (path for _, path in places), strict=True))
        self._real_folders: dict[str, str] = {}
        self._installed: dict[str, bool] = {}
        self._known: dict[str | None, bool] = {None: False, "__main__": True}
        self._environments = tuple(
            os.path.join(os.path.realpath(prefix), "") for prefix in {sys.prefix, sys.base_prefix}
        )

    def __contains__(self, name: str | None) -> bool:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._belongs(str(name))
        return known

    def relative(self, file: str) -> str | None:
        """A file's path below the root; None if it is not there."""
        path = self._real(file)
        path = os.path.join(path, "") if f"{path}{os.sep}" in self._prefixes else path
        prefix = max(filter(path.startswith, self._prefixes), key=len, default=None)
        return None if prefix is None else self._shipped_at[prefix] + path.removeprefix(prefix)

    def names(self) -> list[str]:
        """Every loaded module of the project, sorted."""
        return sorted(
            name
            for name in list(sys.modules)
            if name != "__main__" and not self._is_installed(name) and name in self
        )

    def _is_installed(self, name: str) -> bool:
        """Whether a module is in a package all of whose folders are installed, and so is installed itself.

        An Airflow worker has thousands of modules, in hundreds of packages, and looking at one copies its
        pages from the process that it is a fork of. A folder may be a link to the project: its target counts.
        """
        package = name.rpartition(".")[0]
        known = self._installed.get(package)
        if known is None:
            path = getattr(sys.modules.get(package), "__path__", None)
            folders = list(path) if isinstance(path, Iterable) else []
            real = [os.path.join(self._real(str(folder)), "") for folder in folders]
            known = bool(real) and all(any(part in folder for part in _INSTALLED) for folder in real)
            self._installed[package] = known
        return known

    def _belongs(self, name: str) -> bool:
        if name.partition(".")[0] in _OURS:
            return False
        file = getattr(sys.modules.get(name), "__file__", None)
        if not isinstance(file, str):
            return False
        path = self._real(file)
        if not path.startswith(self._prefixes) or any(part in path for part in _INSTALLED):
            return False
        inside = [env for env in self._environments if env.startswith(self._prefixes)]
        return not path.startswith(tuple(inside)) if inside else True

    def _real(self, file: str) -> str:
        """`os.path.realpath`, which asks of every part of a path, of many files in few folders."""
        folder, _, name = file.rpartition(os.sep)
        if not folder or name in ("", os.curdir, os.pardir):
            return os.path.realpath(file)
        if folder not in self._real_folders:
            # one that is in a folder that is known, as where paths are joined to each other, asks of itself
            is_near = folder.rpartition(os.sep)[0] in self._real_folders
            real = self._real(folder) if is_near else os.path.realpath(folder)
            self._real_folders[folder] = os.path.join(real, "")
        path = self._real_folders[folder] + name
        return os.path.realpath(path) if os.path.islink(path) else path


class Pickled(NamedTuple):
    """A pickle, and one of what it names: `{(module, qualified name): object}`, b"" if it names nothing."""

    body: bytes
    copies: bytes


class _Shipped(str):
    """A path of the project, relative to its root: in the job, the path of the shipped copy."""

    __slots__ = ()


class ProjectPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """A cloudpickle dump with the rules of one project.

    `named` collects what went by name; None sends it by value.
    """

    def __init__(
        self,
        stream: io.BytesIO,
        project: ProjectModules,
        substitute: Substitute,
        named: dict[tuple[str, str], Any] | None = None,
    ) -> None:
        super().__init__(stream, protocol=5)
        self._project = project
        self._substitute = substitute
        self._named = named
        self._from_file: dict[int, tuple[str | PurePath, _Shipped]] = {}
        self._file_paths = FilePaths()
        self._sources: dict[str, ModuleSource | None] = {}

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        kind = type(obj)
        if kind is _Shipped:
            return "shipped", str(obj)
        if kind is str and id(obj) in self._from_file:
            return "shipped", str(self._from_file[id(obj)][1])
        if kind is types.CodeType:
            self._project.mentioned.update(obj.co_names)
        elif kind is types.ModuleType:
            self._project.mentioned.add(obj.__name__)
        if self._named is not None and isinstance(obj, types.FunctionType | type) and self._has_name(obj):
            self._named[obj.__module__, obj.__qualname__] = obj
            self._project.mentioned.add(obj.__module__)
            return "named", obj.__module__, obj.__qualname__
        return self._substitute(obj)

    def _has_name(self, obj: Any) -> bool:
        """Whether a job that imports its module finds it there, and shall."""
        module, found = obj.__module__, sys.modules.get(obj.__module__)
        if module == "__main__" or found is None or module not in self._project:
            return False
        if module == self._project.own and not isinstance(obj, type):
            return False
        for name in obj.__qualname__.split("."):
            found = getattr(found, name, None)
        return found is obj

    def _with_shipped_file(self, function: types.FunctionType) -> None:
        """What cloudpickle keeps of a function's globals, with the job's own path for `__file__`."""
        kept = self.globals_ref.setdefault(id(function.__globals__), {})
        if kept:
            return
        for name in ("__package__", "__name__", "__path__", "__file__"):
            if name in function.__globals__:
                kept[name] = function.__globals__[name]
        if isinstance(kept.get("__file__"), str) and (path := self._project.relative(kept["__file__"])):
            kept["__file__"] = _Shipped(path)
        if (source := self._source_of(function.__globals__)) is not None:
            self._ship(self._file_paths.of_globals(source, function.__globals__))

    def _reduced_function(self, function: types.FunctionType) -> Any:
        """cloudpickle's reduction, with the job's own paths for `__file__` and for what is made from it."""
        reduced = self._dynamic_function_reduce(function)
        used, file = reduced[2][1]["__globals__"], function.__globals__.get("__file__")
        if not isinstance(file, str):
            return reduced
        if "__file__" in used and (path := self._project.relative(file)):
            used["__file__"] = _Shipped(path)
        if (source := self._source_of(function.__globals__)) is not None:
            self._ship(self._file_paths.of_variables(source, used))
            inside = f"{function.__code__.co_qualname}.<locals>."
            self._ship(self._file_paths.of_variables(source, _variables(function), inside))
        return reduced

    def _reduced_class(self, kind: type) -> Any:
        """cloudpickle's reduction, with the job's own paths for attributes that are made from `__file__`."""
        module = sys.modules.get(kind.__module__)
        if module is not None and (source := self._source_of(vars(module))) is not None:
            self._ship(self._file_paths.of_class(source, kind))
        return _internals._dynamic_class_reduce(kind)

    def _source_of(self, namespace: Mapping[str, Any]) -> ModuleSource | None:
        """The source of a module, by its globals; None if it is not of the project."""
        file = namespace.get("__file__")
        if not isinstance(file, str):
            return None
        if file not in self._sources:
            package, ships = namespace.get("__package__") or "", self._project.relative(file) is not None
            self._sources[file] = ModuleSource(file, package, self._source_of_other) if ships else None
        return self._sources[file]

    def _source_of_other(self, name: str) -> ModuleSource | None:
        return self._source_of(vars(sys.modules[name])) if name in self._project else None

    def _ship(self, paths: Iterable[str | PurePath]) -> None:
        """Let these objects, wherever the pickle has them, be the paths of the shipped copies."""
        for path in paths:
            if id(path) in self._from_file:
                continue
            relative = self._project.relative(str(path))
            if relative is not None:
                self._from_file[id(path)] = path, _Shipped(relative)

    def _shipped_code(self, code: types.CodeType) -> Any:
        """cloudpickle's reduction of code, with the job's own path for its file if that ships.

        Else the file is called what it is called here; newer versions of cloudpickle than 3.1.2 leave it out.
        """
        make, arguments = _internals._code_reduce(code)
        file: str | None = None
        if os.path.isfile(code.co_filename):
            file = self._project.relative(code.co_filename)
        at = next(place for place, each in enumerate(arguments) if isinstance(each, str))
        return make, (
            *arguments[:at],
            code.co_filename if file is None else _Shipped(file),
            *arguments[at + 1 :],
        )

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType):
            if obj.__module__ in self._project:
                self._with_shipped_file(obj)
                return self._reduced_function(obj)
        elif isinstance(obj, type):
            if obj.__module__ in self._project:
                return self._reduced_class(obj)
        elif isinstance(obj, types.CodeType):
            return self._shipped_code(obj)
        elif id(obj) in self._from_file:
            return type(obj), (self._from_file[id(obj)][1],)
        elif isinstance(obj, TypeVar) and obj.__module__ in self._project:
            return _internals._make_typevar, _internals._decompose_typevar(obj)
        return super().reducer_override(obj)


def _variables(function: types.FunctionType) -> dict[str, Any]:
    """A function's defaults and the variables of functions around it, by name."""
    code, defaults = function.__code__, function.__defaults__ or ()
    found = dict(zip(reversed(code.co_varnames[: code.co_argcount]), reversed(defaults), strict=False))
    found |= function.__kwdefaults__ or {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            found[name] = cell.cell_contents
    return found


def dumps(value: Any, project: ProjectModules, substitute: Substitute) -> Pickled:
    """The pickle of a value. Raises whatever the value's own pickling raises."""
    named: dict[tuple[str, str], Any] = {}
    with io.BytesIO() as stream:
        ProjectPickler(stream, project, substitute, named).dump(value)
        body = stream.getvalue()
    return Pickled(body, _copies(named, project, substitute) if named else b"")


def _copies(named: dict[tuple[str, str], Any], project: ProjectModules, substitute: Substitute) -> bytes:
    """The same objects by value. One that cannot travel by value has only its name."""
    with io.BytesIO() as stream:
        try:
            ProjectPickler(stream, project, substitute).dump(named)
        except Exception:  # noqa: BLE001  pickling runs the user's own __reduce__ methods
            alone = {key: value for key, value in named.items() if _travels(value, project, substitute)}
            stream.seek(0)
            stream.truncate()
            ProjectPickler(stream, project, substitute).dump(alone)
        return stream.getvalue()


def _travels(value: Any, project: ProjectModules, substitute: Substitute) -> bool:
    try:
        ProjectPickler(io.BytesIO(), project, substitute).dump(value)
    except Exception:  # noqa: BLE001  as above
        return False
    return True
