"""`StoredBatch`: what the inputs of a batch have left in the store, for readers that observe no job."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kinetic_core._runner.object_names import input_id
from kinetic_core.backends.base import Backend
from kinetic_core.batches.definition import noted_failure
from kinetic_core.batches.lanes import lost_inputs
from kinetic_core.batches.rerun import stored_states
from kinetic_core.batches.scheduler import in_parallel
from kinetic_core.errors import JobCancelled, JobNotFound, KineticError, UnverifiedResult
from kinetic_core.job import JobObservation, JobReference
from kinetic_core.jobs.collect import Outcome, collect, error_of, outcome_in, result_reference
from kinetic_core.jobs.inputs import INDEXED, ON_LANES, input_reference, read_manifest
from kinetic_core.jobs.lanes import LaneOutcomes, lanes_of
from kinetic_core.jobs.observe import find, observe
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.jobs.references import ResultReference
from kinetic_core.retry import is_passing

SUCCEEDED = "succeeded"


@dataclass(frozen=True)
class StoredBatch:
    """Batch as its store has it. `whole`: the reference of the batch."""

    backend: Backend
    whole: JobReference
    _first: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)
    """Held by the one of many threads that asks first."""

    def states(self) -> dict[int, str]:
        """Return how inputs ended, by index, with one request per thousand inputs.

        Inputs without a verified outcome are left out. Of a map on workers, also those that have none of the
        last round.
        """
        if self._lanes is not None:
            return self._lanes.states()
        return stored_states(self.backend, self.whole.namespace, self.whole.job_id)

    def observe(self, index: int) -> JobObservation:
        """Return how an input is now. Raises JobNotFound if nothing of it is stored."""
        reference = self.reference(index)
        segment = None if self._lanes is None else self._lanes.segment_of(index)
        if segment is None or segment.frame(index) is None:
            return observe(self.backend, reference)
        return segment.observation(index)

    def reference(self, index: int) -> JobReference:
        """Return the reference of an input. Raises JobNotFound if nothing of it is stored."""
        if self._scheduler in (INDEXED, ON_LANES):
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
        if self._lanes is not None:
            segment = self._lanes.segment_of(index)
            if segment is None:
                raise JobNotFound(f"input {index} of {self.whole.job_id} has no outcome")
            return outcome_in(self.backend, reference, segment, allow_pickle=False)
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
            if self._lanes is None:
                reconcile(self.backend, self.reference(index))
            outcome = self.outcome(index)
        except JobNotFound:
            noted = noted_failure(self.backend, self.whole.namespace, self.whole.job_id, index)
            lost = None if noted or self._lanes is None else self._lost(index)
            return noted or lost or JobCancelled(f"input {index} of {self.whole.job_id} was never started")
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
    def _manifest(self) -> dict[str, Any]:
        return read_manifest(self.backend.store, self.whole.job_id)

    @property
    def _scheduler(self) -> str:
        return str(self._manifest["scheduler"])

    @property
    def _lanes(self) -> LaneOutcomes | None:
        with self._first:
            return self._lane_outcomes

    @cached_property
    def _lane_outcomes(self) -> LaneOutcomes | None:
        return LaneOutcomes(self.backend, self.whole) if self._scheduler == ON_LANES else None

    def _lost(self, index: int) -> BaseException | None:
        """Return why a lane has left no outcome of an input; None if it was never started."""
        failure, lost = self._lost_inputs
        if failure is None or failure.failure is None or index not in lost:
            return None
        return error_of(self.reference(index).job_id, failure.failure)

    @cached_property
    def _lost_inputs(self) -> tuple[JobObservation | None, set[int]]:
        assert self._lanes is not None  # noqa: S101  only lanes lose inputs
        ends: list[JobObservation] = []

        def look(lane: JobReference) -> None:
            ends.append(observe(self.backend, lane))

        for _, error in in_parallel(look, lanes_of(self.backend, self.whole.job_id)):
            if error is not None:
                raise error
        rest = set(range(self._manifest["total_expected"])) - self._lanes.states().keys()
        return lost_inputs(self.backend, self.whole, self._lanes.round, ends, rest)
