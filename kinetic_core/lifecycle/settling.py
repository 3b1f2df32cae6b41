"""What a job's state is, from everything that is known, and the record of how a dead one died.

A job whose runner committed an outcome is decided by it. One whose runner could not (killed, machine
gone, never started) is settled by the first observer that sees it end: it writes the verdict where the
outcome would be, create-only, so that every later observer, on any machine, reads the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kinetic_core._runner import wire
from kinetic_core.cluster.choices import choice_of
from kinetic_core.cluster.names import (
    CANCELLED,
    DROPPED,
    NODE_SILENT,
    OUTCOME_KEY,
    PART,
    QUEUED,
    UNSCHEDULABLE,
)
from kinetic_core.cluster.pod_sets import is_live, runs_in_set
from kinetic_core.cluster.verdict import observe as verdict
from kinetic_core.errors import KineticError, ObjectExists, ObjectNotFound
from kinetic_core.lifecycle.backends import Backend, Found
from kinetic_core.lifecycle.logs import last_lines
from kinetic_core.lifecycle.moving_on import moved_on
from kinetic_core.model.job import JobObservation, JobReference
from kinetic_core.model.states import JobStatus
from kinetic_core.storage.protocol import ObjectStore

_LOG = logging.getLogger(__name__)


def look(backend: Backend, reference: JobReference) -> JobObservation:
    """The job's state now. Settles it if it ended without an outcome."""
    found = backend.get(reference.namespace, reference.job_id)
    if found is None:
        return _from_store(backend.store, reference, None)
    stored = _stored_failure(backend.store, reference, found[0])
    if stored is not None and stored.status is not JobStatus.NOT_FOUND:
        return stored
    observation = verdict(*found)
    if observation.reason == UNSCHEDULABLE and (text := backend.never_runs(found)):
        failure = wire.Failure(wire.FailureClass.IMPOSSIBLE_REQUEST, text, "scheduling")
        observation = replace(observation, message=text, failure=failure)
    observation = moved_on(backend, reference, found, observation)
    observation = _in_queue(found[0], observation, time.time())
    if observation.failure is not None and not observation.is_terminal:
        return _give_up(backend, reference, found, observation)
    given_up = CANCELLED in (found[0]["metadata"].get("annotations") or {})
    may_be_over = observation.is_terminal or given_up or observation.reason == NODE_SILENT
    if runs_in_set(found[0]):
        return _look_at_set(backend, reference, found, observation)
    if PART in found[0]["metadata"]["labels"] and observation.status is JobStatus.PENDING:
        may_be_over = True  # cancelled before its turn, which its Job does not know
    if observation.status is JobStatus.SUCCEEDED or not may_be_over:
        return observation
    return _committed(backend, reference, found, observation, stored)


def _stored_failure(
    store: ObjectStore, reference: JobReference, job: Mapping[str, Any]
) -> JobObservation | None:
    """What the store says of a Job that has failed, for which nobody needs its pods; None for another one."""
    alone = verdict(job, ())
    if alone.status is not JobStatus.FAILED or runs_in_set(job) or choice_of(job) is not None:
        return None
    stored = _from_store(store, reference, outcome_key(job))
    return replace(stored, created_at=alone.created_at, finished_at=alone.finished_at)


def _in_queue(job: Mapping[str, Any], seen: JobObservation, now: float) -> JobObservation:
    """A job in a queue whose `timeout=` is over can never run: Kubernetes counts no deadline of a Job that is
    suspended.
    """
    limit = job["spec"].get("activeDeadlineSeconds")
    given_up = CANCELLED in (job["metadata"].get("annotations") or {})
    if seen.reason != QUEUED or limit is None or given_up:
        return seen
    over_at = (seen.created_at or now) + limit
    if now < over_at:
        return replace(seen, moves_on_at=min(over_at, seen.moves_on_at or over_at))
    text = f"it waited {limit} seconds in vain, its timeout=: {seen.message}"
    failure = wire.Failure(wire.FailureClass.DEADLINE, text, "scheduling")
    return replace(seen, message=text, failure=failure)


def _committed(
    backend: Backend,
    reference: JobReference,
    found: Found,
    observation: JobObservation,
    stored: JobObservation | None = None,
) -> JobObservation:
    """What the store says of a job that may be over; `stored` if it was asked."""
    committed = stored or _from_store(backend.store, reference, outcome_key(found[0]))
    if committed.status is JobStatus.NOT_FOUND:
        return settle(backend, reference, found, observation) if observation.is_terminal else observation
    # The runner may have been killed between committing and exiting: what it committed counts.
    times = (observation.created_at, observation.started_at, observation.finished_at)
    return replace(committed, created_at=times[0], started_at=times[1], finished_at=times[2])


