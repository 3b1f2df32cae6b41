"""What a call would submit, without submitting or uploading anything."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinetic_core._runner.wire import digest
from kinetic_core.cluster.bootstrap import runner_archive
from kinetic_core.cluster.choices import every_manifest, first_of
from kinetic_core.cluster.manifest import Delivery
from kinetic_core.cluster.pod_sets import leader_worker_set, runs_in_set
from kinetic_core.configuration import Settings, read_settings
from kinetic_core.lifecycle.backends import Backend, backend_name, open_backend
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.preparing import Call, prepare
from kinetic_core.storage.directory import DirectoryObjectStore


class _UnreadStore(DirectoryObjectStore):
    """A directory that nobody will read, in the name of the store that is not touched."""

    def __init__(self, root: Path, uri: str) -> None:
        super().__init__(root)
        self._meant = uri

    @property
    def uri(self) -> str:
        return self._meant


class _Elsewhere:
    """A backend with another store."""

    def __init__(self, backend: Backend, store: DirectoryObjectStore) -> None:
        self._backend = backend
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def dry_run(call: Call, options: RunOptions, settings: Settings | None = None) -> dict[str, Any]:
    """The Kubernetes Job of a call, or its LeaderWorkerSet, as plain data, without the key of its outcome.

    Checks the call as submitting it would, and raises as `prepare` does.
    """
    settings = options.settings(settings or read_settings())
    backend = open_backend(backend_name(options.backend, options.accelerator.hosts, settings), settings)
    with tempfile.TemporaryDirectory(prefix="kinetic-dry-run-") as folder:
        elsewhere: Any = _Elsewhere(backend, _UnreadStore(Path(folder, "store"), backend.store.uri))
        own = replace(settings, cache=Path(folder, "cache"))
        prepared = prepare(call, options, settings=own, backend=elsewhere, dry=True)
    surroundings = backend.surroundings(prepared.spec.namespace)
    delivery = Delivery(runner_archive()[0], digest(prepared.payload), "", surroundings)
    job = first_of(every_manifest(prepared.spec, prepared.reference, delivery))
    return leader_worker_set(job) if runs_in_set(job) else job
