"""Filling a board from the Jobs that a batch's inputs share: their status says which have ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kinetic_core._runner import wire
from kinetic_core.batch.board import Board
from kinetic_core.batch.resuming import stored_states
from kinetic_core.batch.shared_jobs import part_reference
from kinetic_core.cluster.names import PART
from kinetic_core.cluster.parts import indexes_of
from kinetic_core.errors import ObjectExists, StoreError
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.hub import Subscription, hub_for
from kinetic_core.lifecycle.parts import GAVE_UP, look_at_part
from kinetic_core.lifecycle.whole_batches import stored_of
from kinetic_core.model.job import JobObservation, JobReference, PartObservation
from kinetic_core.model.states import JobStatus

_RETRY_SECONDS = 2.0
_LOG = logging.getLogger(__name__)
_SUCCEEDED = JobObservation(JobStatus.SUCCEEDED, "Completed", "the outcome is committed")
_FAILED = JobObservation(JobStatus.FAILED, "Failed", "it failed, and has no retries left")
_STOPPED = JobObservation(JobStatus.FAILED, "Stopped", "it was stopped while it ran")


class PartWatch:
    """Watches the parts of one batch, in the hub's thread, until all have ended.

    The store is asked, a request for each thousand inputs, only for what the Jobs do not tell: which were
    dropped, which were launched. A store that does not answer is asked again.
    """

    def __init__(self, backend: Backend, whole: JobReference, board: Board, fail_fast: bool) -> None:
        self._backend, self._whole, self._board, self._fail_fast = backend, whole, board, fail_fast
        self._subscriptions: dict[int, Subscription] = {}
        self._subscribing, self._taking = threading.Lock(), threading.Lock()
        self._known: set[int] = set()
        self._over: set[int] = set()

    def start(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Watch these parts, the oldest first; returns at once."""
        if not jobs:
            self._end()
        hub = hub_for(self._backend, self._whole.namespace)
        later: set[int] = set()
        with self._subscribing:
            for job in reversed(jobs):
                number, inputs = int(job["metadata"]["labels"][PART]), set(indexes_of(job))
                own = frozenset(inputs - later)  # what a later part has was run again there
                later |= inputs
                told = partial(self._seen, number, own, len(jobs))
                reference = part_reference(self._whole, number)
                self._subscriptions[number] = hub.subscribe(reference, told, look_at_part)

    def _seen(self, number: int, own: frozenset[int], parts: int, seen: JobObservation) -> None:
        assert isinstance(seen, PartObservation)  # noqa: S101  what `look_at_part` gives
        try:
            with self._taking:
                self._take(number, own, parts, seen)
        except StoreError as exc:
            _LOG.warning("cannot tell how inputs of %s ended, trying again: %s", self._whole.job_id, exc)
            again = threading.Timer(_RETRY_SECONDS, self._seen, (number, own, parts, seen))
            again.daemon = True
            again.start()

    def _take(self, number: int, own: frozenset[int], parts: int, seen: PartObservation) -> None:
        succeeded, failed = seen.succeeded & own - self._known, seen.failed & own - self._known
        dropped: set[int] = set()
        if failed and self._fail_fast:
            self._stop_others()
            states = stored_states(self._backend.store, self._whole.job_id)
            dropped = {index for index in failed if states.get(index) == wire.DROPPED}
        ended = dict.fromkeys(succeeded, _SUCCEEDED)
        ended |= dict.fromkeys(failed - dropped, _FAILED)
        if seen.status is JobStatus.FAILED:
            rest = own - seen.succeeded - seen.failed
            launched = rest if seen.reason == GAVE_UP else rest & self._launched()
            ended |= dict.fromkeys(launched, _STOPPED)
            dropped |= rest - launched
        self._known |= succeeded | failed
        self._board.end(ended, dropped)
        if seen.is_terminal and number not in self._over:
            if len(self._over | {number}) == parts:
                self._end()
            self._over.add(number)
            with self._subscribing:
                self._subscriptions[number].close()

    def _end(self) -> None:
        """No part goes on. Inputs of which none says anything are what the store has of them."""
        with self._board.changed:
            unknown = {i for i, job in enumerate(self._board.jobs) if job and i not in self._board.ended}
        stored = stored_states(self._backend.store, self._whole.job_id) if unknown else {}
        states = {index: stored[index] for index in unknown & stored.keys()}
        good = {index for index, state in states.items() if state == "succeeded"}
        dropped = {index for index, state in states.items() if state == wire.DROPPED}
        ended = {index: _SUCCEEDED if index in good else _FAILED for index in states if index not in dropped}
        self._board.end(ended, dropped)
        self._board.lose(
            {index: wire.child_id(self._whole.job_id, index) for index in unknown - states.keys()}
        )
        self._board.finish()

    def _stop_others(self) -> None:
        """For an input whose runner could not: it was killed with its container."""
        try:
            self._backend.store.create(wire.stop_object(self._whole.job_id), b"observer")
        except ObjectExists:
            return

    def _launched(self) -> set[int]:
        """Inputs that a pod has begun with."""
        group_id = self._whole.job_id
        claims = wire.claim_object(f"{group_id}-*", 0)
        return {index for index, _ in stored_of(self._backend.store, group_id, claims)}
