"""Scheduler and kubelet of a fake cluster: they bring each pod through the life its behaviour describes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from kinetic_core.testing.kube_objects import KubeObjects, Object, Refused
from kinetic_core.testing.pod_behaviour import Behave, PodBehaviour, ended, pending, running, stopped

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
