"""Plugin: a page for all that runs, a DAG run, a task and a task instance in Airflow's UI (3.1 and newer)."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

PREFIX = "/kinetic"
"""Path of the application, below the API server's base URL."""

_Message = MutableMapping[str, Any]


class LazyApp:
    """Application of the page, created at its first request: Airflow loads plugins in every process."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        if self._app is None:
            from airflow_provider.ui.app import create_app

            self._app = create_app()
        await self._app(scope, receive, send)


def _view(destination: str, query: str = "") -> dict[str, str | bool]:
    base = urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/")
    return {
        "name": "Kinetic",
        "href": f"{base}{PREFIX}/page/{query}",
        "destination": destination,
        "url_route": f"kinetic-{destination.replace('_', '-')}",
        "nav_top_level": destination == "nav",
    }


_APPS: list[Any] = [{"app": LazyApp(), "url_prefix": PREFIX, "name": "Kinetic"}]
_VIEWS: list[Any] = [
    _view("nav"),
    _view("dag_run", "?dag={DAG_ID}&run={RUN_ID}"),
    _view("task", "?dag={DAG_ID}&task={TASK_ID}"),
    _view("task_instance", "?dag={DAG_ID}&run={RUN_ID}&task={TASK_ID}&map={MAP_INDEX}"),
]


_started = threading.Event()


class TriggererStart:
    """Listener for the start of an Airflow component: a triggerer then also searches for orphans."""

    @hookimpl
    def on_starting(self, component: Any) -> None:  # noqa: ARG002  the name is the hook's
        """Start the search when the command line starts a triggerer.

        Airflow calls this before `component` says what it is, so the command line decides. A triggerer forks
        the process of its triggers next. A busy thread could hold a lock at that moment, which the child
        would inherit and never get, so the search starts after the fork.
        """
        if sys.argv[1:2] == ["triggerer"]:
            os.register_at_fork(after_in_parent=_start)


def _start() -> None:
    if not _started.is_set():
        _started.set()
        threading.Thread(target=_attend, name="kinetic-forgotten-jobs", daemon=True).start()


def _attend() -> None:
    """Import the search at first use, because every Airflow process loads this plugin."""
    from airflow_provider.orphans import attend

    attend()


_LISTENERS: list[Any] = [TriggererStart()]


def forks_tasks(arguments: Sequence[str]) -> bool:
    """Return whether an `airflow` command with these arguments forks a process for each task or DAG file."""
    if arguments[:1] == ["scheduler"]:
        return "LocalExecutor" in conf.get("core", "executor", fallback="")
    return arguments[:1] == ["dag-processor"]


class KineticPlugin(AirflowPlugin):
    """Plugin with the page, its API, and a triggerer's search for orphans."""

    name = "kinetic"
    fastapi_apps = _APPS
    external_views = _VIEWS
    listeners = _LISTENERS

    @classmethod
    def on_load(cls, *_: Any, **__: Any) -> None:
        """Import what tasks of Kinetic need, if this process forks theirs."""
        if forks_tasks(sys.argv[1:]):
            import airflow_provider.preload  # noqa: F401
