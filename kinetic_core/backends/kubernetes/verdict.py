"""Verdict on a job: a pure function from its Job and pods to an observation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kinetic_core._runner import wire
from kinetic_core._runner.wire import Failure, FailureClass
from kinetic_core.backends.kubernetes.names import (
    DROPPED,
    FAILED_CREATE,
    NODE_SILENT,
    QUEUED,
    STARTING,
    SUSPENDED,
    WAITING_FOR_SLOT,
)
from kinetic_core.backends.kubernetes.objects import NO_CONDITION, Condition, Job, Object, Pod
from kinetic_core.backends.kubernetes.pods import (
    RUNNER_GONE,
    cannot_start,
    evicted_for_own_use,
    is_silent,
    is_unanswered,
    out_of_memory,
    why_waiting,
)
from kinetic_core.job import JobObservation, JobStatus

_FOLLOWED = (wire.EXIT_SUCCEEDED, wire.EXIT_REGROUP, wire.EXIT_INTERRUPTED, 137)
"""Exit codes of a host that ended because another did: 137 is that of a host killed after its grace."""


def missing_host(job: Job, pods: Sequence[Pod]) -> tuple[str, str, Failure | None] | None:
    """Return reason and message for the first host that does not run while others do and wait for it.

    With a failure if the host can never start. `pods` come oldest first. None for a job of one host.
    """
    newest = {pod.host: pod for pod in pods}
    for host in range(job.hosts if job.hosts > 1 else 0):
        pod, who = newest.get(host), f"host {host} of {job.hosts}"
        if pod is None:
            return "WaitingForHosts", f"{who} has no pod yet; the others wait for it", None
        if pod.is_running or pod.exit_code == 0:
            continue
        reason, message = why_waiting(pod)
        return reason, f"{who}: {message}; the others wait for it", cannot_start(pod)
    return None


def reporting_pod(pods: Sequence[Pod]) -> Pod | None:
    """Return the pod whose end says most about a failed job, the newest of equals; `pods`: oldest first."""
    return max(reversed(pods), key=_weight, default=None)


def _weight(pod: Pod) -> tuple[int, int]:
    if evicted_for_own_use([pod]) or out_of_memory(pod):
        return pod.attempt, 2
    return pod.attempt, int(pod.exit_code is not None and pod.exit_code not in _FOLLOWED)


_REASONS = {
    "DeadlineExceeded": FailureClass.DEADLINE,
    "Cancelled": FailureClass.CANCELLED,
    DROPPED: FailureClass.CANCELLED,
    "NodeLost": FailureClass.PREEMPTED,
}
_EXITS = {
    wire.EXIT_USER_ERROR: (FailureClass.USER_ERROR, "the function failed"),
    wire.EXIT_NEVER_RETRY: (FailureClass.CONFIGURATION, "the runner could not start the function"),
    wire.EXIT_NO_RUNNER: (FailureClass.CONFIGURATION, RUNNER_GONE),
    wire.EXIT_REGROUP: (FailureClass.PREEMPTED, "the hosts of the slice had to start anew"),
    wire.EXIT_FENCED: (FailureClass.CONTROL_PLANE, "the job has gone to another accelerator"),
    wire.EXIT_UNSURE: (FailureClass.CONTROL_PLANE, "another pod had claimed the attempt before"),
    wire.EXIT_UNPUBLISHED: (FailureClass.CONTROL_PLANE, "the outcome could not be stored"),
}


def observe(shown: Object, shown_pods: Sequence[Object]) -> JobObservation:
    """Observe a Job and its pods, as the API shows them.

    A Job with condition `FailureTarget` is failing, not failed: its pods may still run. An observation that
    is not terminal but has a failure is of a job that can never run.
    """
    job, pods = Job(shown), [Pod(each) for each in shown_pods]
    newest = sorted(pods, key=lambda pod: (pod.attempt, pod.created))
    last = newest[-1] if newest else None
    told = job.true_conditions
    seen = JobObservation(
        JobStatus.PENDING,
        attempt=(last or job).attempt,
        created_at=job.created_at,
        started_at=next((pod.started_at for pod in newest if pod.started_at is not None), None),
    )
    if done := told.get("Complete"):
        text = "the function returned"
        return replace(
            seen, status=JobStatus.SUCCEEDED, reason="Completed", message=text, finished_at=done.since
        )
    if ended := told.get("Failed"):
        if job.is_cancelled:
            ended = replace(ended, reason="Cancelled", message="the job was cancelled")
        failure = _failure(ended, newest)
        return replace(
            seen,
            status=JobStatus.after(failure),
            reason=ended.reason or "Failed",
            message=failure.message,
            failure=failure,
            finished_at=ended.since,
        )
    if worn := _own_use_exceeded(job, newest):
        return replace(seen, reason="Evicted", message=worn.message, failure=worn)
    running = next((pod for pod in reversed(newest) if pod.is_running), None)
    if running is not None and (missing := missing_host(job, newest)):
        return replace(seen, reason=missing[0], message=missing[1], failure=missing[2])
    if running is not None:
        reason, message = _how_running(running)
        overdue = reason == NODE_SILENT and _is_overdue(told)
        return replace(seen, status=JobStatus.RUNNING, reason=reason, message=message, overdue=overdue)
    if last is not None and last.exit_code == 0:
        message = "the function has returned; Kubernetes has still to say so of the job"
        return replace(seen, status=JobStatus.RUNNING, reason="Finishing", message=message)
    return _not_running(job, last, told, seen)


def _not_running(
    job: Job, last: Pod | None, told: Mapping[str, Condition], seen: JobObservation
) -> JobObservation:
    """Observe a Job that has not ended and none of whose pods runs; `last` is its newest pod."""
    has_ended = last is not None and last.termination is not None
    if job.is_cancelled and (last is None or has_ended):
        message = "it was told to end; Kubernetes has still to say that nothing of it runs"
        return replace(seen, status=JobStatus.RUNNING, reason="Cancelling", message=message)
    if last is None or (SUSPENDED in told and has_ended):
        reason, message = _why_no_pod(job, told)
        return replace(seen, reason=reason, message=message)
    if is_unanswered(last):
        return replace(seen, reason=NODE_SILENT, message=_silence_of(last), overdue=_is_overdue(told))
    reason, message = why_waiting(last)
    return replace(seen, reason=reason, message=message, failure=cannot_start(last))


def _why_no_pod(job: Job, told: Mapping[str, Condition]) -> tuple[str, str]:
    if job.queue is not None and job.is_suspended:
        return QUEUED, f"the job waits in the queue {job.queue!r} to be admitted"
    if SUSPENDED in told:
        return SUSPENDED, "the job is suspended: it goes on when somebody resumes it (spec.suspend)"
    for kind in (WAITING_FOR_SLOT, STARTING, FAILED_CREATE):
        if kind in told:
            return kind, told[kind].message
    return "Created", "no pod exists yet"


def _how_running(pod: Pod) -> tuple[str, str]:
    if not is_silent(pod):
        return "Running", "the runner has started"
    return NODE_SILENT, _silence_of(pod)


def _is_overdue(told: Mapping[str, Condition]) -> bool:
    """Return whether the Job was told to end by its deadline."""
    return told.get("FailureTarget", NO_CONDITION).reason == "DeadlineExceeded"


def _silence_of(pod: Pod) -> str:
    return (
        f"node {pod.node} has stopped reporting. The job may go on there unseen, so nothing replaces it "
        "until the node reports again, or is known to be dead; its outcome counts whenever it is stored"
    )


def _own_use_exceeded(job: Job, pods: Sequence[Pod]) -> Failure | None:
    """Return a failure for pods that used up their memory or disk, which Kubernetes retries at no cost.

    These are pods evicted from a node that they filled, and containers killed as a whole for their memory.
    """
    failures = [*evicted_for_own_use(pods), *_killed_for_memory(pods)]
    spent = max((pod.failed_count for pod in pods), default=0)
    return failures[-1] if failures and len(failures) + spent > job.retries else None


def _killed_for_memory(pods: Sequence[Pod]) -> list[Failure]:
    ends = ((pod.exit_code, out_of_memory(pod)) for pod in pods)
    return [
        Failure(FailureClass.OUT_OF_MEMORY, text, exit_code=code, signal=9) for code, text in ends if text
    ]


def _failure(condition: Condition, pods: Sequence[Pod]) -> Failure:
    """Return how a failed Job failed: its own reason if that suffices, else the end of its last container."""
    if condition.failure is not None:
        return condition.failure
    pod = reporting_pod(pods)
    ended = None if pod is None else pod.termination
    code = None if ended is None else ended.exit_code
    signal = None if ended is None else ended.signal
    if not signal and code is not None and code > 128:
        signal = code - 128
    if condition.reason in _REASONS:
        text = condition.message or condition.reason
        return Failure(_REASONS[condition.reason], text, exit_code=code, signal=signal)
    if evicted := evicted_for_own_use([pod] if pod else []):
        return replace(evicted[0], exit_code=code, signal=signal)
    if pod is not None and (text_of_kill := out_of_memory(pod)):
        return Failure(FailureClass.OUT_OF_MEMORY, text_of_kill, exit_code=code, signal=signal)
    if code in _EXITS:
        kind, text = _EXITS[code]
        return Failure(kind, text, exit_code=code)
    if signal is not None:
        text = f"the runner was killed by signal {signal} before it could publish the outcome"
        return Failure(FailureClass.PREEMPTED, text, exit_code=code, signal=signal)
    if ended is not None and code is not None:
        told = f": {ended.message}" if ended.message else ""
        return Failure(
            FailureClass.CONFIGURATION, f"the container exited with code {code}{told}", exit_code=code
        )
    text = condition.message or condition.reason or "the job failed without a reason"
    return Failure(FailureClass.CONTROL_PLANE, text)
