"""`BatchHandle` of inputs that share Jobs: what it asks for does not grow with how many they are."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from kinetic_core._runner import wire
from kinetic_core.batch.board import Board
from kinetic_core.batch.handle import BatchHandle, finish, in_parallel
from kinetic_core.cluster.names import JOB_ID
from kinetic_core.cluster.parts import indexes_of
from kinetic_core.errors import JobNotFound, KineticError
from kinetic_core.lifecycle.backends import Backend, Parts
from kinetic_core.lifecycle.handle import JobHandle
from kinetic_core.lifecycle.settling import look, outcome_key
from kinetic_core.lifecycle.whole_batches import forget
from kinetic_core.model.job import JobReference
from kinetic_core.model.states import JobStatus

_LOG = logging.getLogger(__name__)


class SharedBatchHandle(BatchHandle):
    """One function over many inputs that the cluster runs without a client."""

    def __init__(
        self, whole: JobReference, name: str | None, tags: Mapping[str, str], board: Board, backend: Backend
    ) -> None:
        super().__init__(whole.job_id, name, tags, board, backend)
        assert backend.parts is not None  # noqa: S101  only there inputs share Jobs
        self._namespace, self._parts = whole.namespace, backend.parts
        self._keys = _Keys(backend.parts, whole)

    def statuses(self) -> list[tuple[int, JobStatus]]:
        """Index and status of every submitted job: two requests while some have not ended."""
        with self._board.changed:
            known = {index: seen.status for index, seen in self._board.ended.items()}
            jobs = [index for index, job in enumerate(self._board.jobs) if job is not None]
        running = self._parts.running(self._namespace, self.group_id) if len(known) < len(jobs) else set()
        alive = {True: JobStatus.RUNNING, False: JobStatus.PENDING}
        return [(index, known.get(index) or alive[index in running]) for index in jobs]

    def cancel(self) -> None:
        """Start nothing more and stop every job that has not ended; returns when nothing of it runs."""
        self._board.stop(cancel=True)
        finish(self._backend, self.group_id, self._board)
        errors = in_parallel(lambda part: self._backend.delete(self._namespace, part), self._part_ids())
        for _, error in errors:
            if error is not None:
                raise error

    def cleanup(self, *, k8s: bool = True, gcs: bool = True) -> None:
        """Remove the batch's Kubernetes objects, and with `gcs` all that it stored but outputs.

        Raises InvalidRequest while some of it runs: cancel first.
        """
        self._must_be_over()
        if k8s:
            self._backend.remove(self._namespace, *self._part_ids())
        if gcs:
            forget(self._backend.store, self.group_id)

    def _when_left(self, living: int) -> str:
        return f"goes on in the cluster, {living} of its jobs have not ended"

    def _part_ids(self) -> list[str]:
        jobs = self._parts.parts(self._namespace, self.group_id)
        return [str(job["metadata"]["labels"][JOB_ID]) for job in jobs]

    def _value(self, handle: JobHandle) -> Any:
        try:
            return handle.collect(key=self._keys.of)
        except JobNotFound:  # its runner was killed with its container: what is known of that is written now
            look(self._backend, handle)
            return handle.collect(key=self._keys.of)

    def _drop(self, succeeded: list[JobHandle]) -> None:
        """The Jobs go when all that they ran has succeeded and was collected: others may need their keys."""
        if not self._all_collected(succeeded):
            return
        try:
            self._backend.remove(self._namespace, *self._part_ids())
            listed = self._backend.store.list(wire.batch_object(self.group_id, "inputs-"))
            names = [wire.batch_payload_object(self.group_id), *(info.name for info in listed)]
            self._backend.store.delete_many(names)
        except (KineticError, OSError) as exc:
            _LOG.warning("cleaning up after %s: %s", self.group_id, exc)


class _Keys:
    """The keys of outcomes, read once: they go with the Jobs, and values may be asked for again."""

    def __init__(self, parts: Parts, whole: JobReference) -> None:
        self._parts, self._whole = parts, whole
        self._lock = threading.Lock()
        self._of: dict[int, bytes] | None = None

    def of(self, child: JobReference) -> bytes | None:
        """The key of one input's outcome; None if the Job is gone that had it."""
        assert child.group_index is not None  # noqa: S101  it is a batch's
        with self._lock:
            if self._of is None:
                self._of = {}
                for job in self._parts.parts(self._whole.namespace, self._whole.job_id):
                    key = outcome_key(job)
                    if key is not None:
                        self._of |= dict.fromkeys(indexes_of(job), key)
            key = self._of.get(child.group_index)
        return None if key is None else wire.child_key(key, child.group_index)
