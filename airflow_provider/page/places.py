"""Which stores and clusters the API server looks at: those its own settings name, and no others.

The XComs that tell of jobs are written by whoever writes DAGs. A place named there is compared, never
followed: the server's credentials may reach what that person must not see.
"""

from __future__ import annotations

from collections.abc import Callable

from kinetic_core.configuration import read_settings
from kinetic_core.errors import ConfigurationError, KineticError
from kinetic_core.lifecycle.backends import Backend, open_backend
from kinetic_core.model.job import JobReference


class Elsewhere(KineticError):
    """A job lies where this server does not look; the message says where, and what to set."""


def by_settings(name: str) -> Backend:
    """A backend as this process's environment and profile describe it. Raises ConfigurationError."""
    return open_backend(name, read_settings())


class Places:
    """The backends of one server, opened when they are first needed."""

    def __init__(self, opened: Callable[[str], Backend] = by_settings) -> None:
        """`opened` gives the server's backend of a name."""
        self._open_named = opened
        self._opened: dict[str, Backend] = {}

    def of(self, reference: JobReference) -> Backend:
        """Where a job lives. Raises Elsewhere, ConfigurationError if the server has no such settings."""
        backend = self._open(reference.backend)
        if backend.store.uri != reference.store_uri:
            raise Elsewhere(
                f"its objects are in {reference.store_uri}, this server is set to {backend.store.uri}"
            )
        is_named = backend.name != "local" and None not in (backend.cluster, reference.cluster)
        if is_named and backend.cluster != reference.cluster:
            raise Elsewhere(f"it runs on cluster {reference.cluster_name}, this server is set to another one")
        return backend

    def _open(self, name: str) -> Backend:
        if name not in ("local", "gke", "pathways"):
            raise ConfigurationError(f"this version knows no backend {name!r}")
        if name not in self._opened:
            self._opened[name] = self._open_named(name)
        return self._opened[name]
