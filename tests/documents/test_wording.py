"""No decision hangs on the name of a class or on the words of an error."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Set
from pathlib import Path

import pytest

from tests.documents.pages import nodes, parsed

pytestmark = pytest.mark.attack

_ROOT = Path(__file__).parents[2]
_PRODUCT = ("kinetic_core", "runner", "airflow_provider")
_ERRORS = ("exc", "error", "failure", "err", "exception", "cause")
_PHRASE = re.compile(r"[a-z] [a-z]")
_ASKS = (
    "startswith",
    "endswith",
    "find",
    "index",
    "count",
    "removeprefix",
    "removesuffix",
    "partition",
    "split",
)

FOREIGN = {
    (
        "kinetic_core/provision/apply.py",
        "'operation' in str(exc)",
    ): "GKE has one code for all preconditions",
    (
        "kinetic_core/provision/apply.py",
        "'does not exist' in str(exc)",
    ): "IAM has one code for all bad requests",
    (
        "kinetic_core/backends/kubernetes/job_objects.py",
        "'exceeded quota' in text",
    ): "a quota and a missing role are both 403",
    ("kinetic_core/project/callables.py", "'cls' in str(exc)"): "only a hint in a message",
}
"""What other people's services say in words alone; nothing that Kinetic says itself."""


def findings() -> Iterator[tuple[str, str]]:
    for package in _PRODUCT:
        for path in sorted((_ROOT / package).rglob("*.py")):
            name = str(path.relative_to(_ROOT))
            if path.is_symlink() or name.startswith("kinetic_core/_runner/"):
                continue
            phrases = _constants(parsed(path))
            for function in nodes(parsed(path)):
                if isinstance(function, ast.FunctionDef):
                    yield from ((name, each) for each in _asked(function, phrases))


def _asked(function: ast.FunctionDef, phrases: Set[str]) -> Iterator[str]:
    words = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and any(_is_wording(each, set()) for each in ast.walk(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    several = {
        node.target.id
        for node in ast.walk(function)
        if isinstance(node, ast.comprehension | ast.For) and isinstance(node.target, ast.Name)
        if isinstance(node.iter, ast.Name) and node.iter.id in phrases
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            looks = isinstance(node.ops[0], ast.In | ast.NotIn)
            asks = looks or isinstance(node.ops[0], ast.Eq | ast.NotEq)
            has_wording = asks and any(_is_wording(side, words) for side in sides)
            if has_wording or (looks and _is_phrase(node.left, several)):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _ASKS and _is_wording(node.func.value, words):
                yield ast.unparse(node)
            if node.func.attr in ("search", "match", "fullmatch"):
                yield from (ast.unparse(node) for each in node.args if _is_wording(each, words))


def _constants(module: ast.AST) -> Set[str]:
    """Names of the module's constants that are several phrases."""
    return {
        target.id
        for node in ast.iter_child_nodes(module)
        if isinstance(node, ast.Assign) and any(_is_phrase(each, ()) for each in ast.walk(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _is_phrase(node: ast.AST, names: Collection[str]) -> bool:
    """Whether it is several words, which only a message has."""
    if isinstance(node, ast.Name):
        return node.id in names
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(_PHRASE.search(node.value))


def _is_wording(node: ast.AST, words: set[str]) -> bool:
    """Whether it is an error's text, or the name of an object's class."""
    if isinstance(node, ast.BoolOp):
        return any(_is_wording(each, words) for each in node.values)
    if isinstance(node, ast.Name):
        return node.id in words
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr"):
        return bool(node.args) and isinstance(node.args[0], ast.Name) and node.args[0].id in _ERRORS
    if isinstance(node, ast.Attribute) and node.attr in ("__name__", "__qualname__"):
        return isinstance(node.value, ast.Call) or ast.unparse(node.value).endswith("__class__")
    if isinstance(node, ast.Attribute) and node.attr in ("message", "exception_type"):
        return ast.unparse(node.value).split(".")[-1] in _ERRORS
    return False


def test_no_decision_hangs_on_words_of_our_own() -> None:
    found = set(findings())
    assert found - FOREIGN.keys() == set()
    assert FOREIGN.keys() - found == set(), "no longer there"


@pytest.mark.parametrize(
    "code",
    [
        "def f(outcome): return (outcome.failure.exception_type or '').endswith('MissingObject')",
        "def f(exc): return type(exc).__name__ == 'MissingObject'",
        "def f(exc): return 'gone' in str(exc)",
        "def f(error):\n text = str(error)\n return text.startswith('gone')",
        "def f(exc): return GONE.search(str(exc))",
        "def f(failure): return failure.message == 'gone'",
        "def f(answer):\n text = answer.body.decode()\n return 'does not exist' in text",
        "def f(told): return any(phrase in told for phrase in PHRASES)",
        "def f(error):\n text = str(error)[:300]\n return text.partition(': ')",
    ],
)
def test_it_finds_what_it_is_to_find(code: str) -> None:
    (function,) = ast.parse(code).body
    assert isinstance(function, ast.FunctionDef)
    assert list(_asked(function, _constants(ast.parse("PHRASES = ('timed out', 'gone')"))))
