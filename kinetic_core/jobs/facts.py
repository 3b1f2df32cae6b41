"""Readers of facts about a job, which create, change and delete nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.notes import LONGEST_NOTE, ForgedNote, decode_note
from kinetic_core._runner.outcome import Header
from kinetic_core.backends.base import Backend, Found
from kinetic_core.backends.kubernetes.attempts import stored_claims
from kinetic_core.backends.kubernetes.fallbacks import choice_number, choice_of
from kinetic_core.backends.kubernetes.names import DROPPED, UNSCHEDULABLE, WORKER
from kinetic_core.backends.kubernetes.objects import Pod
from kinetic_core.backends.kubernetes.set_objects import is_live
from kinetic_core.backends.kubernetes.verdict import observe as verdict
from kinetic_core.errors import KineticError, ObjectNotFound
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs.decide import Decision, Fact, Facts, Unknown, WorkerState, decide, impossible
from kinetic_core.jobs.fallback import is_passed_over
from kinetic_core.jobs.lanes import claim_of, is_next, lanes_of, outcome_start, runs_on_lane
from kinetic_core.jobs.signing import UNVERIFIED, outcome_key, verified_header
from kinetic_core.store.documents import read_start
from kinetic_core.store.protocol import ObjectStore

_LOG = logging.getLogger(__name__)
_MOST_NOTES = 50
"""Notes of an attempt's times that are looked at: a runner leaves one for each phase at most, and for each
write that failed."""


@dataclass(frozen=True)
class Considered:
    """Decision, with the Job and pods it was made from, None if the Job does not exist."""

    decision: Decision
    found: Found | None


def observed(backend: Backend, reference: JobReference) -> JobObservation:
    """Observe a job now."""
    return consider(backend, reference).decision.observation


def consider(backend: Backend, reference: JobReference, now: float | None = None) -> Considered:
    """Read the facts of a job that `decide` needs, and decide."""
    if runs_on_lane(reference):
        return Considered(Decision(_on_lane(backend, reference)), None)
    found = backend.get(reference.namespace, reference.job_id)
    job = None if found is None else found[0]
    facts = Facts(time.time() if now is None else now, reference.created_at, job)
    while True:
        try:
            return Considered(decide(facts), found)
        except Unknown as exc:
            facts = _with(exc.fact, facts, backend, reference, found)


def _on_lane(backend: Backend, reference: JobReference) -> JobObservation:
    """Observe an input of a map by its outcome, or by the lanes of the map."""
    stored = stored_outcome(backend, reference, None)
    if stored.status is not JobStatus.NOT_FOUND:
        return stored
    ends = []
    for lane in lanes_of(backend, reference.group_id or ""):
        seen = observed(backend, lane)
        if not seen.is_terminal:
            runs = is_next(backend, reference)
            status = JobStatus.RUNNING if runs else JobStatus.PENDING
            text = "a worker runs it" if runs else "it waits until a worker has run others"
            return JobObservation(status, "OnWorker", text, created_at=seen.created_at)
        ends += [seen] if seen.status.ended_without_value else []
    return ends[0] if ends else stored


def _with(fact: Fact, facts: Facts, backend: Backend, reference: JobReference, found: Found | None) -> Facts:
    if fact is Fact.OUTCOME:
        return replace(facts, outcome=stored_outcome(backend, reference, facts.job))
    assert found is not None  # noqa: S101  everything else is asked of a Job that is there
    match fact:
        case Fact.PODS:
            return replace(facts, pods=tuple(found[1]))
        case Fact.REFUSAL:
            return replace(facts, refusal=backend.never_runs(found))
        case Fact.LATER_REFUSALS:
            return replace(facts, later_refusals=_later_refusals(backend, found[0]))
        case Fact.PASSED_OVER:
            passed_over = is_passed_over(backend, reference, found[0], choice_number(found[0]))
            return replace(facts, passed_over=passed_over)
        case Fact.CANCEL_MARKER:
            marker = backend.store.find(object_names.cancel(reference.job_id))
            return replace(facts, cancel_marker=marker is not None)
        case Fact.CLAIMS:
            return replace(
                facts, claims=attempts_claimed(backend.store, reference.job_id, outcome_key(found[0]))
            )
        case Fact.WORKER:
            return replace(facts, worker=worker_state(backend, reference.namespace, found[0]))


def attempts_claimed(store: ObjectStore, job_id: str, key: bytes | None, host: int = 0) -> int:
    """Return how many attempts runners of a host of the job have claimed, signed with its key.

    What others have stored under such names is passed over, as runners do (runner/claims.py).
    """
    claims = stored_claims(store, job_id, key, host) if key else ()
    return max((claim.number + 1 for claim in claims if claim.pod_uid), default=0)


def worker_state(backend: Backend, namespace: str, job: Mapping[str, Any]) -> WorkerState:
    """Return what is known of the worker that a call's Job names."""
    worker_id = job["metadata"]["labels"][WORKER]
    found = backend.get(namespace, worker_id)
    if found is None:
        seen = JobObservation(JobStatus.NOT_FOUND, "NotFound", "there is no such job")
    else:
        starts = (Pod(pod).started_at for pod in found[1])
        begun = max((each for each in starts if each is not None), default=None)  # with its last host
        seen = replace(verdict(*found), started_at=begun)
        if seen.reason == UNSCHEDULABLE and (text := backend.never_runs(found)) is not None:
            seen = impossible(seen, text)
    return WorkerState(worker_id, seen, seen.is_terminal and not backend.lives(namespace, worker_id))


