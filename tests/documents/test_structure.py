"""Size of functions and modules: a function is read at once, a module holds a whole idea."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.documents.pages import ROOT, nodes, parsed

LONGEST_FUNCTION = 50
SMALLEST_MODULE = 60
"""Lines of a module that only one other imports: with fewer, it belongs into that one."""
CONTRACTS = {
    "airflow_provider.links.kinetic": "Airflow finds links of tasks by the name in the provider's metadata",
    "airflow_provider.preload": "named in the settings of Airflow and Celery, for whatever forks processes",
    "kinetic_core.cli.config": "one module of verbs for each noun; the command loads them by name",
    "kinetic_core.cli.images": "one module of verbs for each noun; the command loads them by name",
    "kinetic_core.compat.credentials": "a name that keras-kinetic documents for import",
    "kinetic_core.compat.data": "a name that keras-kinetic documents for import",
    "kinetic_core.compat.debug": "a name that keras-kinetic documents for import",
    "kinetic_core.testing.kueue": "a public function for users' tests, with nothing of the other fakes",
}
"""Small modules whose place others count on."""


@cache
def modules() -> dict[str, Path]:
    """All modules of the product by name; `kinetic_core/_runner` is a link to the runner."""
    found = {}
    for room in ("kinetic_core", "airflow_provider", "runner"):
        for path in (ROOT / room).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "_runner" not in parts:
                found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(module: str, path: Path) -> Iterator[str]:
    """Every name of a module, and every name in one, that the module imports."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in nodes(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def test_functions_are_short() -> None:
    long = [
        f"{name}.{node.name}"
        for name, path in modules().items()
        for node in nodes(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    ]
    assert long == []


def test_small_modules_have_more_than_one_importer() -> None:
    importers = defaultdict[str, set[str]](set)
    for module, path in modules().items():
        for name in imports(module, path):
            importers[name.replace("kinetic_core._runner", "runner")].add(module)
    small = {
        name
        for name, path in modules().items()
        if path.name != "__init__.py"
        and len(path.read_text().splitlines()) < SMALLEST_MODULE
        and len(importers[name] - {name}) < 2
    }
    assert len(modules()) > 250
    assert small == set(CONTRACTS), "fold the module into its importer, or list it with what counts on it"
