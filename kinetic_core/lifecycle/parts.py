"""Looking at a part of a batch: one Job, however many inputs it runs."""

from __future__ import annotations

from dataclasses import replace

from kinetic_core._runner import wire
from kinetic_core._runner.indexes import parse_indexes
from kinetic_core.cluster.names import GIVEN_UP, UNSCHEDULABLE
from kinetic_core.cluster.parts import indexes_of
from kinetic_core.cluster.pods import cannot_start, why_waiting
from kinetic_core.cluster.verdict import observe as verdict
from kinetic_core.lifecycle.backends import Backend, Found, Parts
from kinetic_core.model.job import JobObservation, JobReference, PartObservation
from kinetic_core.model.states import JobStatus

GAVE_UP = "GivenUp"
"""The reason of a part that could never run: all its inputs have failed."""


def look_at_part(backend: Backend, reference: JobReference) -> PartObservation:
    """How a part and its inputs are now. Ends one whose pods can never start."""
    found = backend.get(reference.namespace, reference.job_id)
    if found is None or backend.parts is None:
        return PartObservation(JobStatus.NOT_FOUND, "NotFound", f"{reference.job_id} is not there any more")
    job, inputs = found[0], indexes_of(found[0])
    status = job.get("status") or {}
    seen = verdict(job, ())
    if seen.is_terminal and GIVEN_UP in (job["metadata"].get("annotations") or {}):
        seen = replace(seen, reason=GAVE_UP)
    elif not seen.is_terminal and status.get("ready"):
        seen = replace(seen, status=JobStatus.RUNNING, reason="Running", message="")
    elif not seen.is_terminal and status.get("active"):
        seen = _waiting(backend, backend.parts, reference, found, seen)
    return PartObservation(
        seen.status,
        seen.reason,
        seen.message,
        created_at=seen.created_at,
        finished_at=seen.finished_at,
        failure=seen.failure,
        inputs=frozenset(inputs),
        succeeded=frozenset(inputs[own] for own in parse_indexes(status.get("completedIndexes") or "")),
        failed=frozenset(inputs[own] for own in parse_indexes(status.get("failedIndexes") or "")),
    )


def _waiting(
    backend: Backend, parts: Parts, reference: JobReference, found: Found, seen: JobObservation
) -> JobObservation:
    """Why none of its pods runs. What keeps one of them from ever starting keeps all."""
    pods = parts.some_waiting(reference.namespace, found[0])
    if not pods:
        return seen
    reason, message = why_waiting(pods[0])
    failure = next((told for pod in pods if (told := cannot_start(pod))), None)
    if failure is None and reason == UNSCHEDULABLE and (text := backend.never_runs((found[0], pods))):
        failure = wire.Failure(wire.FailureClass.IMPOSSIBLE_REQUEST, text, "scheduling")
    if failure is not None:
        parts.give_up(reference.namespace, reference.job_id, failure)
        backend.abandon(reference.namespace, reference.job_id)
    return replace(seen, reason=reason, message=failure.message if failure else message)
