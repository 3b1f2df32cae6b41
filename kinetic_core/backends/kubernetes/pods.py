"""Readings of one pod: its attempt, its container's state, why it waits, whose fault its end was.

Field meanings: Kubernetes' core/v1 reference, "Pod Lifecycle" and "Node-pressure Eviction".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from kinetic_core._runner import memory
from kinetic_core._runner.wire import Failure, FailureClass
from kinetic_core.backends.kubernetes.names import CONTAINER, FAILED_COUNT, IGNORED_COUNT, UNSCHEDULABLE
from kinetic_core.backends.kubernetes.objects import NO_CONDITION, Object, Pod

RUNNER_GONE = (
    "the runner's archive is gone from the job's store: somebody, or a lifecycle rule of the bucket, has "
    "removed it. Submit again: it is stored anew"
)
"""Message for exit code `wire.EXIT_NO_RUNNER`."""
_NEVER_PULLED = ("ErrImageNeverPull", "InvalidImageName")
_IMAGE_REASONS = ("ImagePullBackOff", "ErrImagePull", *_NEVER_PULLED)
_REFUSED = re.compile(r"not found|manifest unknown|denied|unauthorized|forbidden", re.IGNORECASE)
"""Final answers of a registry; one that cannot be reached may still answer."""
_NOT_READ_YET = re.compile(r"failed to sync \w+ cache")
"""Message of the kubelet before it has read a Secret or ConfigMap, which may exist
(pkg/kubelet/util/manager/watch_based_manager.go)."""
_OWN_USE = re.compile(
    r"exceeded its local ephemeral storage limit|local storage usage exceeds|Usage of EmptyDir volume"
    r"|has larger consumption of (\S+)"
)
"""Messages of the kubelet (pkg/kubelet/eviction/helpers.go) for a pod that used more than it requested."""
_NEARLY_FULL = 0.9
"""Share of its memory limit that a container killed as a whole must have had to be out of memory."""


def with_attempt(pod: Object, attempt: int, failed: int) -> dict[str, Any]:
    """Return the pod as if `attempt` attempts before it had been counted, `failed` of which had failed."""
    facts = pod["metadata"]
    counts = {FAILED_COUNT: str(failed), IGNORED_COUNT: str(attempt - failed)}
    return {**pod, "metadata": {**facts, "annotations": {**(facts.get("annotations") or {}), **counts}}}


def is_silent(pod: Pod) -> bool:
    """Return whether the pod's node has stopped reporting: the node controller then reports the pod not
    ready, while the kubelet's last report says that its containers are.
    """
    told = pod.conditions
    ready, containers = told.get("Ready", NO_CONDITION), told.get("ContainersReady", NO_CONDITION)
    return ready.status == "False" and containers.is_true


def is_unanswered(pod: Pod) -> bool:
    """Return whether the node was told to end the pod, for a taint, and reports neither end nor start.

    Nodes that stop reporting are tainted; the reason is that of
    https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    """
    told = pod.conditions.get("DisruptionTarget", NO_CONDITION)
    deleted = pod.is_being_deleted and told.reason == "DeletionByTaintManager"
    return deleted and not pod.is_running and pod.termination is None


def why_waiting(pod: Pod) -> tuple[str, str]:
    """Return reason and message for a pod whose container does not run."""
    reason, message = pod.waiting
    if reason in _IMAGE_REASONS:
        return reason, message or "the container image cannot be pulled"
    scheduled = pod.conditions.get("PodScheduled", NO_CONDITION)
    if scheduled.status == "False":
        return scheduled.reason or UNSCHEDULABLE, scheduled.message
    if pod.termination is not None:
        return "Restarting", "the attempt ended; another follows"
    return reason or "Starting", message or "the pod is starting"


def cannot_start(pod: Pod) -> Failure | None:
    """Return why this pod, and every pod like it, can never start; None as long as waiting may help."""
    reason, message = pod.waiting
    if reason in _NEVER_PULLED or (reason in _IMAGE_REASONS and _REFUSED.search(message)):
        return Failure(FailureClass.IMAGE, f"the container image cannot be pulled: {message}", "image")
    if reason == "CreateContainerConfigError" and not _NOT_READ_YET.search(message):
        return Failure(FailureClass.CONFIGURATION, f"the container cannot be made: {message}", "container")
    return None


def evicted_for_own_use(pods: Sequence[Pod]) -> list[Failure]:
    """Return a failure for each pod that was evicted because it used more disk or memory than it requested.

    Other evictions are caused by the infrastructure.
    """
    failures = []
    for pod in pods:
        found = _OWN_USE.search(pod.message) if pod.reason == "Evicted" else None
        if found:
            memory_ran_out = (found[1] or "").startswith("memory")
            kind = FailureClass.OUT_OF_MEMORY if memory_ran_out else FailureClass.OUT_OF_DISK
            ask = "memory=" if memory_ran_out else "disk="
            text = f"the pod was evicted: {pod.message.strip()} Ask for more with {ask}"
            failures.append(Failure(kind, text))
    return failures


def out_of_memory(pod: Pod) -> str | None:
    """Return the message for a container that the kernel killed as a whole for memory; None for any other.

    With cgroup v2 the runner dies too, so its last word is the peak that it noted in the container's
    termination message. A kill that Kubernetes does not call OOMKilled counts if that peak was at the limit.
    """
    ended = pod.termination
    if ended is None:
        return None
    limit, peak = memory.noted(ended.message)
    if ended.reason == "OOMKilled":
        return memory.ran_out("the container", limit, peak)
    full = limit is not None and peak is not None and peak >= _NEARLY_FULL * limit
    disturbed = pod.is_being_deleted or "DisruptionTarget" in pod.conditions
    if ended.exit_code == 137 and full and not disturbed:
        return memory.ran_out("the container", limit, peak)
    return None


def failed_by_lease(pod: Object) -> dict[str, Any]:
    """Build the patch that marks a pod as failed by a disruption, because its lease has run out."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    disrupted = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "LeaseExpired",
        "message": "its node is silent, and the runner has ended by itself: its lease has run out",
        "lastTransitionTime": now,
    }
    others = pod["status"].get("conditions") or []
    return {
        "metadata": {"uid": pod["metadata"]["uid"]},
        "status": {"phase": "Failed", "conditions": [*others, disrupted]},
    }


