"""Variables of the project's modules that were set since the import, and that a job shall have.

The job imports a module anew, from its file, where such a variable has its old value: that would be a wrong
result (ADR 0058).
"""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, islice
from pathlib import Path, PosixPath, PurePath, PurePosixPath
from types import ModuleType
from typing import Any

from kinetic_core.project.environment import looks_secret

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_LITERAL = (
    ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set,
    ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop, ast.expr_context,
)  # fmt: skip
_PATHS = (Path, PosixPath, PurePath, PurePosixPath)
_MUTATORS = frozenset(
    [
        "add",
        "append",
        "difference_update",
        "discard",
        "extend",
        "insert",
        "intersection_update",
        "remove",
        "pop",
        "popitem",
        "clear",
        "update",
        "setdefault",
        "sort",
        "symmetric_difference_update",
        "reverse",
        "__setitem__",
    ]
)
_OPENERS = frozenset(["globals", "vars", "locals", "exec", "setattr"])
"""Functions by which a module may set variables whose names its source does not say."""
_SHOWN, _SHOWN_DEEP = 40, 2
"""Letters of a value that a notice shows, and how deep it looks."""
_DEEPEST = 100
_MOST_ITEMS = 1000

Values = dict[str, dict[str, tuple[object, object]]]
"""By module and variable: the value here, and the one in the source."""


@dataclass(frozen=True)
class Changes:
    """Variables of modules that do not have the values of their source.

    `sent` are those that the job gets as they are here. Those that are `kept` have the source's value in the
    job; of their value here, only the class is known.
    """

    sent: Values = field(default_factory=dict)
    kept: Values = field(default_factory=dict)


def changed_variables(imported: Sequence[str]) -> Changes:
    """Return the variables of the `imported` modules whose value is not the one in the module's source.

    A variable counts if its name is public and its module binds it once, at the top level, to a literal, a
    path of literals (`Path("data") / "a"`) or a member of an enumeration, and does not change it itself. It
    is sent if its value is plain: numbers, text, None, paths, members of enumerations that the `imported`
    modules or the standard library define, and lists, tuples, sets and dicts of them. A plain one that no
    source of the `imported` modules sets counts, too: it is new. So does a list or dict that is empty in its
    source and that no code of these modules fills: from elsewhere, up to a thousand items.
    """
    changes = Changes()
    sources = {name: _source_of(str(sys.modules[name].__file__)) for name in imported}
    attributes = frozenset().union(*(source.attributes for source in sources.values()))
    filled = frozenset().union(*(source.filled for source in sources.values()))
    is_plain = _Plainness(sys.stdlib_module_names.union(imported))
    for name, source in sources.items():
        namespace = vars(sys.modules[name])
        values = {key: value for key, value in namespace.items() if key[:1] != "_"}
        known = {**source.values(namespace), **source.empty(values, filled)}
        sent: dict[str, tuple[object, object]] = {}
        kept: dict[str, tuple[object, object]] = {}
        for key, then in known.items():
            now = values.get(key, then)
            if not is_plain(now):
                if key not in attributes and then not in ([], {}):
                    kept[key] = _Hidden(now), then
            elif _differ(now, then):
                sent[key] = now, then
        if source.names is not None:
            new = values.keys() - source.names - attributes
            sent |= {
                key: (value, _Unset()) for key, value in values.items() if key in new and is_plain(value)
            }
        changes.sent.update({name: sent} if sent else {})
        changes.kept.update({name: kept} if kept else {})
    return changes


def change_notices(changes: Changes) -> list[str]:
    """Return a sentence for each module in which something was set, without values that may be secrets."""
    sent = [
        f"variables of {name} were set since it was imported, and the job gets their values: "
        f"{_told(changed)}. Arguments say it more clearly"
        for name, changed in changes.sent.items()
    ]
    kept = [
        f"variables of {name} were set since it was imported, and the job does not get their values, "
        f"only those in the file: {_told(changed)}. Pass what the function needs of them as arguments"
        for name, changed in changes.kept.items()
    ]
    return sent + kept


def _told(changed: Mapping[str, tuple[object, object]]) -> str:
    return "; ".join(
        f"{key} is {_short(_masked(key, now))}, in the file {_short(_masked(key, then))}"
        for key, (now, then) in changed.items()
    )


