"""Scheduler and kubelet of a fake cluster: they bring each pod through the life its behaviour describes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kinetic_core.testing.kube_objects import KubeObjects, Object, Refused, timestamp

FOREVER = float("inf")


class Hindrance(StrEnum):
    """What keeps a pod from starting."""

    UNSCHEDULABLE = "Unschedulable"
    IMAGE = "ImagePullBackOff"
    CONTAINER = "ContainerCreating"


@dataclass(frozen=True)
class PodBehaviour:
    """A pod's life: `hindrance` for ever, or its container starts, runs for some seconds, and ends.

    `disruption` is the reason of a DisruptionTarget condition, for a pod that is taken away. `log` is what
    its container prints.
    """

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    start_seconds: float = 0.0
    seconds: float = 0.0
    log: str = ""
    disruption: str = ""
    hindrance: Hindrance | None = None


Behave = Callable[[Object], PodBehaviour]
"""Which behaviour a new pod has, from the Pod object: its annotations tell its index and attempt."""


def succeeds(seconds: float = 0.0, *, log: str = "") -> PodBehaviour:
    """The container ends with code 0."""
    return PodBehaviour(seconds=seconds, log=log)


def exits(code: int, seconds: float = 0.0, *, message: str = "", log: str = "") -> PodBehaviour:
    """The container ends with a code; `message` is its termination message."""
    return PodBehaviour(code, "Completed" if code == 0 else "Error", message, seconds=seconds, log=log)


def runs_until_stopped(*, log: str = "") -> PodBehaviour:
    """The container runs until its pod is deleted; then it ends with 143."""
    return PodBehaviour(seconds=FOREVER, log=log)


def runs_out_of_memory(seconds: float = 0.0, *, log: str = "") -> PodBehaviour:
    """The whole container is killed for memory, as with cgroup v2."""
    return PodBehaviour(137, "OOMKilled", seconds=seconds, log=log)


def is_evicted(seconds: float = 0.0) -> PodBehaviour:
    """The node's kubelet ends the pod because the node is short of something."""
    message = "The node was low on resource: memory."
    return PodBehaviour(137, "Error", message, seconds=seconds, disruption="TerminationByKubelet")


def is_preempted(seconds: float = 0.0) -> PodBehaviour:
    """The scheduler takes the node for a pod of a higher priority."""
    return PodBehaviour(143, "Error", seconds=seconds, disruption="PreemptionByScheduler")


def cannot_be_scheduled(
    message: str = "0/1 nodes are available: 1 Insufficient google.com/tpu.",
) -> PodBehaviour:
    """No node fits; the scheduler says why."""
    return PodBehaviour(message=message, hindrance=Hindrance.UNSCHEDULABLE)


def cannot_be_pulled(message: str = "not found") -> PodBehaviour:
    """The image cannot be had; `message` is the registry's."""
    return PodBehaviour(message=message, hindrance=Hindrance.IMAGE)


def stays_pending() -> PodBehaviour:
    """The node has it and never starts its container."""
    return PodBehaviour(hindrance=Hindrance.CONTAINER)


def pending(behaviour: PodBehaviour, pod: Object) -> Object:
    """The status of a pod whose container has not started."""
    if behaviour.hindrance is Hindrance.UNSCHEDULABLE:
        refused = {"reason": "Unschedulable", "message": behaviour.message}
        return {"phase": "Pending", "conditions": [_condition("PodScheduled", "False", **refused)]}
    waiting: Object = {"reason": behaviour.hindrance or Hindrance.CONTAINER}
    if behaviour.message and behaviour.hindrance:
        image = pod["spec"]["containers"][0].get("image")
        waiting["message"] = f'Back-off pulling image "{image}": {behaviour.message}'
    return _status(pod, "Pending", {"waiting": waiting})


def running(pod: Object) -> Object:
    """The status of a pod whose container runs."""
    return _status(pod, "Running", {"running": {"startedAt": timestamp()}}) | {"startTime": timestamp()}


def ended(behaviour: PodBehaviour, pod: Object) -> Object:
    """The status of a pod whose container has ended by itself."""
    phase = "Succeeded" if behaviour.exit_code == 0 else "Failed"
    status = _over(pod, phase, behaviour.exit_code, behaviour.reason or "Completed", behaviour.message)
    if behaviour.disruption:
        status["conditions"].append(_condition("DisruptionTarget", "True", reason=behaviour.disruption))
    return status