_MADE = "SuccessfulCreate"
_MADE_POD = "Created pod: "
"""Reason of the Job controller's event for a new pod, and the beginning of its message: the name follows."""


def made_pods(events: Iterable[Object]) -> list[str]:
    """Return the names of the pods that a Job has had, by its events, in order."""
    made = [each for each in events if each.get("reason") == _MADE]
    told = [str(each.get("message")) for each in sorted(made, key=lambda each: _stamp(each) or "")]
    return [text.removeprefix(_MADE_POD) for text in told if text.startswith(_MADE_POD)]


def gone_pods(events: Sequence[Object], known: Collection[str], host: int) -> Iterator[dict[str, Any]]:
    """Yield what events tell of a host's pods that are gone, in the form of pods, oldest first.

    `known` are the names of the pods that are not gone. The attempts are counted from 0.
    """
    named = [name for name in made_pods(events) if name.split("-")[-2:-1] == [str(host)]]
    for attempt, name in enumerate(named):
        if name not in known:
            yield _gone_pod(name, attempt, events)


def _gone_pod(name: str, attempt: int, events: Sequence[Object]) -> dict[str, Any]:
    own = [each for each in events if (each.get("involvedObject") or {}).get("name") == name]
    told = {str(each.get("reason")): _stamp(each) for each in own}
    made = next(_stamp(each) for each in events if each.get("message") == _MADE_POD + name)
    conditions, state = [], {}
    if "Scheduled" in told:
        conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": told["Scheduled"]}]
    if "Started" in told:
        state = {"running": {"startedAt": told["Started"]}}
    return {
        "metadata": {
            "name": name,
            "creationTimestamp": made,
            "annotations": {FAILED_COUNT: str(attempt)},
        },
        "status": {
            "conditions": conditions,
            "containerStatuses": [{"name": CONTAINER, "state": state}],
        },
    }


def _stamp(event: Object) -> str | None:
    """Return when an event first was; the scheduler's times have microseconds."""
    stamp: str | None = event.get("eventTime") or event.get("firstTimestamp")
    return stamp
