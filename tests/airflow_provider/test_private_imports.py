"""The page of Airflow's inside that the provider uses is complete, and triggers need no database."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROVIDER = ROOT / "airflow_provider"
PUBLIC = {
    "airflow.configuration",
    "airflow.listeners",
    "airflow.plugins_manager",
    "airflow.sdk",
    "airflow.triggers.base",
}
"""Modules that Airflow's documentation names, besides its providers."""
ROW = re.compile(r"^\| `(airflow[\w.]*)` \| (.+?) \| .{10,} \|$", re.MULTILINE)


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules of Airflow that code imports, also those that it names in a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Constant) and re.fullmatch(r"airflow(\.[a-z_]+)+", str(node.value)):
            yield str(node.value)


def used() -> dict[str, set[str]]:
    """The rooms of the provider that import a module of Airflow's inside, by module."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in PROVIDER.rglob("*.py"):
        for name in imported(ast.parse(path.read_text())):
            if name.split(".")[0] == "airflow" and name not in PUBLIC and ".providers." not in name:
                found[name].add(path.relative_to(PROVIDER).with_suffix("").as_posix())
    return found


@pytest.mark.promise("scale: A list of every private import with its reason")
def test_every_private_import_is_listed_with_its_reason() -> None:
    page = (ROOT / "docs/reference/airflow-imports.md").read_text()
    listed = {name: set(re.findall(r"`([\w/]+)`", rooms)) for name, rooms in ROW.findall(page)}
    assert listed == used()


@pytest.mark.promise(
    "scale: No `airflow.models` in the triggerer",
    "in the process of triggers; its main process reads the database",
)
def test_triggers_import_no_models() -> None:
    """AIP-92 takes the database away from the processes of triggers."""
    reached, waiting = (
        set[str](),
        ["airflow_provider.triggers.kinetic", "airflow_provider.triggers.batch"],
    )
    while waiting:
        name = waiting.pop()
        path = ROOT / f"{name.replace('.', '/')}.py"
        if name in reached or not path.exists():
            continue
        reached.add(name)
        tree = ast.parse(path.read_text())
        tops = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in tops:
            names = list(imported(node))
            assert not [each for each in names if each.startswith("airflow.models")], name
            if isinstance(node, ast.ImportFrom) and node.module == "airflow_provider":
                names += [f"airflow_provider.{alias.name}" for alias in node.names]
            waiting += [each for each in names if each.startswith("airflow_provider")]
    assert len(reached) > 5
