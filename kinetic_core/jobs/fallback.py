"""Fallback of a job to its next accelerator when there is no capacity for the current one.

`jobs.decide` says when; whoever reconciles the job does it here. Every step can be repeated by another
observer. The decision is one object in the store, signed with the job's key, which a starting pod creates
too (ADR 0033). An object without that signature is ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.accelerator_choice import PASSED
from kinetic_core._runner.notes import LONGEST_NOTE, ForgedNote, decode_note, encode_note
from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.fallbacks import accelerator_of
from kinetic_core.backends.kubernetes.names import UNSCHEDULABLE
from kinetic_core.errors import KineticError, ObjectNotFound
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs.decide import MOVED_ON, MoveOn
from kinetic_core.jobs.signing import Keys, key_id_of, outcome_key

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PassedOver:
    """Accelerator that the job did not get: until when (Unix seconds) the job waited, and why in vain."""

    accelerator: str
    at: float
    why: str


def passed_over(backend: Backend, reference: JobReference) -> tuple[PassedOver, ...]:
    """Return the accelerators that a job passed over; one request each, none without fallbacks."""
    *names, _ = reference.hardware.split(",")
    if not names:
        return ()
    found = backend.get(reference.namespace, reference.job_id)
    decisions = _Decisions(backend, reference, None if found is None else found[0])
    passed = []
    for number, name in enumerate(names):
        decision = decisions.read(number)
        if decision is None or decision["decision"] != PASSED:
            break
        passed.append(PassedOver(name, float(decision["at"]), str(decision["why"])))
    return tuple(passed)


def accelerator_now(backend: Backend, reference: JobReference) -> str:
    """Return the accelerator a job runs on or waits for."""
    return reference.hardware.split(",")[len(passed_over(backend, reference))]


def is_passed_over(backend: Backend, reference: JobReference, job: Mapping[str, Any], number: int) -> bool:
    """Return whether a decision signed with the job's key passes over that accelerator."""
    return _Decisions(backend, reference, job).is_passed(number)


def move_on(
    backend: Backend, reference: JobReference, job: Mapping[str, Any], action: MoveOn
) -> JobObservation | None:
    """Give up accelerators and create the Job for a later one; None if a pod for one of them has started."""
    decisions, job_id = _Decisions(backend, reference, job), reference.job_id
    for one in action.given_up:
        if not decisions.pass_over(one.number, one.why, action.at):
            return None
        _LOG.info("%s: no capacity for %s: %s", job_id, one.accelerator, one.why)
    backend.create(action.manifest)
    if backend.store.find(object_names.cancel(job_id)) is not None:
        backend.abandon(reference.namespace, job_id)
    _LOG.info("%s: trying %s", job_id, accelerator_of(action.manifest))
    return JobObservation(JobStatus.PENDING, MOVED_ON, action.message, created_at=action.at)


@dataclass(frozen=True)
class _Decisions:
    """Stored decisions about a job's accelerators, as far as a key of the job signs them."""

    backend: Backend
    reference: JobReference
    job: Mapping[str, Any] | None

    def pass_over(self, number: int, why: str, now: float) -> bool:
        """Decide that the job does not run on this accelerator; return False if a pod for it has started."""
        name, key = object_names.choice(self.reference.job_id, number), outcome_key(self.job)
        assert key is not None  # noqa: S101  who moves a job on has its Job
        told = {"decision": PASSED, "at": now, "why": why, "key_id": key_id_of(self.job)}
        return self.backend.store.create_if_absent(name, encode_note(key, name, told)) or self.is_passed(
            number
        )

    def is_passed(self, number: int) -> bool:
        """Return whether a decision signed with the job's key passes over this accelerator."""
        decision = self.read(number)
        return decision is not None and decision["decision"] == PASSED

    def read(self, number: int) -> dict[str, Any] | None:
        """Read the decision about an accelerator, None if there is none; warn of one that is not signed.

        The key of a Job that has been replaced comes from the namespace's secret.
        """
        name = object_names.choice(self.reference.job_id, number)
        try:
            content = self.backend.store.read_range(name, 0, LONGEST_NOTE)
            told = wire.document(content, decision=str, key_id=str)
            keys = Keys(self.backend, self.reference.namespace, [] if self.job is None else [self.job])
            one = self.reference
            key = keys.of(told["key_id"], one.job_id, one.group_id, one.spec_digest)
            if key is not None:
                return decode_note(key, name, content)
            why = "it names no key that signs for this job"
        except ObjectNotFound:
            return None
        except (wire.Malformed, ForgedNote) as exc:
            why = str(exc)
        _LOG.warning("%s: %s: %s; not believed", self.reference.job_id, name, why)
        return None


def remedy(backend: Backend, reference: JobReference, seen: JobObservation) -> str:
    """Return what gives a job that waits for a node one; "" for any other job, or if nobody knows.

    The command or the option comes first, then a colon and the reason.
    """
    if seen.is_terminal or seen.reason != UNSCHEDULABLE:
        return ""
    try:
        return backend.remedy(parse_accelerator(accelerator_now(backend, reference)))
    except KineticError as exc:
        _LOG.debug("%s: nobody knows what gives it a node: %s", reference.job_id, exc)
        return ""
