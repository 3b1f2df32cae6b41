"""What a module's source says of where the values of its variables come from.

The expressions and the variables of all modules form one graph: a variable leads to the expressions that
it is bound to, an expression to the variables that it names. A value is made from `__file__` if its source
leads there (`is_from_file`). Every part of the graph is built when it is asked for, and looked at once.
"""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import resolve_name
from pathlib import Path, PurePath
from typing import NamedTuple, TypeGuard

MODULE = ""
"""Scope of a module's globals."""


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


_Bindings = dict[str, list[_Value | _Import]]
"""By name, everything that statements of one scope bind it to."""
_Scopes = dict[str, _Bindings]
"""A scope is what the qualified names in it begin with: "", "Model.", "make.<locals>."."""


@dataclass(eq=False)
class Expression:
    """An expression of a module, or a statement of a function."""

    module: ModuleSource
    node: ast.AST
    scope: str
    from_file: bool | None = None
    """As `is_from_file` found; None until it is asked."""

    def parts(self) -> Iterator[Variable]:
        """Yield the variables that it names, and the results of functions that it calls."""
        for node in ast.walk(self.node):
            match node:
                case ast.Name():
                    yield self.variable(node.id)
                case ast.Attribute(value=ast.Name(id=name)):
                    yield from self.module.attributes(name, node.attr, self.scope)
                case ast.Call(func=ast.Name(id=name)):
                    given = [*node.args, *(each.value for each in node.keywords)]
                    if all(isinstance(each, ast.Constant) and not is_path(each.value) for each in given):
                        yield self.variable(name, called=True)  # else it may return what somebody typed

    def variable(self, name: str, *, called: bool = False) -> Variable:
        """Return the variable that a name in this expression means."""
        return self.module.variable(name, self.scope, called=called)

    def part(self, node: ast.AST) -> Expression:
        """Return an expression within this one."""
        return self.module.expression(node, self.scope)


@dataclass(eq=False)
class Variable:
    """A variable of a module; if it is `called`, what the functions of this name return."""

    module: ModuleSource
    name: str
    bindings: Sequence[_Value | _Import]
    called: bool
    from_file: bool | None
    """As of an expression."""

    def parts(self) -> Iterator[Expression | Variable]:
        """Yield the expressions that it is bound to, and the variables that are imported under its name."""
        for binding in self.bindings:
            if isinstance(binding, _Import):
                module = self.module.other(binding.module) if binding.name else None
                if module is not None:
                    there = self.name if binding.name == "*" else binding.name
                    yield module.variable(there, called=self.called)
            elif binding.is_function == self.called:
                yield from (self.module.expression(node, binding.scope) for node in binding.sources)


class ModuleSource:
    """The source of the module in `file`, of a package: empty if it cannot be read.

    `other` returns the same of another module by its name; None for one that is not of the project.
    """

    def __init__(self, file: str, package: str, other: Callable[[str], ModuleSource | None]) -> None:
        self._file, self._package, self.other = file, package, other
        self._variables: dict[tuple[str, str, bool], Variable] = {}
        self._expressions: dict[ast.AST, Expression] = {}

    def variable(self, name: str, scope: str = MODULE, *, called: bool = False) -> Variable:
        """Return the variable that a name in a scope means: that of the innermost scope that binds it."""
        found, bindings = self._lookup(name, scope)
        key = found, name, called
        if key not in self._variables:
            from_file = True if name == "__file__" else None
            self._variables[key] = Variable(self, name, bindings, called, from_file)
        return self._variables[key]

    def expression(self, node: ast.AST, scope: str) -> Expression:
        """Return an expression of this module."""
        if node not in self._expressions:
            self._expressions[node] = Expression(self, node, scope)
        return self._expressions[node]

    def attributes(self, name: str, attribute: str, scope: str) -> Iterator[Variable]:
        """Yield the variables that `name.attribute` may mean, where the name is an imported module."""
        for binding in self._lookup(name, scope)[1]:
            if isinstance(binding, _Import):
                module = self.other(".".join(filter(None, binding)))
                if module is not None:
                    yield module.variable(attribute)

    def names(self, scope: str) -> frozenset[str]:
        """Return the names that are bound in a scope."""
        return frozenset(self._scopes.get(scope, ()))

    def _lookup(self, name: str, scope: str) -> tuple[str, Sequence[_Value | _Import]]:
        """Return the innermost scope that binds a name, and what it binds the name to."""
        while scope and name not in self._scopes.get(scope, {}):
            scope = _around(scope)
        names = self._scopes.get(scope, {})
        return scope, names.get(name) or ([] if scope else names.get("*", []))

    @functools.cached_property
    def _scopes(self) -> _Scopes:
        try:
            facts = Path(self._file).stat()
            return _scopes_in(self._file, self._package, facts.st_mtime_ns, facts.st_size)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return {}


def is_from_file(origin: Expression | Variable) -> bool:
    """Tell whether an expression or a variable leads to `__file__`."""
    if origin.from_file is None:
        _trace(origin)
    return bool(origin.from_file)


def _trace(start: Expression | Variable) -> None:
    """Set `from_file` of an origin, and of those that it leads to as far as that needs them.

    Each is looked at once, however many ways lead to it: what leads to `__file__` is passed on to those that
    lead to it, until nothing changes. So names that only refer to each other are not made from it.
    """
    users: dict[Expression | Variable, list[Expression | Variable]] = {}
    reached, found = [start], []
    start.from_file = False
    for origin in reached:  # which grows
        parts = list(origin.parts())
        if any(part.from_file for part in parts):
            origin.from_file = True
            found.append(origin)
            continue
        for part in parts:
            users.setdefault(part, []).append(origin)
            if part.from_file is None:
                part.from_file = False
                reached.append(part)
    for origin in found:  # which grows
        for user in users.get(origin, ()):
            if not user.from_file:
                user.from_file = True
                found.append(user)


def is_path(value: object) -> TypeGuard[str | PurePath]:
    """Tell whether a value may be an absolute path."""
    return isinstance(value, str | PurePath) and os.path.isabs(value)


@functools.lru_cache(maxsize=64)
def _scopes_in(file: str, package: str, _modified: int, _size: int) -> _Scopes:
    """Return what a module's source binds; once for all jobs of a process, as packing one is mostly this.

    It takes 1.5 KB of memory for a line of source. What cannot be read now raises, so that it is tried again.
    """
    return _bindings(ast.parse(Path(file).read_bytes()), package)


def _around(scope: str) -> str:
    """Return the scope around one."""
    outer = scope[:-1].rpartition(".")[0]
    return f"{outer}." if outer else MODULE


def _bindings(tree: ast.Module, package: str) -> _Scopes:
    """Return what the statements of a module, and of the blocks in it, bind."""
    scopes: _Scopes = {MODULE: {}}
    todo: list[tuple[ast.AST, str]] = [(tree, MODULE)]
    while todo:
        node, scope = todo.pop()
        for name, bound in _bound(node, scope, package):
            scopes[scope].setdefault(name, []).append(bound)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments, scope = _arguments(node.args, scope), _inside(node, scope)
            scopes[scope] = arguments
        elif isinstance(node, ast.ClassDef):
            scope = f"{scope}{node.name}."
            scopes.setdefault(scope, {})
        elif not isinstance(node, ast.mod | ast.stmt | ast.ExceptHandler | ast.match_case):
            continue
        todo += [(child, scope) for child in reversed(list(ast.iter_child_nodes(node)))]
    return scopes


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