def _masked(name: object, value: Any, depth: int = 0) -> object:
    """Return the value as far as it is shown, with asterisks for what may be a secret by its name or key.

    Of a member of an enumeration, the name stands: its value may be a secret, too.
    """
    kind = type(value)
    if isinstance(value, Enum):
        return _Text(f"{kind.__name__}.{value.name}")
    if kind in (bool, _Unset, _Hidden) or value in (None, ""):
        return value
    if kind is dict and depth < _SHOWN_DEEP:
        return {
            _masked("", key) if isinstance(key, Enum) else key: _masked(f"{name} {key}", item, depth + 1)
            for key, item in islice(value.items(), _SHOWN)
        }
    if kind is not dict and looks_secret(str(name)):
        return _Text("***")
    if kind not in (dict, list, tuple, set, frozenset):
        return value
    if depth == _SHOWN_DEEP:
        return _Text("…")
    return kind(_masked(name, item, depth + 1) for item in islice(value, _SHOWN))


class _Unset:
    def __repr__(self) -> str:
        return "not set"


class _Hidden:
    """An object that may hold anything, a secret, too."""

    def __init__(self, value: object) -> None:
        self._kind = type(value).__qualname__

    def __repr__(self) -> str:
        return f"an object of class {self._kind}"


class _Text:
    """Text that stands for a value, without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _differ(now: object, then: object) -> bool:
    is_itself = "nan" not in repr(then)  # NaN equals nothing
    return type(now) is not type(then) or (now != then and (is_itself or repr(now) != repr(then)))


class _Plainness:
    """Question whether a value travels as it is; enumerations of the `defining` modules do, by name."""

    def __init__(self, defining: frozenset[str]) -> None:
        self._defining = defining
        self._plain: set[int] = set()
        self._asked: set[int] = set()

    def __call__(self, value: object) -> bool:
        kind = type(value)
        if kind in _SCALARS or kind in (PosixPath, PurePosixPath):
            return True
        if isinstance(value, Enum):
            return self._has_a_name(value)
        if kind not in (list, tuple, set, frozenset, dict):
            return False
        if id(value) in self._plain:
            return True
        if id(value) in self._asked or len(self._asked) > _DEEPEST:  # it is in itself
            return False
        self._asked.add(id(value))
        items = chain(value, value.values()) if isinstance(value, dict) else value
        found = all(map(self, items))  # type: ignore[call-overload]
        self._asked.discard(id(value))
        self._plain.update([id(value)] if found else [])
        return found

    def _has_a_name(self, member: Enum) -> bool:
        """Whether an import finds the member; unnamed combinations of flags are in no class."""
        kind = type(member)
        of: object = sys.modules.get(kind.__module__) if kind.__module__ in self._defining else None
        for name in kind.__qualname__.split("."):
            of = getattr(of, name, None)
        return of is kind and kind.__members__.get(member.name) is member


@dataclass(frozen=True)
class _Source:
    """What the source of a module says of its variables.

    `literals` are those that it binds once, to a literal, and does not change itself. `expressions` are
    bound likewise, to what may be a path or a member of an enumeration: it depends on other names of the
    module. `names` are all that it binds anywhere; None if that cannot be read. `attributes` are the names
    that it sets in other objects, perhaps in modules; `filled` those of whatever it changes in place.
    """

    literals: Mapping[str, object]
    expressions: Mapping[str, ast.expr] = field(default_factory=dict)
    names: frozenset[str] | None = None
    attributes: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()

    def values(self, namespace: Mapping[str, object]) -> Mapping[str, object]:
        """Return what an import gives to the variables of which that is known without importing anything."""
        known = {
            name: _evaluated(value, namespace)
            for name, value in self.expressions.items()
            if name in namespace and _is_known(value, namespace)
        }
        return {**{key: then for key, then in self.literals.items() if then not in ([], {})}, **known}

    def empty(self, values: Mapping[str, object], filled: frozenset[str]) -> Mapping[str, object]:
        """Return the lists and dicts that are empty in the source and not in `values`, with what they are.

        What code of the project fills is a registry or a cache. What holds thousands of items is one, too.
        """
        return {
            key: then
            for key, then in self.literals.items()
            if then in ([], {}) and key not in filled and 0 < _length(values.get(key)) <= _MOST_ITEMS
        }


def _length(value: object) -> int:
    return len(value) if isinstance(value, list | dict | tuple | set | frozenset) else 0


def _is_known(node: ast.AST, namespace: Mapping[str, object]) -> bool:
    """Whether an expression has nothing but literals, paths that are made of them, and members of
    enumerations.
    """
    if isinstance(node, ast.Call):
        called = _named_by(node.func, namespace)
        is_path = any(called is each for each in _PATHS) and not node.keywords
        return is_path and all(_is_known(each, namespace) for each in node.args)
    if isinstance(node, ast.Attribute):
        return isinstance(_named_by(node, namespace), Enum)
    return isinstance(node, _LITERAL) and all(
        _is_known(each, namespace) for each in ast.iter_child_nodes(node)
    )


def _named_by(node: ast.AST, namespace: Mapping[str, object]) -> object:
    """Return what a name, of a module or of an enumeration in a module, stands for; None for all else."""
    if isinstance(node, ast.Name):
        return namespace.get(node.id)
    if isinstance(node, ast.Attribute):
        of = _named_by(node.value, namespace)
        if isinstance(of, ModuleType):
            return vars(of).get(node.attr)
        if isinstance(of, type) and issubclass(of, Enum):
            return of.__members__.get(node.attr)
    return None


def _source_of(file: str) -> _Source:
    """Read a source file, parsed once as long as it stays as it is; empty if it cannot be read now."""
    try:
        facts = os.stat(file)
        return _parsed(file, facts.st_mtime_ns, facts.st_size)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return _Source({})


@functools.lru_cache(maxsize=1024)
def _parsed(file: str, _modified: int, _size: int) -> _Source:
    """Return what the source says. What cannot be read now raises, so that it is tried again."""
    tree = ast.parse(Path(file).read_bytes())
    bound: dict[str, int] = {}
    for name in _bound(tree):
        bound[name] = bound.get(name, 0) + 1
    own = {name for node in ast.walk(tree) for name in _changed_by(node)}
    literals: dict[str, object] = {}
    expressions: dict[str, ast.expr] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            value, targets = statement.value, statement.targets
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            value, targets = statement.value, [statement.target]
        else:
            continue
        inside = list(ast.walk(value))
        is_literal = all(isinstance(node, _LITERAL) for node in inside)
        if not all(isinstance(node, (*_LITERAL, ast.Call, ast.Attribute, ast.Name)) for node in inside):
            continue
        if any(isinstance(node, ast.Name) and (bound.get(node.id) != 1 or node.id in own) for node in inside):
            continue
        for target in targets:
            if isinstance(target, ast.Name) and bound[target.id] == 1 and target.id not in own:
                if is_literal:
                    literals[target.id] = _evaluated(value, {})
                else:
                    expressions[target.id] = value
    nodes = list(ast.walk(tree))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    stars = any(isinstance(node, ast.alias) and node.name == "*" for node in nodes)
    is_open = stars or not used.isdisjoint(_OPENERS)
    stored = {n.attr for n in nodes if isinstance(n, ast.Attribute) and _is_set_elsewhere(n)}
    texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return _Source(
        literals,
        expressions,
        None if is_open else frozenset(bound) | own,
        frozenset(stored | (texts if "setattr" in used else set())),
        frozenset(name for node in nodes for name in _filled_by(node)),
    )


def _is_set_elsewhere(node: ast.Attribute) -> bool:
    """Whether an attribute is set, and not of the instance or class of a method: those are no modules."""
    of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    return not isinstance(node.ctx, ast.Load) and not of_self


def _evaluated(value: Any, namespace: Mapping[str, object]) -> object:
    """Return the value of an expression, which importing the module has computed before."""
    expression = compile(ast.Expression(value), "<literal>", "eval")
    return eval(expression, {"__builtins__": {}}, namespace)  # noqa: S307  it has paths and literals only


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield each name as often as code of a module binds it outside of functions and classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and not isinstance(child.ctx, ast.Load):
            yield child.id
        elif isinstance(child, ast.alias):
            yield (child.asname or child.name).partition(".")[0]
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child.name
            continue
        elif isinstance(child, ast.ExceptHandler) and child.name:
            yield child.name
        if not isinstance(child, ast.Lambda):
            yield from _bound(child)


def _changed_by(node: ast.AST) -> Iterator[str]:
    """Yield the variables that a node, anywhere in a module, changes or declares to change."""
    if isinstance(node, ast.Global):
        yield from node.names
        return
    target = _in_place(node)
    while isinstance(target, ast.Subscript | ast.Attribute):  # of a list in a dict, of what it returns
        target = target.value
    if isinstance(target, ast.Name):
        yield target.id


def _filled_by(node: ast.AST) -> Iterator[str]:
    """Yield the names, with those of attributes, by which a node changes something in place."""
    target = _in_place(node)
    while isinstance(target, ast.Subscript | ast.Attribute):
        if isinstance(target, ast.Attribute):
            yield target.attr
        target = target.value
    if isinstance(target, ast.Name):
        yield target.id


def _in_place(node: ast.AST) -> ast.AST | None:
    """Return what a node changes in place, as an item or by a method; None if it does nothing of the kind."""
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
        return node.func.value
    return None