def _later_refusals(backend: Backend, job: Mapping[str, Any]) -> dict[int, str]:
    """Return, by number, the reason why later Jobs can certainly never run on this backend."""
    choice, refusals = choice_of(job), {}
    for manifest in choice.later if choice is not None else ():
        template = manifest["spec"]["template"]
        pod = {"metadata": template["metadata"], "spec": template["spec"]}
        if text := backend.never_runs((manifest, [pod])):
            refusals[choice_number(manifest)] = text
    return refusals


def is_over(backend: Backend, reference: JobReference, found: Found) -> bool:
    """Return whether a job's outcome is stored and none of its pods lives.

    After a restart of the control plane the Job itself may report its end much later.
    """
    return not any(map(is_live, found[1])) and (
        stored_outcome(backend, reference, found[0]).status is not JobStatus.NOT_FOUND
    )


def stored_outcome(
    backend: Backend, reference: JobReference, job: Mapping[str, Any] | None
) -> JobObservation:
    """Observe a job by its stored outcome if that is signed with the key in the Job, or, where the Job is
    gone, with a key of the namespace's secret. An unsigned outcome is ignored: others can write to the store.
    """
    try:
        start = outcome_start(backend, reference)
        header = verified_header(backend, reference, start, job)
        failure = Header.from_dict(header).failure
    except ObjectNotFound:
        return JobObservation(
            JobStatus.NOT_FOUND,
            "NotFound",
            f"neither a running job nor an outcome of {reference.job_id} exists",
        )
    except wire.FrameError as exc:
        return JobObservation(JobStatus.NOT_FOUND, UNVERIFIED, f"the stored outcome is not its own: {exc}")
    attempt = header.get("attempt")
    number = attempt if isinstance(attempt, int) else 0
    seen = JobObservation(
        JobStatus.SUCCEEDED,
        "Completed",
        "the outcome is committed",
        attempt=number,
        created_at=datetime.fromisoformat(reference.created_at).timestamp() if reference.created_at else None,
        started_at=_time(header, "started"),
        finished_at=_time(header, "finished"),
    )
    if header.get("state") == "succeeded":
        return seen
    message = failure.message if failure else "the job failed"
    reason = _REASONS.get(str(header.get("state")), "Failed")
    return replace(seen, status=JobStatus.after(failure), reason=reason, message=message, failure=failure)


_REASONS = {wire.CANCELLED: "Cancelled", wire.DROPPED: DROPPED}


def attempt_failure(backend: Backend, reference: JobReference, attempt: int) -> wire.Failure | None:
    """Return how an attempt failed that was not the last; None if nothing says so."""
    try:
        found = backend.get(reference.namespace, reference.job_id)
    except KineticError:
        return None
    header = attempt_header(backend, reference, attempt, found[0] if found else None)
    return header.failure if header is not None else None


def attempt_header(
    backend: Backend, reference: JobReference, attempt: int, job: Mapping[str, Any] | None
) -> Header | None:
    """Return what an attempt has signed that was not the last; None if it left no word."""
    name = object_names.attempt_outcome(reference.job_id, attempt)
    try:
        start = read_start(backend.store, name)
        return Header.from_dict(verified_header(backend, reference, start, job, name))
    except (KineticError, wire.FrameError):
        return None


def told_times(
    backend: Backend, reference: JobReference, attempt: int, job: Mapping[str, Any] | None
) -> Mapping[str, float]:
    """Return when the phases of an attempt without outcome began, in Unix seconds; {} if it has not said.

    What others have stored there, without the job's key, is passed over.
    """
    key, prefix = (
        _key_of(backend, reference, job),
        object_names.times(reference.job_id, attempt, 0).rpartition("/")[0] + "/",
    )
    known = [info.name for info in islice(backend.store.list(prefix), _MOST_NOTES)] if key else []
    for name in reversed(known):
        try:
            note = backend.store.read_range(name, 0, LONGEST_NOTE)
            told = decode_note(key or b"", name, note)["times"]
        except (ObjectNotFound, ForgedNote) as exc:
            _LOG.info("%s of attempt %d is not read: %s", name, attempt + 1, exc)
        else:
            return {phase: float(at) for phase, at in told.items()}
    return {}


def _key_of(backend: Backend, reference: JobReference, job: Mapping[str, Any] | None) -> bytes | None:
    """Return the key of a living job: of an input that a lane runs, by the lane's claim."""
    if not runs_on_lane(reference):
        return outcome_key(job)
    claim = claim_of(backend, reference)
    return claim.key_of(reference.group_index or 0) if claim is not None else None


def _time(header: Mapping[str, Any], event: str) -> float | None:
    """Return the time of an event in the attempt by the outcome's header, None if the header has none."""
    times = header.get("times")
    at = times.get(event) if isinstance(times, dict) else header.get(f"{event}_at")
    return float(at) if isinstance(at, int | float) else None
