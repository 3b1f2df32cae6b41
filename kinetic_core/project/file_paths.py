"""Paths that modules make from their `__file__`, as their source says.

Only what the source shows counts. A path that somebody typed, or that was read from a file or from the
command line, is no such path, though it may lie in the project: its user means that very place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath

from kinetic_core.project.module_source import (
    MODULE,
    Expression,
    ModuleSource,
    Variable,
    is_from_file,
    is_path,
)

_CONTAINERS = (dict, list, tuple, set, frozenset)
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp
_OF_IMPORT = ("__file__", "__cached__")
"""Paths that the import system sets."""


class FilePaths:
    """Finds such paths in the values of variables, for one pickle.

    A container is compared with each of its sources once, so its paths are found once.
    """

    def __init__(self) -> None:
        self._compared: dict[tuple[Expression | Variable, int], object] = {}
        """By source and id, the container; as long as it is here, no other object has this id."""

    def of_globals(self, module: ModuleSource, namespace: Mapping[str, object]) -> Iterator[str | PurePath]:
        """Yield the paths that are globals of a module."""
        paths = {
            name: value for name, value in namespace.items() if is_path(value) and name not in _OF_IMPORT
        }
        return self.of_variables(module, paths)

    def of_variables(
        self, module: ModuleSource, variables: Mapping[str, object], scope: str = MODULE
    ) -> Iterator[str | PurePath]:
        """Yield the paths that are variables of a scope, and those in lists and dicts that are variables.

        The scope of a function has its arguments, whose values are their defaults, and variables around it.
        """
        for name, value in variables.items():
            yield from self._within(module.variable(name, scope), value)

    def of_class(self, module: ModuleSource, kind: type) -> Iterator[str | PurePath]:
        """Yield the paths that are attributes of a class, or are in its lists and dicts."""
        scope = f"{kind.__qualname__}."
        bound = module.names(scope)
        own = {name: value for name, value in vars(kind).items() if name in bound}
        return self.of_variables(module, own, scope)

    def _within(self, source: Expression | Variable, value: object) -> Iterator[str | PurePath]:
        """Yield the paths in a value that are made from `__file__`. Containers are compared item by item."""
        todo = [(source, value)]
        while todo:
            source, value = todo.pop()
            if is_path(value):
                if is_from_file(source):
                    yield value
            elif isinstance(value, _CONTAINERS) and is_from_file(source):
                if (source, id(value)) in self._compared:
                    continue
                self._compared[source, id(value)] = value
                parts = _parts(source, value)
                todo += parts or ()
                if parts is None or _is_comprehension(source):
                    # such as sorted(HERE.glob("*")); text may be read from a file
                    yield from (
                        item for item in _values(value) if isinstance(item, PurePath) and is_path(item)
                    )


def _parts(
    source: Expression | Variable, container: object
) -> list[tuple[Expression | Variable, object]] | None:
    """Return a container's items with their sources, or the container with what its variable is bound to.

    None if its source does not show its items.
    """
    if isinstance(source, Variable):
        return [(part, container) for part in source.parts()]
    if isinstance(source.node, ast.Name):
        return [(source.variable(source.node.id), container)]
    items = _items(source.node, container)
    return None if items is None else [(source.part(node), item) for node, item in items]


def _is_comprehension(source: Expression | Variable) -> bool:
    return isinstance(source, Expression) and isinstance(source.node, _COMPREHENSIONS)


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
