"""Paths that a module makes from its `__file__`, as its source says.

Only what the source shows counts. A path that somebody typed, or that was read from a file or from the
command line, is no such path, though it may lie in the project: its user means that very place.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.util import resolve_name
from pathlib import Path, PurePath
from typing import NamedTuple, TypeGuard

_MODULE = ""
_CONTAINERS = (dict, list, tuple, set, frozenset)
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp
_OF_IMPORT = ("__file__", "__cached__")
"""Paths that the import system sets."""


class _Import(NamedTuple):
    """A name that is the module `module`, or, if `name` is not "", what is called so in that module."""

    module: str
    name: str = ""


class _Value(NamedTuple):
    """What a name is bound to: an expression, or a function with its statements.

    `scope` is where the names in these sources are looked up.
    """

    sources: Sequence[ast.AST]
    scope: str
    is_function: bool = False


_Scopes = dict[str, dict[str, list[_Value | _Import]]]
"""By scope and name. A scope is what the qualified names in it begin with: "", "Model.", "make.<locals>."."""


class FilePaths:
    """The paths that the module in `file`, of a package, makes from its `__file__`.

    `other` returns the same of another module by its name; None for one that is not of the project.
    """

    def __init__(self, file: str, package: str, other: Callable[[str], FilePaths | None]) -> None:
        self._file, self._package, self._other = file, package, other
        self._known: dict[tuple[str, str], bool] = {}
        self._open: set[tuple[str, str]] = set()

    def of_module(self, namespace: Mapping[str, object], used: Iterable[str]) -> Iterator[str | PurePath]:
        """Yield the paths that are globals, and those in lists and dicts that are the `used` globals."""
        names = [name for name, value in namespace.items() if _is_path(value) and name not in _OF_IMPORT]
        names += [name for name in used if isinstance(namespace.get(name), _CONTAINERS)]
        yield from (each for name in names for each in self._paths_in(name, namespace[name]))

    def of_class(self, kind: type) -> Iterator[str | PurePath]:
        """Yield the paths that are attributes of a class, or are in its lists and dicts."""
        scope = f"{kind.__qualname__}."
        names = self._scopes.get(scope, {}).keys() & vars(kind).keys()
        yield from (each for name in names for each in self._paths_in(name, vars(kind)[name], scope))

    def of_function(self, qualified: str, variables: Mapping[str, object]) -> Iterator[str | PurePath]:
        """Yield the paths in a function's defaults, and in variables of the functions around it."""
        scope = f"{qualified}.<locals>."
        yield from (each for name, value in variables.items() for each in self._paths_in(name, value, scope))

    @cached_property
    def _scopes(self) -> _Scopes:
        scopes: _Scopes = {}
        try:
            _bind(ast.parse(Path(self._file).read_bytes()), _MODULE, self._package, scopes)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return {}
        return scopes

    def _paths_in(self, name: str, value: object, scope: str = _MODULE) -> Iterator[str | PurePath]:
        """Yield the paths in the value of a variable that are made from `__file__`."""
        if not _is_path(value) and not isinstance(value, _CONTAINERS):
            return
        found, bindings = self._lookup(scope, name)
        if (found, name) in self._open:  # names may refer to each other
            return
        self._open.add((found, name))
        for binding in bindings:
            if isinstance(binding, _Import):
                module, there = self._source_of(binding, name)
                yield from () if module is None else module._paths_in(there, value)
            elif not binding.is_function:
                yield from self._within(binding.sources[0], value, binding.scope)
        self._open.discard((found, name))

    def _within(self, source: ast.AST, value: object, scope: str) -> Iterator[str | PurePath]:
        """Yield the paths in a value, which has this `source`. Containers are compared item by item."""
        if not self._is_made(source, scope):
            return
        if _is_path(value):
            yield value
        elif isinstance(source, ast.Name):
            yield from self._paths_in(source.id, value, scope)
        elif isinstance(value, _CONTAINERS):
            pairs = _items(source, value)
            for part, item in pairs or ():
                yield from self._within(part, item, scope)
            if pairs is None or isinstance(source, _COMPREHENSIONS):
                # such as sorted(HERE.glob("*")); text may be read from a file
                yield from (item for item in _values(value) if isinstance(item, PurePath) and _is_path(item))

    def _is_made(self, source: ast.AST, scope: str) -> bool:
        """Tell whether a source names `__file__`, or a variable that is made from it."""
        return any(self._is_name_made(node, scope) for node in ast.walk(source))

    def _is_name_made(self, node: ast.AST, scope: str) -> bool:
        match node:
            case ast.Name():
                return node.id == "__file__" or self._is_variable_made(scope, node.id)
            case ast.Attribute(value=ast.Name(id=name)):
                bound = self._lookup(scope, name)[1]
                names = [".".join(filter(None, each)) for each in bound if isinstance(each, _Import)]
                modules = [module for module in map(self._other, names) if module is not None]
                return any(module._is_variable_made(_MODULE, node.attr) for module in modules)
            case ast.Call(func=ast.Name(id=name)):
                given = [*node.args, *(each.value for each in node.keywords)]
                others = [each for each in given if not self._is_made(each, scope)]
                if not all(isinstance(each, ast.Constant) and not _is_path(each.value) for each in others):
                    return False  # it may return an argument that somebody typed
                return self._is_variable_made(scope, name, called=True)
        return False

    def _is_variable_made(self, scope: str, name: str, *, called: bool = False) -> bool:
        """Tell whether a variable, or what it returns if it is a function that is `called`, is made so."""
        found, bindings = self._lookup(scope, name)
        key = found, f"{name}()" if called else name
        if key not in self._known:
            self._known[key] = False  # while it is looked up, as above
            self._known[key] = any(self._is_bound_to_made(each, name, called) for each in bindings)
        return self._known[key]

    def _is_bound_to_made(self, binding: _Value | _Import, name: str, called: bool) -> bool:
        if isinstance(binding, _Import):
            module, there = self._source_of(binding, name)
            return module is not None and module._is_variable_made(_MODULE, there, called=called)
        is_asked = binding.is_function == called
        return is_asked and any(self._is_made(each, binding.scope) for each in binding.sources)

    def _lookup(self, scope: str, name: str) -> tuple[str, Sequence[_Value | _Import]]:
        """Return what a name is bound to, in the innermost scope that has it, and that scope."""
        while scope and name not in self._scopes.get(scope, {}):
            scope = _around(scope)
        names = self._scopes.get(scope, {})
        return scope, names.get(name) or ([] if scope else names.get("*", []))

    def _source_of(self, binding: _Import, name: str) -> tuple[FilePaths | None, str]:
        """Return the module from which a variable is imported, None for one of others, and its name there."""
        module = self._other(binding.module) if binding.name else None
        return module, name if binding.name == "*" else binding.name


