"""`StoredBatch`: what the inputs of a batch have left in the store, for readers that observe no job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kinetic_core._runner.object_names import input_id
from kinetic_core.backends.base import Backend
from kinetic_core.batches.definition import noted_failure
from kinetic_core.batches.rerun import stored_states
from kinetic_core.batches.scheduler import in_parallel
from kinetic_core.errors import JobCancelled, JobNotFound, KineticError, UnverifiedResult
from kinetic_core.job import JobReference
from kinetic_core.jobs.collect import Outcome, collect, result_reference
from kinetic_core.jobs.inputs import INDEXED, input_reference, read_manifest
from kinetic_core.jobs.observe import find
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.jobs.references import ResultReference
from kinetic_core.retry import is_passing

SUCCEEDED = "succeeded"


@dataclass(frozen=True)
class StoredBatch:
    """Batch as its store has it. `whole`: the reference of the batch."""

    backend: Backend
    whole: JobReference

    def states(self) -> dict[int, str]:
        """Return how inputs ended, by index, with one request per thousand inputs.

        Inputs without a verified outcome are left out.
        """
        return stored_states(self.backend, self.whole.namespace, self.whole.job_id)

    def reference(self, index: int) -> JobReference:
        """Return the reference of an input. Raises JobNotFound if nothing of it is stored."""
        if self._inputs_share_jobs:
            return input_reference(self.whole, index)
        found = find(self.backend, input_id(self.whole.job_id, index))
        if found is None:
            raise JobNotFound(
                f"input {index} of {self.whole.job_id} is not stored in {self.backend.store.uri}"
            )
        return found

    def outcome(self, index: int) -> Outcome:
        """Read and verify the outcome of an input that has ended; nothing is unpickled.

        The key is derived from the namespace's secret; only where that cannot be read, the input's Job is
        asked for. Raises JobNotFound if no outcome is stored, UnverifiedResult.
        """
        reference = self.reference(index)
        try:
            return collect(self.backend, reference, allow_pickle=False, key=lambda _backend, _job: None)
        except UnverifiedResult:
            return collect(self.backend, reference, allow_pickle=False)

    def result_reference(self, index: int) -> ResultReference:
        """Return a reference to an input's value. Raises as `outcome` does."""
        return result_reference(self.reference(index), self.outcome(index))

    def result_references(self, indexes: Sequence[int]) -> list[ResultReference]:
        """Return references to the values of inputs, read on a few threads. Raises as `outcome` does."""
        found: dict[int, ResultReference] = {}

        def read(index: int) -> None:
            found[index] = self.result_reference(index)

        for _, error in in_parallel(read, indexes):
            if error is not None:
                raise error
        return [found[index] for index in indexes]

    def failure(self, index: int) -> BaseException:
        """Return why an input has no value: its exception, or that it was never started.

        How the input died is recorded first, if nobody has done that. Raises StoreError.
        """
        try:
            reconcile(self.backend, self.reference(index))
            outcome = self.outcome(index)
        except JobNotFound:
            noted = noted_failure(self.backend, self.whole.namespace, self.whole.job_id, index)
            return noted or JobCancelled(f"input {index} of {self.whole.job_id} was never started")
        except UnverifiedResult as error:
            return error
        return outcome.exception()

    def failures(self, indexes: Sequence[int]) -> dict[int, BaseException]:
        """Return why inputs have no value, by index, read on a few threads.

        Raises the error of a store or cluster that gives no answer now: that says nothing about an input.
        """
        found: dict[int, BaseException] = {}

        def read(index: int) -> None:
            found[index] = self.failure(index)

        for index, error in in_parallel(read, indexes):
            if isinstance(error, KineticError) and not is_passing(error):
                found[index] = error
            elif error is not None:
                raise error
        return {index: found[index] for index in indexes}

    @cached_property
    def _inputs_share_jobs(self) -> bool:
        return bool(read_manifest(self.backend.store, self.whole.job_id)["scheduler"] == INDEXED)
