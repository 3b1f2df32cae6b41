"""What a batch's supervisor reads and writes in the store, and how it judges and ends jobs."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from kinetic_core._runner import wire
from kinetic_core.errors import ObjectExists
from kinetic_core.local.layout import Layout
from kinetic_core.storage.directory import DirectoryObjectStore


class Marks:
    """The marks of one batch. Judging and ending jobs need more imports, which wait until then."""

    def __init__(self, layout: Layout, namespace: str, group_id: str) -> None:
        self._layout, self._namespace, self._group_id = layout, namespace, group_id
        self._store = DirectoryObjectStore(Path(layout.store))

    def tell_submitted(self, size: int, job_ids: Collection[str]) -> None:
        """No more than these of so many inputs will be submitted: whoever did it has ended, or is dead."""
        name = wire.finished_object(self._group_id)
        if self._store.find(name) is None:
            have = set(job_ids)
            dropped = [index for index in range(size) if wire.child_id(self._group_id, index) not in have]
            self._create(name, json.dumps({"dropped": dropped}).encode())

    def is_stopped(self) -> bool:
        """Whether an input failed of a batch with `fail_fast`, or the batch was cancelled."""
        return self._store.path(wire.stop_object(self._group_id)).exists()

    def stop(self) -> None:
        self._create(wire.stop_object(self._group_id), b"supervisor")

    def has_failed(self, job_id: str) -> bool:
        """Whether a job ended without a value, and was not cancelled."""
        from kinetic_core.cluster.verdict import observe
        from kinetic_core.local.backend import LocalBackend
        from kinetic_core.model.states import JobStatus

        found = LocalBackend(Path(self._layout.root)).get(self._namespace, job_id)
        if found is None:
            return False
        seen = observe(*found)
        cancelled = seen.failure and seen.failure.failure_class == wire.FailureClass.CANCELLED
        return seen.status is JobStatus.FAILED and not cancelled

    def cancel(self, job_ids: Collection[str]) -> None:
        """Cancel jobs, one after the other."""
        from kinetic_core.local.backend import LocalBackend

        backend = LocalBackend(Path(self._layout.root))
        for job_id in job_ids:
            self._create(wire.cancel_object(job_id), b"supervisor")
            backend.delete(self._namespace, job_id)

    def _create(self, name: str, content: bytes) -> None:
        if os.path.isdir(self._layout.store):  # else all was removed, and is not made anew
            with suppress(ObjectExists):
                self._store.create(name, content)
