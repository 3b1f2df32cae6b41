"""Archive of the runner in a store: stored before a job names it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kinetic_core._runner import object_names
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.bootstrap import StoredArchive, runner_archive
from kinetic_core.store.protocol import ObjectStore

_SEEN_SECONDS = 600.0
"""Seconds for which a client does not look again for a runner that it found in a remote store."""


def note_runner(backend: Backend, *, is_there: bool, clock: Callable[[], float] = time.monotonic) -> None:
    """Note whether a request that packing makes anyway found the runner's archive."""
    uri = backend.store.uri
    _seen(backend, uri).at = clock() if is_there and not uri.startswith("file:") else None


def stored_runner(backend: Backend, clock: Callable[[], float] = time.monotonic) -> StoredArchive:
    """Store the runner's archive unless the store has it; return what names it."""
    store, (sha256, archive) = backend.store, runner_archive(backend.connections.settings.cache)
    name, stored = object_names.runner(sha256), StoredArchive(sha256, len(archive))
    seen = _seen(backend, store.uri).at
    if seen is not None and clock() - seen < _SEEN_SECONDS:
        return stored
    if store.find(name) is None:
        store_archive(store, (sha256, archive))
    note_runner(backend, is_there=True, clock=clock)
    return stored


def store_archive(store: ObjectStore, archive: tuple[str, bytes]) -> None:
    """Store an archive, of the runner or of this package, under its digest."""
    store.create_if_absent(object_names.runner(archive[0]), archive[1])


@dataclass
class _LastFound:
    """When (monotonic) the runner was last found in a store; None if it was not."""

    at: float | None = None


def _seen(backend: Backend, uri: str) -> _LastFound:
    return backend.connections.get((_LastFound, uri), _LastFound)
