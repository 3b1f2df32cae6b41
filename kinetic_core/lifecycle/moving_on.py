"""Moving a job on to its next accelerator when there is no capacity for the one it waits for.

Whoever looks at the job does it. Every step can be repeated by another observer, and what decides is one
object in the store, which a pod that starts creates too (ADR 0033).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kinetic_core._runner import wire
from kinetic_core._runner.choice import PASSED
from kinetic_core.cluster.choices import Choice, accelerator_of, carrying, choice_number, choice_of
from kinetic_core.cluster.names import CANCELLED, FAILED_CREATE, QUEUED, UNSCHEDULABLE
from kinetic_core.errors import ObjectExists, ObjectNotFound
from kinetic_core.lifecycle.backends import Backend, Found
from kinetic_core.model.job import JobObservation, JobReference
from kinetic_core.model.states import JobStatus
from kinetic_core.storage.protocol import ObjectStore

MOVED_ON = "NextAccelerator"
"""The reason of an observation: the job has just gone to its next accelerator."""
_NO_CAPACITY = frozenset({UNSCHEDULABLE, FAILED_CREATE, QUEUED})
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PassedOver:
    """An accelerator that the job did not get: until when (Unix seconds) it waited, and why in vain."""

    accelerator: str
    at: float
    why: str


def passed_over(store: ObjectStore, reference: JobReference) -> tuple[PassedOver, ...]:
    """What became of a job's first choices; a request for each, and none for a job with one accelerator."""
    names = reference.hardware.split(",")
    found = []
    for number, name in enumerate(names[:-1]):
        decision = _decision(store, reference.job_id, number)
        if decision.get("decision") != PASSED:
            break
        found.append(PassedOver(name, float(decision["at"]), str(decision["why"])))
    return tuple(found)


def accelerator_now(store: ObjectStore, reference: JobReference) -> str:
    """The accelerator a job runs on, or waits for."""
    return reference.hardware.split(",")[len(passed_over(store, reference))]


def moved_on(
    backend: Backend,
    reference: JobReference,
    found: Found,
    seen: JobObservation,
    clock: Callable[[], float] = time.time,
) -> JobObservation:
    """What is seen of a job with several accelerators; moves it on if it is time."""
    choice = choice_of(found[0])
    if choice is None or CANCELLED in (found[0]["metadata"].get("annotations") or {}):
        return seen
    if seen.status is JobStatus.RUNNING:
        return replace(seen, message=f"{seen.message}, on {choice.accelerator}")
    if not choice.later or seen.status is JobStatus.SUCCEEDED:
        return seen
    waiting = _Waiting(backend, reference, choice, seen, clock())
    return waiting.after_the_end() if seen.is_terminal else waiting.in_time()


@dataclass(frozen=True)
class _Waiting:
    """A job that waits for one of its accelerators, as it is `seen` at `now`."""

    backend: Backend
    reference: JobReference
    choice: Choice
    seen: JobObservation
    now: float

    def in_time(self) -> JobObservation:
        """The job has no node: it moves on when its time is up, and at once if it can never have one."""
        seen = self.seen
        if seen.reason not in _NO_CAPACITY or seen.attempt:
            return seen
        due = (seen.created_at or 0.0) + self.choice.capacity_timeout
        if seen.failure is None and self.now < due:
            return replace(seen, moves_on_at=due)
        manifest = self._possible()
        if manifest is None or self._is_cancelled():
            return seen
        return self._go_to(manifest) or seen

    def after_the_end(self) -> JobObservation:
        """A pod that ran nothing, because it came too late, is no end: who passed it over has died."""
        job_id = self.reference.job_id
        if _decision(self.backend.store, job_id, self.choice.number).get("decision") != PASSED:
            return self.seen
        if self._is_cancelled():
            text = "it was cancelled before it started"
            failure = wire.Failure(wire.FailureClass.CANCELLED, text, "start")
            return replace(self.seen, message=text, failure=failure)
        moved = self._go_to(self._possible() or self.choice.later[0])
        text = "another observer has moved the job on"
        return moved or JobObservation(JobStatus.PENDING, MOVED_ON, text)

    def _possible(self) -> dict[str, Any] | None:
        """The Job for the next accelerator that can be had at all."""
        return next((each for each in self.choice.later if not self._never_runs(each)), None)

    def _never_runs(self, manifest: Mapping[str, Any]) -> str | None:
        """Why nothing here can ever run a Job that is not there yet."""
        template = manifest["spec"]["template"]
        pod = {"metadata": template["metadata"], "spec": template["spec"]}
        return self.backend.never_runs((manifest, [pod]))

    def _go_to(self, manifest: dict[str, Any]) -> JobObservation | None:
        """Give up the accelerator, and those between, for another; None if one of them has started."""
        number, job_id = choice_number(manifest), self.reference.job_id
        for passed, accelerator, why in self._given_up_for(number):
            if not _pass(self.backend.store, job_id, passed, why, self.now):
                return None
            _LOG.info("%s: no capacity for %s: %s", job_id, accelerator, why)
        later = [each for each in self.choice.later if choice_number(each) > number]
        self.backend.create(_in_time(carrying(manifest, later), self.reference, self.now))
        if self._is_cancelled():
            self.backend.abandon(self.reference.namespace, job_id)
        accelerator = accelerator_of(manifest)
        _LOG.info("%s: trying %s", job_id, accelerator)
        text = f"no capacity for {self.choice.accelerator}: {self.seen.message}; trying {accelerator}"
        return JobObservation(JobStatus.PENDING, MOVED_ON, text, created_at=self.now)

    def _given_up_for(self, number: int) -> Iterator[tuple[int, str, str]]:
        """Number, name and reason of the accelerators that are given up for a later one."""
        yield self.choice.number, self.choice.accelerator, self.seen.message
        for manifest in self.choice.later:
            if choice_number(manifest) < number:
                why = self._never_runs(manifest) or "it could not be had"
                yield choice_number(manifest), accelerator_of(manifest), why

    def _is_cancelled(self) -> bool:
        return self.backend.store.find(wire.cancel_object(self.reference.job_id)) is not None


def _pass(store: ObjectStore, job_id: str, number: int, why: str, now: float) -> bool:
    """Decide that the job does not run on this accelerator; False if a pod of it has started."""
    content = json.dumps({"decision": PASSED, "at": now, "why": why}).encode()
    try:
        store.create(wire.choice_object(job_id, number), content)
    except ObjectExists:
        return _decision(store, job_id, number).get("decision") == PASSED
    return True


def _decision(store: ObjectStore, job_id: str, number: int) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(store.read(wire.choice_object(job_id, number)))
    except ObjectNotFound:
        return {}
    return found


def _in_time(manifest: dict[str, Any], reference: JobReference, now: float) -> dict[str, Any]:
    """The Job with what is left of the timeout, which counts from the job's submission."""
    limit = manifest["spec"].get("activeDeadlineSeconds")
    if limit is None:
        return manifest
    used = now - datetime.fromisoformat(reference.created_at).timestamp()
    spec = {**manifest["spec"], "activeDeadlineSeconds": max(1, round(limit - used))}
    return {**manifest, "spec": spec}
