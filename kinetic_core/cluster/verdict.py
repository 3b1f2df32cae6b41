"""What a Job and its pods say about a job: a pure function from Kubernetes objects to an observation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kinetic_core._runner import wire
from kinetic_core._runner.wire import Failure, FailureClass
from kinetic_core.cluster.names import (
    CANCELLED,
    CONTAINER,
    FAILED_COUNT,
    FAILED_CREATE,
    IGNORED_COUNT,
    WAITING_FOR_SLOT,
)
from kinetic_core.model.job import JobObservation
from kinetic_core.model.states import JobStatus

Object = Mapping[str, Any]

_NEVER_PULLED = ("ErrImageNeverPull", "InvalidImageName")
_IMAGE_REASONS = ("ImagePullBackOff", "ErrImagePull", *_NEVER_PULLED)
_REFUSED = re.compile(r"not found|manifest unknown|denied|unauthorized|forbidden", re.IGNORECASE)
"""A registry's answer that stays the same; one that cannot be reached may still answer."""
_REASONS = {
    "DeadlineExceeded": FailureClass.DEADLINE,
    "Cancelled": FailureClass.CANCELLED,
    "NodeLost": FailureClass.PREEMPTED,
}
_EXITS = {
    wire.EXIT_USER_ERROR: (FailureClass.USER_ERROR, "the function failed"),
    wire.EXIT_NEVER_RETRY: (FailureClass.CONFIGURATION, "the runner could not start the function"),
    wire.EXIT_FENCED: (FailureClass.CONTROL_PLANE, "another pod had claimed the attempt"),
    wire.EXIT_UNPUBLISHED: (FailureClass.CONTROL_PLANE, "the outcome could not be stored"),
}


def observe(job: Object, pods: Sequence[Object]) -> JobObservation:
    """The state of a Job. `FailureTarget` is failing, not failed: pods may still run then.

    An observation that is not terminal but has a failure is of a job that can never run.
    """
    status: Mapping[str, Any] = job.get("status") or {}
    newest = sorted(pods, key=lambda pod: (attempt_of(pod), pod["metadata"].get("creationTimestamp") or ""))
    last = newest[-1] if newest else None
    conditions = {
        condition["type"]: condition
        for condition in status.get("conditions", ())
        if condition.get("status") == "True"
    }
    seen = JobObservation(
        JobStatus.PENDING,
        attempt=attempt_of(last) if last else 0,
        created_at=seconds(job["metadata"].get("creationTimestamp")),
        started_at=_started(newest),
    )
    if done := conditions.get("Complete"):
        at = seconds(done.get("lastTransitionTime"))
        message = "the function returned"
        return replace(seen, status=JobStatus.SUCCEEDED, reason="Completed", message=message, finished_at=at)
    if ended := conditions.get("Failed"):
        if CANCELLED in (job["metadata"].get("annotations") or {}):
            ended = {**ended, "reason": "Cancelled", "message": "the job was cancelled"}
        failure = _failure(ended, last)
        return replace(
            seen,
            status=JobStatus.FAILED,
            reason=ended.get("reason") or "Failed",
            message=failure.message,
            failure=failure,
            finished_at=seconds(ended.get("lastTransitionTime")),
        )
    if any(_is_running(pod) for pod in newest):
        return replace(seen, status=JobStatus.RUNNING, reason="Running", message="the runner has started")
    for kind in (WAITING_FOR_SLOT, FAILED_CREATE):
        if last is None and kind in conditions:
            return replace(seen, reason=kind, message=conditions[kind].get("message") or "")
    reason, message = _why_waiting(last)
    return replace(seen, reason=reason, message=message, failure=_hopeless(last))


def attempt_of(pod: Object) -> int:
    """How many attempts of its index ended before this pod's."""
    annotations = pod["metadata"].get("annotations") or {}
    return sum(int(annotations.get(name) or 0) for name in (FAILED_COUNT, IGNORED_COUNT))


def seconds(timestamp: str | None) -> float | None:
    """Unix seconds of a Kubernetes timestamp."""
    if not timestamp:
        return None
    from datetime import datetime

    return datetime.fromisoformat(timestamp).timestamp()


def _failure(condition: Object, pod: Object | None) -> Failure:
    """How a failed Job failed: its own reason if that says it, else how its last container ended."""
    reason, message = condition.get("reason") or "", condition.get("message") or ""
    ended = _terminated(pod) or {}
    code = ended.get("exitCode")
    signal = ended.get("signal") or (code - 128 if isinstance(code, int) and code > 128 else None)
    if reason in _REASONS:
        return Failure(_REASONS[reason], message or reason, exit_code=code, signal=signal)
    if ended.get("reason") == "OOMKilled":
        text = "the container was killed because its memory limit was reached"
        return Failure(FailureClass.OUT_OF_MEMORY, text, exit_code=code, signal=signal)
    if code in _EXITS:
        kind, text = _EXITS[code]
        return Failure(kind, text, exit_code=code)
    if signal is not None:
        text = f"the runner was killed by signal {signal} before it could publish the outcome"
        return Failure(FailureClass.PREEMPTED, text, exit_code=code, signal=signal)
    if code is not None:
        told = f": {ended['message']}" if ended.get("message") else ""
        message = f"the container exited with code {code}{told}"
        return Failure(FailureClass.CONFIGURATION, message, exit_code=code)
    return Failure(FailureClass.CONTROL_PLANE, message or reason or "the job failed without a reason")


def _hopeless(pod: Object | None) -> Failure | None:
    """Why this pod, and every one like it, can never start; None as long as waiting may help."""
    waiting = (_state(pod) if pod else {}).get("waiting") or {}
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    if reason in _NEVER_PULLED or (reason in _IMAGE_REASONS and _REFUSED.search(message)):
        return Failure(FailureClass.IMAGE, f"the container image cannot be pulled: {message}", "image")
    if reason == "CreateContainerConfigError":
        return Failure(FailureClass.CONFIGURATION, f"the container cannot be made: {message}", "container")
    return None


def _started(pods: Sequence[Object]) -> float | None:
    for pod in pods:
        for state in (_state(pod).get("running"), _terminated(pod)):
            if state and state.get("startedAt"):
                return seconds(state["startedAt"])
    return None


def _is_running(pod: Object) -> bool:
    return bool(_state(pod).get("running"))


def _state(pod: Object) -> Mapping[str, Any]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    for status in statuses:
        if status.get("name") == CONTAINER:
            return status.get("state") or {}
    return {}


def _terminated(pod: Object | None) -> Mapping[str, Any] | None:
    return _state(pod).get("terminated") if pod else None


def _why_waiting(pod: Object | None) -> tuple[str, str]:
    if pod is None:
        return "Created", "no pod exists yet"
    waiting = _state(pod).get("waiting") or {}
    if waiting.get("reason") in _IMAGE_REASONS:
        return waiting["reason"], waiting.get("message") or "the container image cannot be pulled"
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return condition.get("reason") or "Unschedulable", condition.get("message") or ""
    if _terminated(pod) is not None:
        return "Restarting", "the attempt ended; another follows"
    return waiting.get("reason") or "Starting", waiting.get("message") or "the pod is starting"