def _look_at_set(
    backend: Backend, reference: JobReference, found: Found, observation: JobObservation
) -> JobObservation:
    """The pods of a set never end by themselves: only the store knows that they are done."""
    held = any(map(is_live, found[1]))
    if observation.status is JobStatus.SUCCEEDED and not held:
        return observation
    seen = _committed(backend, reference, found, observation)
    if seen.is_terminal and (held or not observation.is_terminal):
        try:
            backend.release(
                reference.namespace, reference.job_id, succeeded=seen.status is JobStatus.SUCCEEDED
            )
        except KineticError as exc:
            _LOG.warning("%s has ended, and its pods are left: %s", reference.job_id, exc)
    return seen


def _give_up(
    backend: Backend, reference: JobReference, found: Found, observation: JobObservation
) -> JobObservation:
    """End a job that can never run, instead of letting it wait for ever."""
    settled = settle(backend, reference, found, observation)
    if settled.status is not JobStatus.SUCCEEDED:
        backend.abandon(reference.namespace, reference.job_id)
    return settled


def settle(
    backend: Backend, reference: JobReference, found: Found, observation: JobObservation
) -> JobObservation:
    """Write the verdict of a job without an outcome; the observation with its evidence.

    What somebody committed before, a late runner or another observer, counts instead.
    """
    failure = observation.failure or wire.Failure(wire.FailureClass.CONTROL_PLANE, observation.message)
    lines = failure.last_lines or last_lines(backend, reference, observation.attempt)
    failure = replace(failure, last_lines=lines)
    state = wire.DROPPED if observation.reason == DROPPED else "failed"
    header = {
        "protocol": wire.PROTOCOL,
        "job_id": reference.job_id,
        "attempt": observation.attempt,
        "pod_uid": None,
        "state": state,
        "codec": "none",
        "failure": failure.to_dict(),
        "author": "observer",
        "started_at": observation.started_at,
    }
    try:
        backend.store.create(
            wire.result_object(reference.job_id),
            wire.encode_frame(header, {}, outcome_key(found[0])),
            {wire.STATE: state},
        )
    except ObjectExists:
        return _from_store(backend.store, reference, outcome_key(found[0]))
    return replace(observation, status=JobStatus.FAILED, message=failure.message, failure=failure)


def is_over(store: ObjectStore, reference: JobReference, found: Found) -> bool:
    """Whether its outcome is stored and no pod of it lives. After a restart of the control plane the Job
    itself may say so much later.
    """
    key = outcome_key(found[0])
    return not any(map(is_live, found[1])) and (
        _from_store(store, reference, key).status is not JobStatus.NOT_FOUND
    )


def outcome_key(job: Mapping[str, Any] | None) -> bytes | None:
    """The key outcomes are signed with, from the Job that carries it; None when the Job is gone."""
    if job is None:
        return None
    container = job["spec"]["template"]["spec"]["containers"][0]
    for variable in container["env"]:
        if variable["name"] == OUTCOME_KEY:
            return bytes.fromhex(variable["value"])
    return None


def _from_store(store: ObjectStore, reference: JobReference, key: bytes | None) -> JobObservation:
    """What the stored outcome says, which counts only if it is signed with `key`, where that is known."""
    try:
        header, _ = wire.decode_frame(store.read(wire.result_object(reference.job_id)), key)
    except ObjectNotFound:
        return JobObservation(
            JobStatus.NOT_FOUND,
            "NotFound",
            f"neither a running job nor an outcome of {reference.job_id} exists",
        )
    except wire.FrameError as exc:
        return JobObservation(JobStatus.FAILED, "BadOutcome", f"the stored outcome is not its own: {exc}")
    attempt = header.get("attempt")
    number = attempt if isinstance(attempt, int) else 0
    started = _started(header)
    if header.get("state") == "succeeded":
        text = "the outcome is committed"
        return JobObservation(JobStatus.SUCCEEDED, "Completed", text, attempt=number, started_at=started)
    fields = header.get("failure")
    failure = wire.Failure.from_dict(fields) if isinstance(fields, dict) else None
    message = failure.message if failure else "the job failed"
    reason = DROPPED if header.get("state") == wire.DROPPED else "Failed"
    return JobObservation(
        JobStatus.FAILED, reason, message, attempt=number, started_at=started, failure=failure
    )


def _started(header: Mapping[str, Any]) -> float | None:
    """When the attempt began, as its runner, or who settled it, has written."""
    times = header.get("times")
    started = times.get("started") if isinstance(times, dict) else header.get("started_at")
    return float(started) if isinstance(started, int | float) else None
