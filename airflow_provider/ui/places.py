"""Stores and clusters that the API server reads: those of its settings and profiles, and of connections.

Authors of DAGs can write the XComs that name jobs. A place named there is compared, never followed: the
server's credentials may reach what an author must not see. The name of a connection is followed: it leads
where the connection itself says, with its credentials, and authors of DAGs may use any connection.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

from airflow_provider.access import ENVIRONMENT, Access
from kinetic_core.backends.base import Backend, open_backend
from kinetic_core.connections import Connections, Held
from kinetic_core.errors import ConfigurationError, KineticError
from kinetic_core.job import JobReference
from kinetic_core.settings import BACKENDS, Settings, read_settings, settings_of_profiles

Answer = TypeVar("Answer")


class Remembered(Generic[Answer]):
    """Cache that asks each question once at a time, and keeps its answer or failure for `seconds`.

    For one event loop. The newest `most` answers are kept; a question under way is never asked again.
    """

    def __init__(self, seconds: float, most: int = 64, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._most, self._clock = seconds, most, clock
        self._answers: dict[Hashable, tuple[asyncio.Future[Answer], float]] = {}

    async def get(
        self, key: Hashable, ask: Callable[[], Coroutine[Any, Any, Answer]], timeout: float
    ) -> Answer:
        """Return the answer of `ask()`. Raises its exception, TimeoutError after `timeout` seconds.

        A question that takes longer goes on, and the next caller gets its answer.
        """
        known = self._answers.get(key)
        if known is None or (known[0].done() and self._clock() >= known[1]):
            self._answers.pop(key, None)
            known = (asyncio.ensure_future(ask()), float("inf"))
            self._answers[key] = known
            known[0].add_done_callback(lambda done: self._keep(key, done))
            self._forget()
        return await asyncio.wait_for(asyncio.shield(known[0]), timeout)

    def _keep(self, key: Hashable, done: asyncio.Future[Answer]) -> None:
        """Keep an answer from when it is there, and consume a failure that nobody waits for any more."""
        if not done.cancelled():
            done.exception()
        if key in self._answers and self._answers[key][0] is done:
            self._answers[key] = (done, self._clock() + self._seconds)

    def _forget(self) -> None:
        for key in [key for key, (future, _) in self._answers.items() if future.done()]:
            if len(self._answers) <= self._most:
                return
            del self._answers[key]


PATIENCE = 8.0
"""Seconds a browser waits for a store, a cluster or a connection before the page shows the rest."""
_CONNECTION_SECONDS = 10.0
_MOST_BACKENDS = 64


class Elsewhere(KineticError):
    """Job in a place that this server does not read; the message says where, and what to set."""


def settings_of(access: Access) -> Sequence[Settings]:
    """Return a connection's settings; without one those of this process's environment, then of its profiles.

    Raises ConfigurationError, which names the connection.
    """
    if access == ENVIRONMENT:
        return [read_settings(), *settings_of_profiles()]
    from airflow_provider.hooks.kinetic import KineticHook

    try:
        return [KineticHook(**access.to_dict()).get_conn()]
    except KineticError:
        raise
    except Exception as error:  # a secrets backend may raise anything, and its text may tell too much
        raise ConfigurationError(
            f"connection {_named(access)} cannot be read: {type(error).__name__}"
        ) from error


def environment(home: Backend | str) -> str:
    """Return the assignments that a command for a job of `home` needs in a new shell, quoted; "" for none.

    A new shell finds the store that the current profile names, or the default one. What is named is this
    server's own store, never that of an XCom.
    """
    if isinstance(home, str) or home.name != "local":
        return ""
    store = home.connections.settings.local_store
    try:
        is_usual = read_settings({}).local_store == store
    except ConfigurationError:
        is_usual = False
    return "" if is_usual else f"KINETIC_LOCAL_STORE={shlex.quote(str(store))}"


def _named(access: Access) -> str:
    return " with ".join(repr(each) for each in (access.conn_id, access.gcp_conn_id) if each)


class Places:
    """Backends of one server, opened at first use; for one event loop."""

    def __init__(
        self,
        read: Callable[[Access], Sequence[Settings]] = settings_of,
        opened: Callable[[str, Settings], Backend] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """Open nothing yet. `read` gives a connection's settings, within `patience` seconds; `opened` opens a
        backend by name.
        """
        self._patience = patience
        self._read = read
        held = Held()
        self._open = lru_cache(_MOST_BACKENDS)(
            opened or (lambda name, settings: open_backend(name, Connections(settings, held)))
        )
        self._settings: Remembered[Sequence[Settings]] = Remembered(_CONNECTION_SECONDS)

    async def settings(self, access: Access) -> Sequence[Settings]:
        """Return the settings that jobs of a connection, or of none, may have. Raises KineticError."""
        try:
            return await self._settings.get(
                access, lambda: asyncio.to_thread(self._read, access), self._patience
            )
        except TimeoutError:
            raise ConfigurationError(
                f"connection {_named(access)} could not be read within {self._patience:g} s"
            ) from None

    async def home(self, reference: JobReference, access: Access) -> Backend:
        """Return the backend of a connection's job or batch. Raises as `settings` and `of` do."""
        settings = await self.settings(access)
        return await asyncio.to_thread(self.of, reference, settings)

    def of(self, reference: JobReference, settings: Sequence[Settings]) -> Backend:
        """Return the backend of a job, by the first settings with its store, cluster and namespace.

        If none match, raises the error of the first: Elsewhere, or ConfigurationError if they are incomplete.
        """
        if reference.backend not in BACKENDS:
            raise ConfigurationError(
                f"{reference.job_id}: this version of Kinetic has no backend {reference.backend!r}"
            )
        wrong: list[KineticError] = []
        for each in settings:
            try:
                return self._by(reference, each)
            except KineticError as error:
                wrong.append(error)
        raise wrong[0]

    def _by(self, reference: JobReference, settings: Settings) -> Backend:
        backend = self._open(reference.backend, settings)
        if backend.namespace not in (None, reference.namespace):
            raise Elsewhere(
                f"jobs of namespace {reference.namespace} are not known here, {backend.namespace} is set: "
                "use a connection that names it, or add a profile to the API server's"
            )
        if backend.store.uri != reference.store_uri:
            raise Elsewhere(
                f"jobs with objects in {reference.store_uri} are not known here: {backend.store.uri} is set"
            )
        is_named = backend.name != "local" and None not in (backend.cluster, reference.cluster)
        if is_named and backend.cluster != reference.cluster:
            raise Elsewhere(
                f"jobs of cluster {reference.cluster_name} are not known here, another one is set: use a "
                "connection that names it, or add a profile to the API server's"
            )
        return backend
