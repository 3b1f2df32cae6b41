"""Tests use what users can: they read no private name of the product, and patch nothing of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.documents.pages import ROOT, nodes, parsed

ROOMS = ("kinetic_core", "airflow_provider", "runner")
NOT_OURS = {"_exit", "_replace", "_repr_html_", "_runner"}
"""Underscored names that are public: of `os`, of named tuples, of objects that notebooks show, and the
runner's package in `kinetic_core`.
"""

REMAINING = {
    ("tests/airflow/stand_ins/breaking_triggers.py", "_hold"),
    ("tests/airflow/test_accounts.py", "setattr KineticHook.get_conn"),
    ("tests/airflow/test_accounts.py", "_client"),
    ("tests/airflow/test_gauges.py", "_stats"),
    ("tests/airflow/test_templates.py", "_options"),
    ("tests/batches/test_own_jobs.py", "_board"),
    ("tests/cluster/test_connecting.py", "_credentials"),
    ("tests/cluster/test_connecting.py", "setattr watch_cache.WATCH_SECONDS"),
    ("tests/jobs/recorded.py", "setattr GcsObjectStore.at"),
}
"""What is still to be rewritten. Nothing is added here."""


@cache
def trees() -> dict[str, ast.Module]:
    paths = sorted((ROOT / "tests").rglob("*.py"))
    return {str(path.relative_to(ROOT)): parsed(path) for path in paths}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NOT_OURS


def is_of_the_product(module: str) -> bool:
    return module.partition(".")[0] in ROOMS


@cache
def names_given_in(tree: ast.Module) -> frozenset[str]:
    """Names that a module gives to something of its own."""
    return frozenset(name for node in nodes(tree) for name in given_by(node))


def own_names(tree: ast.Module) -> set[str]:
    """Names that a module, and the modules of tests/ that it imports, give to something of their own."""
    modules = [tree]
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            path = "/".join(node.module.split("."))
            found = (trees().get(f"{path}.py"), trees().get(f"tests/airflow/{path}.py"))
            modules += [each for each in found if each is not None]
    return {name for module in modules for name in names_given_in(module)}


def given_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
        yield node.attr


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def imported(tree: ast.Module) -> set[str]:
    """Names that a module has from the product."""
    found = set()
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and is_of_the_product(node.module or ""):
            found |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {each.asname or each.name for each in node.names if is_of_the_product(each.name)}
    return found


def reached(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Private names and patches of the product in one module."""
    ours = imported(tree)
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and is_of_the_product(node.module or ""):
            yield from (each.name for each in node.names if is_private(each.name))
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            target = node.args[0]
            if node.func.attr == "setattr" and isinstance(target, ast.Name) and target.id in ours:
                yield f"setattr {target.id}.{ast.literal_eval(node.args[1])}"
            elif (
                node.func.attr in ("setattr", "patch")
                and isinstance(target, ast.Constant)
                and is_of_the_product(str(target.value))
            ):
                yield f"{node.func.attr} {target.value}"


def test_no_test_reaches_into_the_product() -> None:
    found = {(path, name) for path, tree in trees().items() for name in reached(tree, own_names(tree))}
    assert len(trees()) > 250
    assert sorted(found - REMAINING) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("from kinetic_core.jobs.watch import _hubs", "_hubs"),
        ("handle._board.stop()", "_board"),
        ("from kinetic_core import jobs\nmonkeypatch.setattr(jobs, 'X', 1)", "setattr jobs.X"),
        ("monkeypatch.setattr('kinetic_core.jobs.X', 1)", "setattr kinetic_core.jobs.X"),
        ("mock.patch('airflow_provider.options.X')", "patch airflow_provider.options.X"),
    ],
)
def test_what_would_be_found(text: str, told: str) -> None:
    assert list(reached(ast.parse(text), set())) == [told]
