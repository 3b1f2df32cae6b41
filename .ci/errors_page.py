"""docs/reference/errors.md: every message of every error, as the code has it.

.ci/errors_page.py > docs/reference/errors.md
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("kinetic_core", "airflow_provider")
LEFT_OUT = ("_runner", "testing")
"""The runner's errors become a job's outcome; fakes are for tests."""
ABOUT = """\
# Errors

<!-- Made by .ci/errors_page.py; a test compares. -->

Every error that Kinetic raises on purpose is a `KineticError`. A class says what you can do next. A message
says what failed, for which object, why, and what to do; `{…}` stands for what differs from time to time.
How a *job* ends is on [its own page](../explanation/failures.md); an exception of your function is raised
as itself.
"""


@dataclass(frozen=True)
class Told:
    """One message in one file."""

    text: str
    file: str


def page() -> str:
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if not any(path.is_relative_to(ROOT / "kinetic_core" / part) for part in LEFT_OUT)
    }
    classes = error_classes(trees)
    told: dict[str, set[Told]] = {name: set() for name in classes}
    for path, tree in trees.items():
        for name, text in messages(tree, classes):
            told[name].add(Told(text, path.relative_to(ROOT).as_posix()))
    parts = [ABOUT]
    for name, node in classes.items():
        bases = ", ".join(f"`{ast.unparse(base)}`" for base in node.bases)
        about = " ".join((ast.get_docstring(node) or "").split())
        parts.append(f"## `{name}`\n\n{about} A subclass of {bases}.\n")
        rows = sorted(told[name], key=lambda each: (each.file, each.text))
        parts += [f"- {shown(each.text)} <small>`{each.file}`</small>" for each in rows]
        parts += [""] if rows else []
    return "\n".join(parts)


def shown(text: str) -> str:
    """As Markdown: a message is code, whatever is in it."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{' '.join(text.split())}{fence}"


def error_classes(trees: dict[Path, ast.Module]) -> dict[str, ast.ClassDef]:
    """The classes of errors: those of `kinetic_core.errors` in its order, then the others."""
    home = ROOT / "kinetic_core" / "errors.py"
    found: dict[str, ast.ClassDef] = {}
    nodes = [
        node for path in (home, *trees) for node in ast.walk(trees[path]) if isinstance(node, ast.ClassDef)
    ]
    bases = {node: [ast.unparse(base) for base in node.bases] for node in nodes}
    while True:
        new = {
            node.name: node
            for node in nodes
            if node.name not in found
            and (node.name == "KineticError" or any(base in found for base in bases[node]))
        }
        if not new:
            return {node.name: node for node in nodes if node.name in found}
        found |= new


def messages(tree: ast.Module, classes: dict[str, ast.ClassDef]) -> Iterator[tuple[str, str]]:
    """Class and message of every error that a module makes."""
    for scope in (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ):
        inside = own(scope)
        known = assigned(inside)
        for node in inside:
            if isinstance(node, ast.Call) and node.args:
                name = called(node.func)
                if name in classes:
                    yield from ((name, text) for text in texts(node.args[0], known) if says_something(text))


def called(function: ast.expr) -> str:
    """Return the last part of the name of what is called."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def says_something(text: str) -> bool:
    """Whether there are words besides the placeholders."""
    return re.search(r"[A-Za-z]{2}", re.sub(r"\{.*?\}", "", text)) is not None


def own(scope: ast.AST) -> list[ast.AST]:
    """What is in a function, and in none that is inside it."""
    found: list[ast.AST] = []
    waiting = [scope]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(node)
                waiting.append(node)
    return found


def assigned(inside: list[ast.AST]) -> dict[str, ast.expr]:
    """The local names that are given one value."""
    found: dict[str, list[ast.expr]] = {}
    for node in inside:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def texts(node: ast.expr, known: dict[str, ast.expr]) -> list[str]:
    """The messages that an expression may be; what is not text is a placeholder."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        parts = [texts(part, known) for part in node.values]
        return ["".join(chosen) for chosen in product(*parts)]
    if isinstance(node, ast.FormattedValue):
        inner = node.value
        if isinstance(inner, ast.IfExp) and is_text(inner):
            return texts(inner, known)
        if isinstance(inner, ast.Name) and isinstance(known.get(inner.id), ast.JoinedStr):
            return texts(known[inner.id], {})
        return [placeholder(inner)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [left + right for left in texts(node.left, known) for right in texts(node.right, known)]
    if isinstance(node, ast.IfExp):
        return texts(node.body, known) + texts(node.orelse, known)
    if isinstance(node, ast.Name) and is_text(known.get(node.id)):
        return texts(known[node.id], {})
    return [placeholder(node)]


def is_text(node: ast.expr | None) -> bool:
    if isinstance(node, ast.IfExp):
        return is_text(node.body) and is_text(node.orelse)
    if isinstance(node, ast.BinOp):
        return is_text(node.left) or is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def placeholder(node: ast.expr) -> str:
    """The last name in an expression: `{reference.job_id}` is `{job_id}`."""
    if isinstance(node, ast.Attribute):
        return f"{{{node.attr.lstrip('_')}}}"
    if isinstance(node, ast.Name):
        return f"{{{node.id}}}"
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    ):
        return f"{{{node.slice.value}}}"
    if (
        isinstance(node, ast.Call)
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Name | ast.Attribute)
    ):
        return placeholder(node.args[0])
    return "{…}"


if __name__ == "__main__":
    print(page(), end="")