def stopped(pod: Object) -> Object:
    """The status of a pod that was told to stop."""
    before = pod.get("status") or {}
    kept = [each for each in before.get("conditions", ()) if each["type"] == "DisruptionTarget"]
    if before.get("phase") != "Running":
        return {**before, "phase": "Failed"}
    status = _over(pod, "Failed", 143, "Error", "")
    return {**status, "conditions": [*status["conditions"], *kept]}


def disrupted(reason: str) -> Object:
    """The condition of a pod that is taken away."""
    return _condition("DisruptionTarget", "True", reason=reason)


def _over(pod: Object, phase: str, code: int, reason: str, message: str) -> Object:
    states = (pod.get("status") or {}).get("containerStatuses") or [{}]
    started = states[0].get("state", {}).get("running", {}).get("startedAt") or timestamp()
    told = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": timestamp()}
    if message:
        told["message"] = message
    return _status(pod, phase, {"terminated": told})


def _status(pod: Object, phase: str, state: Object) -> Object:
    container = pod["spec"]["containers"][0]
    told: dict[str, Any] = {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "state": state,
        "ready": phase == "Running",
        "restartCount": 0,
    }
    scheduled = _condition("PodScheduled", "True")
    return {"phase": phase, "conditions": [scheduled], "containerStatuses": [told], "hostIP": "127.0.0.1"}


def _condition(kind: str, status: str, **more: str) -> Object:
    return {"type": kind, "status": status, "lastTransitionTime": timestamp(), **more}


_NODE = "fake-node"
_NEVER = float("inf")


@dataclass
class _Life:
    """What is known of a pod: its behaviour, and since when (monotonic) it is in its stage."""

    behaviour: PodBehaviour
    stage: str = "new"
    since: float = field(default_factory=time.monotonic)


class Kubelet:
    """Advances pods, each time it is asked to."""

    def __init__(self, objects: KubeObjects, behave: Behave) -> None:
        self._objects, self._behave = objects, behave
        self._lives: dict[str, _Life] = {}

    def advance(self, pod: Object) -> float:
        """Do what is due for a pod; how many seconds from now there is more to do."""
        facts = pod["metadata"]
        life = self._lives.get(facts["uid"])
        if life is None:
            life = self._lives[facts["uid"]] = _Life(self._behave(pod))
        if facts.get("deletionTimestamp"):
            self._end(pod, life)
            return _NEVER
        behaviour = life.behaviour
        if life.stage == "new":
            self._set(pod, life, "pending", pending(behaviour, pod))
            return behaviour.start_seconds
        if life.stage == "pending" and behaviour.hindrance is None:
            left = life.since + behaviour.start_seconds - time.monotonic()
            if left > 0:
                return left
            self._set(pod, life, "running", running(pod))
            return behaviour.seconds
        if life.stage == "running":
            left = life.since + behaviour.seconds - time.monotonic()
            if left > 0:
                return left
            self._set(pod, life, "ended", ended(behaviour, pod))
        return _NEVER

    def log(self, pod: Object) -> bytes:
        """What its container has printed. Raises Refused if that has not started."""
        life = self._lives.get(pod["metadata"]["uid"])
        if life is None or life.stage not in ("running", "ended"):
            container = pod["spec"]["containers"][0]["name"]
            text = f'container "{container}" in pod "{pod["metadata"]["name"]}" is waiting to start'
            raise Refused(400, "BadRequest", text)
        return life.behaviour.log.encode()

    def _end(self, pod: Object, life: _Life) -> None:
        """It was deleted: it stops, and is gone at once unless a Job has to count it first."""
        if life.stage != "ended":
            self._set(pod, life, "ended", stopped(pod))
        owners = {owner["name"] for owner in pod["metadata"].get("ownerReferences", ())}
        jobs = {job["metadata"]["name"] for job in self._objects.list("Job", pod["metadata"]["namespace"])[1]}
        if not owners & jobs:
            self._objects.remove("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
            del self._lives[pod["metadata"]["uid"]]

    def _set(self, pod: Object, life: _Life, stage: str, status: Object) -> None:
        def edit(item: Object) -> None:
            item["status"] = status
            if stage == "running":
                item["spec"]["nodeName"] = _NODE

        self._objects.change("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"], edit)
        life.stage, life.since = stage, time.monotonic()
