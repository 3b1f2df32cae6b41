"""What a Job and its pods say about a job: a pure function from Kubernetes objects to an observation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kinetic_core._runner import wire
from kinetic_core._runner.wire import Failure, FailureClass
from kinetic_core.cluster.names import (
    CANCELLED,
    DROPPED,
    FAILED_CREATE,
    NODE_SILENT,
    QUEUE,
    QUEUED,
    WAITING_FOR_SLOT,
)
from kinetic_core.cluster.pods import (
    attempt_of,
    cannot_start,
    conditions,
    container_state,
    evicted_for_own_use,
    failed_count,
    is_silent,
    is_unanswered,
    out_of_memory,
    terminated,
    why_waiting,
)
from kinetic_core.cluster.slice_verdict import missing_host, telling_pod
from kinetic_core.model.job import JobObservation
from kinetic_core.model.states import JobStatus

Object = Mapping[str, Any]

_REASONS = {
    "DeadlineExceeded": FailureClass.DEADLINE,
    "Cancelled": FailureClass.CANCELLED,
    DROPPED: FailureClass.CANCELLED,
    "NodeLost": FailureClass.PREEMPTED,
}
_EXITS = {
    wire.EXIT_USER_ERROR: (FailureClass.USER_ERROR, "the function failed"),
    wire.EXIT_NEVER_RETRY: (FailureClass.CONFIGURATION, "the runner could not start the function"),
    wire.EXIT_REGROUP: (FailureClass.PREEMPTED, "the hosts of the slice had to start anew"),
    wire.EXIT_FENCED: (FailureClass.CONTROL_PLANE, "another pod had claimed the attempt"),
    wire.EXIT_UNPUBLISHED: (FailureClass.CONTROL_PLANE, "the outcome could not be stored"),
}


def observe(job: Object, pods: Sequence[Object]) -> JobObservation:
    """The state of a Job. `FailureTarget` is failing, not failed: pods may still run then.

    An observation that is not terminal but has a failure is of a job that can never run.
    """
    newest = sorted(pods, key=lambda pod: (attempt_of(pod), pod["metadata"].get("creationTimestamp") or ""))
    last = newest[-1] if newest else None
    told = {kind: each for kind, each in conditions(job).items() if each.get("status") == "True"}
    seen = JobObservation(
        JobStatus.PENDING,
        attempt=attempt_of(last or job),
        created_at=seconds(job["metadata"].get("creationTimestamp")),
        started_at=_started(newest),
    )
    if done := told.get("Complete"):
        at = seconds(done.get("lastTransitionTime"))
        message = "the function returned"
        return replace(seen, status=JobStatus.SUCCEEDED, reason="Completed", message=message, finished_at=at)
    if ended := told.get("Failed"):
        if _was_told_to_end(job):
            ended = {**ended, "reason": "Cancelled", "message": "the job was cancelled"}
        failure = _failure(ended, newest)
        return replace(
            seen,
            status=JobStatus.FAILED,
            reason=ended.get("reason") or "Failed",
            message=failure.message,
            failure=failure,
            finished_at=seconds(ended.get("lastTransitionTime")),
        )
    if worn := _own_use_exceeded(job, newest):
        return replace(seen, reason="Evicted", message=worn.message, failure=worn)
    running = next((pod for pod in reversed(newest) if "running" in container_state(pod)), None)
    if running is not None and (missing := missing_host(job, newest)):
        return replace(seen, reason=missing[0], message=missing[1], failure=missing[2])
    if running is not None:
        reason, message = _how_running(running)
        overdue = reason == NODE_SILENT and _is_overdue(told)
        return replace(seen, status=JobStatus.RUNNING, reason=reason, message=message, overdue=overdue)
    if (terminated(last) or {}).get("exitCode") == 0:
        message = "the function has returned; Kubernetes has still to say so of the job"
        return replace(seen, status=JobStatus.RUNNING, reason="Finishing", message=message)
    return _not_running(job, last, told, seen)


def _not_running(
    job: Object, last: Object | None, told: Mapping[str, Object], seen: JobObservation
) -> JobObservation:
    """Of a Job that has not ended, none of whose pods runs; `last` is its newest."""
    if _was_told_to_end(job) and (last is None or terminated(last)):
        message = "it was told to end; Kubernetes has still to say that nothing of it runs"
        return replace(seen, status=JobStatus.RUNNING, reason="Cancelling", message=message)
    if last is None:
        reason, message = _why_no_pod(job, told)
        return replace(seen, reason=reason, message=message)
    if is_unanswered(last):
        return replace(seen, reason=NODE_SILENT, message=_silence_of(last), overdue=_is_overdue(told))
    reason, message = why_waiting(last)
    return replace(seen, reason=reason, message=message, failure=cannot_start(last))


def _was_told_to_end(job: Object) -> bool:
    return CANCELLED in (job["metadata"].get("annotations") or {})


def seconds(timestamp: str | None) -> float | None:
    """Unix seconds of a Kubernetes timestamp."""
    if not timestamp:
        return None
    from datetime import datetime

    return datetime.fromisoformat(timestamp).timestamp()


def _why_no_pod(job: Object, told: Mapping[str, Object]) -> tuple[str, str]:
    for kind in (WAITING_FOR_SLOT, FAILED_CREATE):
        if kind in told:
            return kind, told[kind].get("message") or ""
    queue = (job["metadata"].get("labels") or {}).get(QUEUE)
    if queue is not None and (job.get("spec") or {}).get("suspend"):
        return QUEUED, f"the job waits in the queue {queue!r} to be admitted"
    return "Created", "no pod exists yet"


def _how_running(pod: Object) -> tuple[str, str]:
    if not is_silent(pod):
        return "Running", "the runner has started"
    return NODE_SILENT, _silence_of(pod)


def _is_overdue(told: Mapping[str, Object]) -> bool:
    """Whether the Job was told to end for its deadline."""
    return (told.get("FailureTarget") or {}).get("reason") == "DeadlineExceeded"


def _silence_of(pod: Object) -> str:
    node = (pod.get("spec") or {}).get("nodeName")
    return (
        f"node {node} has stopped reporting. The job may go on there unseen, so nothing replaces it until "
        "the node reports again, or is known to be dead; its outcome counts whenever it is stored"
    )


def _own_use_exceeded(job: Object, pods: Sequence[Object]) -> Failure | None:
    """Kubernetes repeats at no cost what it evicts from a full node, even one that the pod filled, and a
    container that was killed as a whole, even for its memory.
    """
    failures = [*evicted_for_own_use(pods), *_killed_for_memory(pods)]
    retries = (job.get("spec") or {}).get("backoffLimitPerIndex") or 0
    spent = max((failed_count(pod) for pod in pods), default=0)
    return failures[-1] if failures and len(failures) + spent > retries else None


def _killed_for_memory(pods: Sequence[Object]) -> list[Failure]:
    ends = ((terminated(pod) or {}, out_of_memory(pod)) for pod in pods)
    return [
        Failure(FailureClass.OUT_OF_MEMORY, text, exit_code=end.get("exitCode"), signal=9)
        for end, text in ends
        if text
    ]


def _failure(condition: Object, pods: Sequence[Object]) -> Failure:
    """How a failed Job failed: its own reason if that says it, else how its last container ended."""
    if told := condition.get("failure"):
        return Failure.from_dict(told)
    pod = telling_pod(pods)
    reason, message = condition.get("reason") or "", condition.get("message") or ""
    ended = terminated(pod) or {}
    code = ended.get("exitCode")
    signal = ended.get("signal") or (code - 128 if isinstance(code, int) and code > 128 else None)
    if reason in _REASONS:
        return Failure(_REASONS[reason], message or reason, exit_code=code, signal=signal)
    if evicted := evicted_for_own_use([pod] if pod else []):
        return replace(evicted[0], exit_code=code, signal=signal)
    if pod is not None and (text := out_of_memory(pod)):
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


def _started(pods: Sequence[Object]) -> float | None:
    for pod in pods:
        for state in (container_state(pod).get("running"), terminated(pod)):
            if state and state.get("startedAt"):
                return seconds(state["startedAt"])
    return None
