"""What one pod says: which attempt it is, how its container is, why it waits, whose fault its end was.

Field meanings: Kubernetes' core/v1 reference, "Pod Lifecycle" and "Node-pressure Eviction".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kinetic_core._runner import memory
from kinetic_core._runner.wire import Failure, FailureClass
from kinetic_core.cluster.names import CONTAINER, FAILED_COUNT, HOST_INDEX, IGNORED_COUNT, UNSCHEDULABLE

Object = Mapping[str, Any]

_NEVER_PULLED = ("ErrImageNeverPull", "InvalidImageName")
_IMAGE_REASONS = ("ImagePullBackOff", "ErrImagePull", *_NEVER_PULLED)
_REFUSED = re.compile(r"not found|manifest unknown|denied|unauthorized|forbidden", re.IGNORECASE)
"""A registry's answer that stays the same; one that cannot be reached may still answer."""
_NOT_READ_YET = re.compile(r"failed to sync \w+ cache")
"""The kubelet has not read a Secret or ConfigMap, which is no word on whether there is one
(pkg/kubelet/util/manager/watch_based_manager.go)."""
_OWN_USE = re.compile(
    r"exceeded its local ephemeral storage limit|local storage usage exceeds|Usage of EmptyDir volume"
    r"|has larger consumption of (\S+)"
)
"""The kubelet's words (pkg/kubelet/eviction/helpers.go) for a pod that used more than it asked for."""
_NEARLY_FULL = 0.9
"""The share of its memory limit that a container killed as a whole must have had to be out of memory."""


def attempt_of(pod: Object) -> int:
    """How many attempts of its index ended before this pod's; 0 of a Job, but that of a LeaderWorkerSet."""
    return failed_count(pod) + int((pod["metadata"].get("annotations") or {}).get(IGNORED_COUNT) or 0)


def failed_count(pod: Object) -> int:
    """How many of these spent the user's retries, as the Job controller counts."""
    return int((pod["metadata"].get("annotations") or {}).get(FAILED_COUNT) or 0)


def host_of(pod: Object) -> int:
    """Which host of its slice it is; 0 for a job of one."""
    return int((pod["metadata"].get("annotations") or {}).get(HOST_INDEX) or 0)


def container_state(pod: Object) -> Mapping[str, Any]:
    """The `state` of the job's container: one of running, waiting and terminated; {} if it has none yet."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == CONTAINER:
            return status.get("state") or {}
    return {}


def terminated(pod: Object | None) -> Mapping[str, Any] | None:
    """How the job's container ended; None if it has not."""
    return container_state(pod).get("terminated") if pod else None


def conditions(thing: Object) -> dict[str, Mapping[str, Any]]:
    """The conditions of a Job or Pod, by type."""
    return {each["type"]: each for each in (thing.get("status") or {}).get("conditions") or ()}


def is_silent(pod: Object) -> bool:
    """Whether its node has stopped reporting: the node controller then says not ready for the kubelet,
    which still says that the containers are.
    """
    told = {kind: each.get("status") for kind, each in conditions(pod).items()}
    return told.get("Ready") == "False" and told.get("ContainersReady") == "True"


def is_unanswered(pod: Object) -> bool:
    """Whether its node was told to end it, for a taint, and has said neither that it has nor that it began.

    Nodes that stop reporting are tainted; the reason is that of
    https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    """
    told = conditions(pod).get("DisruptionTarget") or {}
    deleted = "deletionTimestamp" in pod["metadata"] and told.get("reason") == "DeletionByTaintManager"
    return deleted and not container_state(pod).keys() & {"running", "terminated"}


def why_waiting(pod: Object) -> tuple[str, str]:
    """Reason and sentence of a pod whose container does not run."""
    waiting = container_state(pod).get("waiting") or {}
    if waiting.get("reason") in _IMAGE_REASONS:
        return waiting["reason"], waiting.get("message") or "the container image cannot be pulled"
    scheduled = conditions(pod).get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return scheduled.get("reason") or UNSCHEDULABLE, scheduled.get("message") or ""
    if terminated(pod) is not None:
        return "Restarting", "the attempt ended; another follows"
    return waiting.get("reason") or "Starting", waiting.get("message") or "the pod is starting"


def cannot_start(pod: Object) -> Failure | None:
    """Why this pod, and every one like it, can never start; None as long as waiting may help."""
    waiting = container_state(pod).get("waiting") or {}
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    if reason in _NEVER_PULLED or (reason in _IMAGE_REASONS and _REFUSED.search(message)):
        return Failure(FailureClass.IMAGE, f"the container image cannot be pulled: {message}", "image")
    if reason == "CreateContainerConfigError" and not _NOT_READ_YET.search(message):
        return Failure(FailureClass.CONFIGURATION, f"the container cannot be made: {message}", "container")
    return None


def evicted_for_own_use(pods: Sequence[Object]) -> list[Failure]:
    """A failure for each pod that was evicted because it used more disk or memory than it asked for.

    Other evictions are the infrastructure's doing.
    """
    failures = []
    for pod in pods:
        status = pod.get("status") or {}
        told = str(status.get("message") or "")
        found = _OWN_USE.search(told) if status.get("reason") == "Evicted" else None
        if found:
            memory_ran_out = (found[1] or "").startswith("memory")
            kind = FailureClass.OUT_OF_MEMORY if memory_ran_out else FailureClass.OUT_OF_DISK
            ask = "memory=" if memory_ran_out else "disk="
            failures.append(Failure(kind, f"the pod was evicted: {told.strip()} Ask for more with {ask}"))
    return failures


def out_of_memory(pod: Object) -> str | None:
    """The sentence of a container that the kernel killed as a whole for memory; None if it was not.

    With cgroup v2 the runner dies with it, so its last word is the peak it noted in the container's
    termination message. A kill that Kubernetes does not call OOMKilled is one if that peak was at the limit.
    """
    ended = terminated(pod) or {}
    limit, peak = memory.noted(ended.get("message") or "")
    if ended.get("reason") == "OOMKilled":
        return memory.ran_out("the container", limit, peak)
    full = limit is not None and peak is not None and peak >= _NEARLY_FULL * limit
    disturbed = "deletionTimestamp" in pod["metadata"] or "DisruptionTarget" in conditions(pod)
    if ended.get("exitCode") == 137 and full and not disturbed:
        return memory.ran_out("the container", limit, peak)
    return None


def failed_by_lease(pod: Object) -> dict[str, Any]:
    """The change of a pod that says that it has failed, and not by itself."""
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
