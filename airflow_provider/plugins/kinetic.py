"""Plugin: a page for all that runs, a DAG run, a task and a task instance in Airflow's UI (3.1 and newer)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/kinetic"
"""Path of the application, below the API server's base URL."""


class LazyApp:
    """Application of the page, created at its first request: Airflow loads plugins in every process."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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


class SearchStart:
    """Middleware of the API server, which changes nothing: its first message starts the search for orphans.

    That message tells of the server's start, in the process that serves. Airflow's listeners hear of other
    components only, and an application that a plugin mounts hears of requests only.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _started.is_set():
            _started.set()
            threading.Thread(target=_search, name="kinetic-orphans", daemon=True).start()
        await self._app(scope, receive, send)


def _search() -> None:
    """Import the search at first use, because every Airflow process loads this plugin."""
    from airflow_provider.config import config
    from airflow_provider.deployment import cache_file
    from airflow_provider.ui.database import server_search
    from airflow_provider.ui.orphans import SearchLock, search

    search(server_search(), config().orphan_interval, SearchLock(lambda: cache_file().with_suffix(".lock")))


_MIDDLEWARES: list[Any] = [{"middleware": SearchStart, "name": "Kinetic's search for orphans"}]


def forks_tasks(arguments: Sequence[str]) -> bool:
    """Return whether an `airflow` command with these arguments forks a process for each task or DAG file."""
    if arguments[:1] == ["scheduler"]:
        return "LocalExecutor" in conf.get("core", "executor", fallback="")
    return arguments[:1] == ["dag-processor"]


class KineticPlugin(AirflowPlugin):
    """Plugin with the page, its API, and the API server's search for orphans."""

    name = "kinetic"
    fastapi_apps = _APPS
    external_views = _VIEWS
    fastapi_root_middlewares = _MIDDLEWARES

    @classmethod
    def on_load(cls, *_: Any, **__: Any) -> None:
        """Import what tasks of Kinetic need, if this process forks theirs."""
        if forks_tasks(sys.argv[1:]):
            import airflow_provider.preload  # noqa: F401
