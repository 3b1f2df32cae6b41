"""Nothing is ambient (ADR 0056): no context variable, no written environment, no connection in a module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.documents.pages import ROOT, nodes, parsed

MAKES_CLIENTS = {
    "kinetic_core/client.py",
    "kinetic_core/connections.py",
    "kinetic_core/cli/verb.py",
    "airflow_provider/hooks/kinetic.py",
    "airflow_provider/ui/places.py",
    "airflow_provider/ui/queries.py",
}
"""Where a program begins: only there are settings read."""
OF_A_PROCESS = {
    ("kinetic_core/connections.py", "_default"),
    ("airflow_provider/hooks/kinetic.py", "clients"),
    ("airflow_provider/threads.py", "_pool"),
}
"""What the default client holds, and the clients and threads that the triggers of a process share."""
HOLDING = {
    "ApiClient",
    "Client",
    "Clients",
    "ClusterApi",
    "Connections",
    "Credentials",
    "GcsObjectStore",
    "Held",
    "JobWatch",
    "Lock",
    "RLock",
    "Session",
    "Thread",
    "ThreadPoolExecutor",
    "NamespaceWatch",
    "WatchCache",
}
"""Classes whose instances are, or hold, connections, locks and threads."""
CACHED = {
    "kinetic_core/accelerators/grammar.py",
    "kinetic_core/accelerators/shapes.py",
    "kinetic_core/backends/kubernetes/bootstrap.py",
    "kinetic_core/backends/kubernetes/capacity.py",
    "kinetic_core/project/module_source.py",
    "kinetic_core/project/module_variables.py",
    "kinetic_core/project/payload.py",
    "kinetic_core/project/root.py",
    "kinetic_core/provision/vendored/__init__.py",
    "airflow_provider/config.py",
    "airflow_provider/triggers/kinetic.py",
}
"""Modules with caches of what never changes in a process: tables and names of them, archives, folders
of Python's library, Airflow's configuration, and what a source file says that has this time and size.
"""
_CHANGES = {"clear", "pop", "popitem", "setdefault", "update"}


@cache
def modules() -> dict[str, ast.Module]:
    """All modules but the runner's: the environment of a pod's process is the job's."""
    return {
        path.relative_to(ROOT).as_posix(): parsed(path)
        for room in ("kinetic_core", "airflow_provider")
        for path in Path(ROOT, room).rglob("*.py")
        if "_runner" not in path.parts
    }


def test_no_module_uses_a_context_variable() -> None:
    """Airflow's logging does: work in another thread keeps the context of its trigger, and sets nothing."""
    found = [name for name, tree in modules().items() if "contextvars" in set(imported(tree))]
    assert found == ["airflow_provider/threads.py"]


def test_no_module_writes_to_the_environment() -> None:
    found = [
        (name, node.lineno)
        for name, tree in modules().items()
        for node in nodes(tree)
        if writes_environment(node)
    ]
    assert found == []


def test_no_module_gives_the_environment_another_name() -> None:
    assert [
        name
        for name, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module == "os"
        and {alias.name for alias in node.names} & {"environ", "environb", "putenv", "unsetenv"}
    ] == []


def test_settings_are_read_where_clients_are_made() -> None:
    found = {
        name
        for name, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "read_settings"
    }
    assert found - {"kinetic_core/settings.py"} == MAKES_CLIENTS


def test_no_module_holds_a_connection() -> None:
    found = {
        (name, target)
        for name, tree in modules().items()
        for target, call in made_at_import(tree)
        if ast.unparse(call.func).rpartition(".")[2] in HOLDING
    }
    assert found == OF_A_PROCESS


def test_functions_cache_only_what_never_changes() -> None:
    found = {
        name
        for name, tree in modules().items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any("cache" in ast.unparse(each) for each in node.decorator_list)
    }
    assert found == CACHED


def test_no_function_replaces_a_global() -> None:
    assert [
        (name, node.lineno)
        for name, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.Global)
    ] == []


def imported(tree: ast.Module) -> Iterator[str]:
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def made_at_import(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Every call whose value a module keeps under a name, in a container too."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for call in (each for each in ast.walk(node.value) if isinstance(each, ast.Call)):
                yield ast.unparse(targets[0]), call


def writes_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        owner, _, method = called.rpartition(".")
        return called in ("os.putenv", "os.unsetenv") or (is_environment(owner) and method in _CHANGES)
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign):
        targets = [node.target]
    names = (ast.unparse(each.value if isinstance(each, ast.Subscript) else each) for each in targets)
    return any(map(is_environment, names))


def is_environment(text: str) -> bool:
    return text in ("os.environ", "os.environb")
