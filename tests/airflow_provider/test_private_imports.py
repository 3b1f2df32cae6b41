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
    "airflow",
    "airflow.configuration",
    "airflow.plugins_manager",
    "airflow.sdk",
    "airflow.triggers.base",
}
"""Modules that Airflow's documentation names, besides its providers; of `airflow` itself, the version."""
OF_THE_DATABASE = (
    "airflow.jobs",
    "airflow.models",
    "airflow.settings",
    "airflow.utils.session",
    "sqlalchemy",
)
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
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


def ours(tree: ast.AST) -> Iterator[str]:
    """The modules of the provider that code imports, also in functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
    yield from imported(tree)


def run_by_triggerers() -> dict[str, ast.AST]:
    """The provider's modules that are imported where triggers run, however late, and their code."""
    waiting = [f"airflow_provider.triggers.{path.stem}" for path in (PROVIDER / "triggers").glob("*.py")]
    found: dict[str, ast.AST] = {}
    while waiting:
        name = waiting.pop()
        path = ROOT / f"{name.replace('.', '/')}.py"
        if name not in found and path.exists():
            found[name] = ast.parse(path.read_text())
            waiting += [each for each in ours(found[name]) if each.startswith("airflow_provider.")]
    return found


@pytest.mark.promise("scale: No `airflow.models` in the triggerer")
def test_triggers_import_no_models_however_late() -> None:
    """AIP-92 takes the database away from triggerers: nothing that is imported in a function may need it."""
    modules = run_by_triggerers()
    needed = {
        "airflow_provider.orphans",
        *(f"airflow_provider.triggers.{name}" for name in ("base", "batch", "job_end", "kinetic", "outputs")),
    }
    assert needed <= modules.keys()
    assert not [
        name for name in modules if name.startswith(("airflow_provider.ui.", "airflow_provider.plugins."))
    ]
    for name, tree in modules.items():
        assert [each for each in imported(tree) if each.startswith(OF_THE_DATABASE)] == [], name


@pytest.mark.promise("scale: No `airflow.models` in the triggerer")
def test_a_plugin_in_a_triggerer_imports_no_models() -> None:
    """Every process of Airflow loads it; what it imports late is the API server's."""
    tree = ast.parse((PROVIDER / "plugins/kinetic.py").read_text())
    late = {node for part in ast.walk(tree) if isinstance(part, FUNCTIONS) for node in ast.walk(part)}
    tops = [
        node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) and node not in late
    ]
    names = [name for node in tops for name in ours(node)]
    assert "airflow.plugins_manager" in names
    assert not [each for each in names if each.startswith(("airflow_provider", *OF_THE_DATABASE))]
