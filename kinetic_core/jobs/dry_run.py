"""Dry run of a call: the manifest that it would submit, without uploading anything."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinetic_core.backends.base import Backend, backend_name, open_backend
from kinetic_core.backends.kubernetes.bootstrap import StoredArchive, runner_archive
from kinetic_core.backends.kubernetes.fallbacks import every_manifest, first_of
from kinetic_core.backends.kubernetes.manifest import Delivery
from kinetic_core.backends.kubernetes.set_objects import leader_worker_set, runs_in_set
from kinetic_core.connections import Connections
from kinetic_core.jobs.bundle import place
from kinetic_core.jobs.prepare import Call, prepare
from kinetic_core.options import RunOptions
from kinetic_core.project.callables import source_file
from kinetic_core.project.files import FileFacts
from kinetic_core.project.root import Project, locate_project
from kinetic_core.project.tree import StoredTree, project_listing, store_project
from kinetic_core.settings import Settings
from kinetic_core.store.directory import DirectoryObjectStore


class _UnreadStore(DirectoryObjectStore):
    """Temporary directory in place of the real store, under the real store's URI."""

    def __init__(self, root: Path, uri: str) -> None:
        super().__init__(root)
        self._meant = uri

    @property
    def uri(self) -> str:
        return self._meant


class _Elsewhere:
    """Proxy of a backend with another store."""

    def __init__(self, backend: Backend, store: DirectoryObjectStore) -> None:
        self._backend = backend
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def dry_run(call: Call, options: RunOptions, connections: Connections) -> dict[str, Any]:
    """Return the manifest of a call's Job or LeaderWorkerSet as plain data, without the key of its outcome.

    Checks the call as submission does, and raises as `prepare` does.
    """
    connections = connections.with_settings(options.settings(connections.settings))
    options, backend = place(options, connections)
    with tempfile.TemporaryDirectory(prefix="kinetic-dry-run-") as folder:
        elsewhere: Any = _Elsewhere(backend, _UnreadStore(Path(folder, "store"), backend.store.uri))
        own = connections.with_settings(replace(connections.settings, cache=Path(folder, "cache")))
        prepared = prepare(call, options, own, backend=elsewhere, dry=True)
    spec = prepared.spec
    surroundings = backend.surroundings(spec.namespace, spec.pod.service_account)
    sha256, archive = runner_archive(connections.settings.cache)
    delivery = Delivery(StoredArchive(sha256, len(archive)), prepared.payload, "", surroundings)
    job = first_of(every_manifest(spec, prepared.reference, delivery))
    return leader_worker_set(job) if runs_in_set(job) else job


@dataclass(frozen=True)
class Contents:
    """Files of a project as they would ship. `size` is in bytes; `left_out` is what Git's rules name."""

    project: Project
    files: tuple[FileFacts, ...]
    notices: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        return self.project.root

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def store(self, options: RunOptions, connections: Connections) -> StoredTree:
        """Store the files where a job with these options would look. Raises as `pack` does."""
        settings = connections.settings
        backend = open_backend(backend_name(options.backend, 1, connections), connections)  # for its store
        return store_project(
            self.project,
            backend.store,
            cache=settings.cache,
            default_excludes=settings.default_excludes,
            without=[settings.local_store, settings.cache],
            warn_bytes=settings.project_warn_bytes,
        )


def project_contents(function: Callable[..., Any], settings: Settings) -> Contents:
    """List the files of a function's project without opening them, without data in its arguments.

    Raises InvalidProject.
    """
    project = locate_project(source_file(function), package_root=settings.package_root)
    without = [settings.local_store, settings.cache]
    listing, by_name = project_listing(project, settings.default_excludes, without)
    notices = (*listing.notices, *project.notices, *by_name)
    return Contents(project, tuple(sorted(listing.files)), notices, tuple(listing.left_out))