def _is_path(value: object) -> TypeGuard[str | PurePath]:
    """Tell whether a value may be an absolute path."""
    return isinstance(value, str | PurePath) and os.path.isabs(value)


def _around(scope: str) -> str:
    """Return the scope around one."""
    outer = scope[:-1].rpartition(".")[0]
    return f"{outer}." if outer else _MODULE


def _values(container: object) -> Iterable[object]:
    """Return the items of a container; of a dict, its values."""
    if isinstance(container, dict):
        return dict.values(container)
    return container if isinstance(container, _CONTAINERS) else ()


def _items(source: ast.AST, container: object) -> Iterable[tuple[ast.expr, object]] | None:
    """Return a container's items with their sources; None if its source is no display or comprehension."""
    match source:
        case ast.Dict() if isinstance(container, dict):
            constant = [
                (key.value, part)
                for key, part in zip(source.keys, source.values, strict=True)
                if isinstance(key, ast.Constant)
            ]
            return [(part, container[key]) for key, part in constant if key in container]
        case ast.Call(func=ast.Name(id="dict"), args=[]) if isinstance(container, dict):
            named = [each for each in source.keywords if each.arg in container]
            return [(each.value, container[each.arg]) for each in named]
        case ast.List() | ast.Tuple() if isinstance(container, list | tuple):
            starred = any(isinstance(each, ast.Starred) for each in source.elts)
            return [] if starred else list(zip(source.elts, container, strict=False))
        case ast.ListComp() | ast.SetComp():
            return [(source.elt, item) for item in _values(container)]
        case ast.DictComp():
            return [(source.value, item) for item in _values(container)]
    return None


def _bind(block: ast.AST, scope: str, package: str, scopes: _Scopes) -> None:
    """Note what the statements of a block, and of the blocks in it, bind."""
    names = scopes.setdefault(scope, {})
    for node in ast.iter_child_nodes(block):
        for name, bound in _bound(node, scope, package):
            names.setdefault(name, []).append(bound)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            within = _inside(node, scope)
            scopes[within] = _arguments(node.args, scope)
            _bind(node, within, package, scopes)
        elif isinstance(node, ast.ClassDef):
            _bind(node, f"{scope}{node.name}.", package, scopes)
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            _bind(node, scope, package, scopes)


def _inside(function: ast.FunctionDef | ast.AsyncFunctionDef, scope: str) -> str:
    return f"{scope}{function.name}.<locals>."


def _bound(node: ast.AST, scope: str, package: str) -> Iterator[tuple[str, _Value | _Import]]:
    match node:
        case ast.Assign():
            assigned = [pair for target in node.targets for pair in _assigned(target, node.value)]
            yield from ((name, _Value([value], scope)) for name, value in assigned)
        case ast.AnnAssign(value=ast.expr() as value):
            yield from ((name, _Value([one], scope)) for name, one in _assigned(node.target, value))
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield node.name, _Value(node.body, _inside(node, scope), is_function=True)
        case ast.ImportFrom():
            try:
                module = resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # a script's, which has no package
                return
            yield from ((each.asname or each.name, _Import(module, each.name)) for each in node.names)
        case ast.Import():
            yield from ((each.asname or each.name, _Import(each.name)) for each in node.names)


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        each = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        alike = len(each) == len(target.elts) and not any(isinstance(one, ast.Starred) for one in target.elts)
        for one, part in zip(target.elts, each if alike else [value] * len(target.elts), strict=True):
            yield from _assigned(one, part)


def _arguments(arguments: ast.arguments, scope: str) -> dict[str, list[_Value | _Import]]:
    """Return a function's arguments with their defaults, which are computed in the scope around it."""
    places = [*arguments.posonlyargs, *arguments.args]
    names: dict[str, list[_Value | _Import]] = {each.arg: [] for each in (*places, *arguments.kwonlyargs)}
    by_place = zip(reversed(places), reversed(arguments.defaults), strict=False)
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    for each, default in (*by_place, *by_name):
        names[each.arg] = [] if default is None else [_Value([default], scope)]
    return names
