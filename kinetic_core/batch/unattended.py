"""`BatchHandle` of inputs with a job each that go on, or can be gone on with, when their client is gone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from kinetic_core._runner import wire
from kinetic_core.batch.handle import BatchHandle, in_parallel
from kinetic_core.errors import ObjectExists
from kinetic_core.lifecycle.handle import JobHandle


class UnattendedBatchHandle(BatchHandle):
    """One function over many inputs; others may start, run and cancel the same at this moment."""

    def cleanup(self, *, k8s: bool = True, gcs: bool = True) -> None:
        """Remove the jobs' Kubernetes objects and stored objects, with `gcs` the batch's own too.

        Raises InvalidRequest while some of it runs: cancel first.
        """
        self._must_be_over()
        super().cleanup(k8s=k8s, gcs=gcs)

    def _stop_starting(self) -> None:
        """Nobody who looks, here or elsewhere, starts another input from here on."""
        self._board.stop(cancel=True)
        with suppress(ObjectExists):
            self._backend.store.create(wire.stop_object(self.group_id), b"cancelled")

    def _cancel_all(self, jobs: Sequence[JobHandle]) -> None:
        """Cancel them all; then raise the first error that one of them met."""
        for _, error in in_parallel(JobHandle.cancel, list(jobs)):
            if error is not None:
                raise error
