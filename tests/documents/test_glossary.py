"""The glossary's retired words come back in no name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.documents.pages import ROOT, nodes, parsed

GLOSSARY = (ROOT / "docs/glossary.md").read_text()
ROOMS = ("kinetic_core", "airflow_provider", "runner")
PRODUCT = [path for room in ROOMS for path in Path(ROOT, room).rglob("*.py")]


def test_no_module_has_a_retired_name() -> None:
    retired = retired_words()
    assert len(retired) > 15
    assert [str(path) for path in PRODUCT if retired & words(path.stem)] == []


def test_no_class_has_a_retired_name() -> None:
    retired = retired_words()
    names = [
        (path.name, node.name)
        for path in PRODUCT
        for node in nodes(parsed(path))
        if isinstance(node, ast.ClassDef)
    ]
    assert len(names) > 150
    assert [name for name in names if retired & words(name[1])] == []


def test_no_name_inside_a_module_is_retired() -> None:
    retired = set(re.findall(r"`([a-z]+)`", GLOSSARY.partition("Of these, no function")[2]))
    assert len(retired) > 10
    names = [(path.name, name) for path in PRODUCT for name in local_names(parsed(path))]
    assert len(names) > 5000
    assert [name for name in names if retired & words(name[1])] == []


def local_names(tree: ast.Module) -> Iterator[str]:
    """Every name that a module gives to a function, an argument, an attribute or a variable."""
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def retired_words() -> set[str]:
    return set(re.findall(r"`([a-z]+)`", GLOSSARY.partition("## Retired words")[2]))


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
