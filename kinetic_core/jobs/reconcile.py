"""Reconciliation: carrying out what was decided about a job.

Besides submitting, cancelling and cleaning up, nothing else writes. Whoever waits for a job or follows it
reconciles it; whoever merely asks does not (ADR 0054). Every action can be repeated, by several observers at
once: an object that the store creates only once decides between them.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.base import Backend, Found
from kinetic_core.backends.kubernetes.names import DROPPED
from kinetic_core.backends.kubernetes.objects import Job
from kinetic_core.errors import KineticError
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs.decide import (
    Action,
    Control,
    EndJob,
    EndWorker,
    GivePod,
    MoveOn,
    RecordFailure,
    ReleasePods,
)
from kinetic_core.jobs.facts import attempts_claimed, consider, stored_outcome
from kinetic_core.jobs.fallback import move_on
from kinetic_core.jobs.lanes import lanes_of, runs_on_lane
from kinetic_core.jobs.logs import last_lines
from kinetic_core.jobs.signing import key_id_of, outcome_key

_LOG = logging.getLogger(__name__)


def reconcile(backend: Backend, reference: JobReference, now: float | None = None) -> JobObservation:
    """Carry out the actions a job needs now; return the job's state afterwards. `now` is in Unix seconds."""
    if runs_on_lane(reference):
        for lane in lanes_of(backend, reference.group_id or ""):
            reconcile(backend, lane, now)
    considered = consider(backend, reference, now)
    seen = considered.decision.observation
    if considered.found is None:
        return seen
    for action in considered.decision.actions:
        seen = _carry_out(action, backend, reference, considered.found, seen)
    return seen


def _carry_out(
    action: Action, backend: Backend, reference: JobReference, found: Found, seen: JobObservation
) -> JobObservation:
    """Carry out an action; return the job's observation afterwards."""
    namespace, job_id = reference.namespace, reference.job_id
    match action:
        case Control():
            backend.control(namespace, job_id)
        case RecordFailure(failure):
            return record_failure(backend, reference, found, seen, failure)
        case EndJob():
            if seen.status is not JobStatus.SUCCEEDED:
                backend.abandon(namespace, job_id)
        case MoveOn():
            return move_on(backend, reference, found[0], action) or seen
        case GivePod(attempts):
            record_attempts(backend, reference, found, attempts)
            backend.start(namespace, job_id)
        case EndWorker(worker_id):
            backend.abandon(namespace, worker_id)
        case ReleasePods():
            try:
                backend.release(namespace, job_id, succeeded=seen.status is JobStatus.SUCCEEDED)
            except KineticError as exc:
                _LOG.warning("%s has ended, and its pods are left: %s", job_id, exc)
    return seen


def record_attempts(backend: Backend, reference: JobReference, found: Found, attempts: int) -> None:
    """Store of each host that its attempts have died with their worker; host 0 has claimed so many."""
    key, hosts = outcome_key(found[0]), Job(found[0]).hosts
    for host in range(hosts):
        claimed = attempts_claimed(backend.store, reference.job_id, key, host) if host else attempts
        for attempt in range(claimed):
            record_attempt(backend, reference, found, attempt, host)


def record_attempt(
    backend: Backend, reference: JobReference, found: Found, attempt: int, host: int = 0
) -> None:
    """Store that an attempt has died with its worker, unless the attempt has stored how it ended.

    Without the key nothing is stored, and no later attempt of this job may run.
    """
    name = object_names.attempt_outcome(reference.job_id, attempt, host)
    failure = wire.Failure(wire.FailureClass.PREEMPTED, "its worker has died", "execute")
    header = {
        "protocol": wire.PROTOCOL,
        "job_id": reference.job_id,
        "attempt": attempt,
        "object": name,
        "state": wire.state_after(failure),
        "codec": "none",
        "failure": failure.to_dict(),
        "author": "observer",
        "key_id": key_id_of(found[0]),
    }
    backend.store.create_if_absent(name, wire.encode_frame(header, {}, outcome_key(found[0])))


def record_failure(
    backend: Backend, reference: JobReference, found: Found, seen: JobObservation, failure: wire.Failure
) -> JobObservation:
    """Store how a job without an outcome failed, with the last lines that it printed.

    An outcome that a late runner or another observer committed first counts instead. One that was written
    without the job's key is left in place and ignored.
    """
    lines = failure.last_lines or last_lines(backend, reference, seen.attempt)
    failure = replace(failure, last_lines=lines)
    state = wire.DROPPED if seen.reason == DROPPED else wire.state_after(failure)
    header = {
        "protocol": wire.PROTOCOL,
        "job_id": reference.job_id,
        "attempt": seen.attempt,
        "pod_uid": None,
        "state": state,
        "codec": "none",
        "failure": failure.to_dict(),
        "author": "observer",
        "key_id": key_id_of(found[0]),
        "started_at": seen.started_at,
        "finished_at": seen.finished_at or time.time(),
    }
    key = outcome_key(found[0])
    sealed = state if key is None else wire.sealed_state(reference.job_id, state, key_id_of(found[0]), key)
    name = object_names.result(reference.job_id)
    if not backend.store.create_if_absent(name, wire.encode_frame(header, {}, key), {wire.STATE: sealed}):
        committed = stored_outcome(backend, reference, found[0])
        if committed.status is not JobStatus.NOT_FOUND:
            return committed
        _LOG.warning("%s: %s", reference.job_id, committed.message)
    return replace(seen, status=JobStatus.after(failure), message=failure.message, failure=failure)
