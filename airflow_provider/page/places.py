"""Which stores and clusters the API server looks at: those of its settings and profiles, and of connections.

The XComs that tell of jobs are written by whoever writes DAGs. A place named there is compared, never
followed: the server's credentials may reach what that person must not see. The name of a connection is
followed: it leads where the connection itself says, and as whom; whoever writes DAGs may use any of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache

from airflow_provider.page.remembered import Remembered
from airflow_provider.records import JobRecord
from kinetic_core.configuration import BACKENDS, Settings, read_settings, settings_of_profiles
from kinetic_core.errors import ConfigurationError, KineticError
from kinetic_core.lifecycle.backends import Backend, open_backend
from kinetic_core.model.job import JobReference

PATIENCE = 8.0
"""Seconds a browser waits for a store, a cluster or a connection; then the page shows what else it knows."""
_CONNECTION_SECONDS = 10.0
_MOST_BACKENDS = 64


class Elsewhere(KineticError):
    """A job lies where this server does not look; the message says where, and what to set."""


def settings_of(conn_id: str) -> Sequence[Settings]:
    """What a connection says; for "" what this process's environment says, then what its profiles say.

    Raises ConfigurationError, which names the connection.
    """
    if not conn_id:
        return [read_settings(), *settings_of_profiles()]
    from airflow_provider.hooks.kinetic import KineticHook

    try:
        return [KineticHook(conn_id).get_conn()]
    except KineticError:
        raise
    except Exception as error:  # a secrets backend may raise anything, and its text may tell too much
        raise ConfigurationError(f"connection {conn_id!r} cannot be read: {type(error).__name__}") from error


class Places:
    """The backends of one server, opened when they are first needed; for one event loop."""

    def __init__(
        self,
        read: Callable[[str], Sequence[Settings]] = settings_of,
        opened: Callable[[str, Settings], Backend] = open_backend,
    ) -> None:
        """`read` gives the settings for a connection, `opened` a backend by its name, as settings say."""
        self._read = read
        self._open = lru_cache(_MOST_BACKENDS)(opened)
        self._settings: Remembered[Sequence[Settings]] = Remembered(_CONNECTION_SECONDS)

    async def settings(self, conn_id: str) -> Sequence[Settings]:
        """What jobs of a connection, "" for none, may be of. Raises KineticError if it cannot be read."""
        try:
            return await self._settings.get(conn_id, lambda: asyncio.to_thread(self._read, conn_id), PATIENCE)
        except TimeoutError:
            raise ConfigurationError(
                f"connection {conn_id!r} could not be read within {PATIENCE:g} s"
            ) from None

    async def home(self, record: JobRecord) -> Backend:
        """Where the job of a record lives. Raises as `settings` and `of` do."""
        settings = await self.settings(record.conn_id)
        return await asyncio.to_thread(self.of, record.reference, settings)

    def of(self, reference: JobReference, settings: Sequence[Settings]) -> Backend:
        """Where a job lives: by the first settings that fit. If none do, raises what is wrong with the first:
        Elsewhere, or ConfigurationError if they do not suffice.
        """
        if reference.backend not in BACKENDS:
            raise ConfigurationError(f"this version knows no backend {reference.backend!r}")
        wrong: list[KineticError] = []
        for each in settings:
            try:
                return self._by(reference, each)
            except KineticError as error:
                wrong.append(error)
        raise wrong[0]

    def _by(self, reference: JobReference, settings: Settings) -> Backend:
        if not settings.bucket:  # each namespace of a cluster then has a place of its own
            settings = settings.with_arguments(namespace=reference.namespace)
        backend = self._open(reference.backend, settings)
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
