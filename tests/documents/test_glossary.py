"""The glossary's retired words come back in no name of a module or a class."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.documents.pages import ROOT

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
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert len(names) > 150
    assert [name for name in names if retired & words(name[1])] == []


def retired_words() -> set[str]:
    return set(re.findall(r"`([a-z]+)`", GLOSSARY.partition("## Retired words")[2]))


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
