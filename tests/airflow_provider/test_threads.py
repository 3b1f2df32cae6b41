"""The blocking work of triggers has threads of its own: slow clusters stall nobody else's triggers."""

from __future__ import annotations

import ast
import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.threads import THREADS, in_thread

ROOT = Path(__file__).parents[2]
POOL = "airflow_provider.threads"
"""The module that chooses the threads."""


@pytest.mark.promise("scale: The triggerer's work has threads of its own")
def test_names_are_resolved_while_every_thread_is_blocked() -> None:
    released, begun = threading.Event(), threading.Semaphore(0)

    def slow() -> bool:
        begun.release()
        return released.wait(60)

    async def check() -> None:
        calls = [asyncio.ensure_future(in_thread(slow)) for _ in range(2 * THREADS)]
        await asyncio.sleep(0)
        for _ in range(THREADS):
            assert begun.acquire(timeout=20)
        assert not begun.acquire(blocking=False)
        try:
            found = await asyncio.wait_for(asyncio.get_running_loop().getaddrinfo("localhost", 80), 20)
            assert found
            assert not any(call.done() for call in calls)
        finally:
            released.set()
        assert all(await asyncio.gather(*calls))

    asyncio.run(check())


def imported(name: str, tree: ast.Module) -> Iterator[str]:
    """The modules that code imports anywhere in a module, in functions too, as a trigger does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            module = ".".join([*name.split(".")[: -node.level], node.module]) if node.level else node.module
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def file_of(name: str) -> Path | None:
    path = ROOT / name.replace(".", "/")
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


def modules_of_triggers() -> dict[str, ast.Module]:
    """The triggers' modules, and all of this package's that these import, by name."""
    rooms = (ROOT / "airflow_provider/triggers").glob("*.py")
    waiting = [f"airflow_provider.triggers.{path.stem}" for path in rooms]
    reached: dict[str, ast.Module] = {}
    while waiting:
        name = waiting.pop()
        path = file_of(name) if name.startswith(("airflow_provider", "kinetic_core")) else None
        if path is not None and name not in reached:
            reached[name] = ast.parse(path.read_text())
            waiting += imported(name, reached[name])
    return reached


def uses_of_other_threads(tree: ast.Module) -> list[str]:
    """The calls that take the default threads of an event loop, or threads that somebody else chose."""
    named = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name | ast.alias))
    names = (getattr(node, "attr", getattr(node, "id", getattr(node, "name", ""))) for node in named)
    return [name for name in names if name in ("to_thread", "run_in_executor", "set_default_executor")]


@pytest.mark.parametrize(
    "code",
    ["asyncio.to_thread(f)", "from asyncio import to_thread", "loop.run_in_executor(None, f)"],
)
def test_a_use_of_the_default_threads_is_recognised(code: str) -> None:
    assert uses_of_other_threads(ast.parse(code))


@pytest.mark.promise("scale: The triggerer's work has threads of its own")
def test_modules_of_triggers_use_no_default_threads() -> None:
    """The page's modules do: they run in the API server, which has no triggers."""
    modules = modules_of_triggers()
    assert {POOL, "airflow_provider.orphans", "kinetic_core.jobs.observe"} <= modules.keys()
    found = {name: uses for name, tree in modules.items() if (uses := uses_of_other_threads(tree))}
    assert found == {POOL: ["run_in_executor"]}
