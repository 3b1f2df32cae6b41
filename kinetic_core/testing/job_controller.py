"""What Kubernetes' Job controller does with an Indexed Job, as far as our manifests use it.

One pod an index; `backoffLimitPerIndex`, `maxFailedIndexes`, `podFailurePolicy`, `podReplacementPolicy`,
`activeDeadlineSeconds` and `suspend`. The real one waits for ten seconds, and longer each time, before it
replaces a pod; this one replaces a failed pod at once, and one whose end a policy ignores after a wait that
begins with 20 ms, because nothing limits how many follow it.
https://kubernetes.io/docs/concepts/workloads/controllers/job/
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kinetic_core._runner.indexes import format_indexes
from kinetic_core.backends.kubernetes.names import FAILED_COUNT, FAILED_CREATE, IGNORED_COUNT
from kinetic_core.testing.kube_objects import KubeObjects, Object, Refused, copied, timestamp

_TOLD = {
    "MaxFailedIndexesExceeded": "Job has exceeded the specified maximal number of failed indexes",
    "FailedIndexes": "Job has failed indexes",
    "DeadlineExceeded": "Job was active longer than specified deadline",
    "PodFailurePolicy": "A container of a pod failed and a rule of the pod failure policy fails the Job",
}


@dataclass
class PodCounts:
    """What is counted of a Job's pods."""

    seen: set[str] = field(default_factory=set)
    failures: dict[int, int] = field(default_factory=dict)
    ignored: dict[int, int] = field(default_factory=dict)
    due: dict[int, float] = field(default_factory=dict)
    """When an index gets its next pod, on the monotonic clock."""
    completed: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    failed_pods: int = 0
    ended_by: str = ""
    began: float | None = None


def is_over(job: Object) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def end_by_indexes(spec: Object, counts: PodCounts) -> str:
    """Why a Job must end for its failed indexes; "" if it need not."""
    limit = spec.get("maxFailedIndexes")
    if limit is not None and len(counts.failed) > limit:
        return "MaxFailedIndexesExceeded"
    if counts.failed and len(counts.failed | counts.completed) == spec["completions"]:
        return "FailedIndexes"
    return ""


def policy_action(spec: Object, pod: Object) -> str:
    """What the pod failure policy says to a failed pod; Count where no rule matches."""
    status = pod.get("status") or {}
    codes = {
        each["name"]: each["state"]["terminated"]["exitCode"]
        for each in status.get("containerStatuses") or ()
        if "terminated" in each["state"]
    }
    conditions = {(each["type"], each["status"]) for each in status.get("conditions") or ()}
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        if "onExitCodes" in rule and _exited(rule["onExitCodes"], codes):
            return str(rule["action"])
        wanted = rule.get("onPodConditions") or ()
        if any((each["type"], each.get("status", "True")) in conditions for each in wanted):
            return str(rule["action"])
    return "Count"


def _exited(rule: Mapping[str, object], codes: Mapping[str, int]) -> bool:
    name, values = rule.get("containerName"), rule["values"]
    asked = [code for container, code in codes.items() if name in (None, container) and code != 0]
    inside = [code in values for code in asked]  # type: ignore[operator]
    return any(inside) if rule["operator"] == "In" else any(not each for each in inside)


def conditions_of(job: Object, counts: PodCounts, is_still: bool) -> list[Object]:
    """The conditions a Job should have now; it is over only when none of its pods runs any more."""
    if counts.ended_by:
        told = {"reason": counts.ended_by, "message": _TOLD[counts.ended_by]}
        return [_condition(kind, **told) for kind in ("FailureTarget", *(("Failed",) if is_still else ()))]
    if len(counts.completed) == job["spec"]["completions"]:
        told = {"reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"}
        return [_condition(kind, **told) for kind in ("SuccessCriteriaMet", "Complete")]
    known = {each["type"] for each in (job.get("status") or {}).get("conditions") or ()}
    if job["spec"].get("suspend"):
        return [_condition("Suspended", reason="JobSuspended", message="Job suspended")]
    if "Suspended" in known:
        return [_condition("Suspended", "False", reason="JobResumed", message="Job resumed")]
    return []


def _condition(kind: str, status: str = "True", **told: str) -> Object:
    now = timestamp()
    return {"type": kind, "status": status, "lastProbeTime": now, "lastTransitionTime": now, **told}


_INDEX = "batch.kubernetes.io/job-completion-index"
_NEVER = float("inf")
_WAITS = tuple(0.02 * 2**number for number in range(10))
"""Seconds before a pod whose end is ignored is replaced; the last ones are those of all later times."""
_OVER = ("Succeeded", "Failed")


class JobController:
    """Brings the Jobs of a cluster a step on, each time it is asked to."""

    def __init__(self, objects: KubeObjects) -> None:
        self._objects = objects
        self._counts: dict[str, PodCounts] = {}

    def reconcile(self, job: Object) -> float:
        """Do what is due for a Job; how many seconds from now there may be more to do."""
        counts = self._counts.setdefault(job["metadata"]["uid"], PodCounts())
        pods = owned_pods(self._objects, job)
        spec = job["spec"]
        for pod in pods:
            self._count(spec, counts, pod)
        if is_over(job):
            return _NEVER
        if spec.get("suspend"):
            counts.began = None
            self._stop(pods)
            self._tell(job, counts, pods)
            return _NEVER
        counts.began = time.monotonic() if counts.began is None else counts.began
        left = counts.began + float(spec.get("activeDeadlineSeconds", _NEVER)) - time.monotonic()
        if left <= 0 and len(counts.completed) < spec["completions"]:
            counts.ended_by = counts.ended_by or "DeadlineExceeded"
        counts.ended_by = counts.ended_by or end_by_indexes(spec, counts)
        if counts.ended_by:
            self._stop(pods)
        elif len(counts.completed) < spec["completions"]:
            left = min(left, self._fill(job, counts, pods))
        self._tell(job, counts, owned_pods(self._objects, job))
        return max(left, 0.0)

    def _count(self, spec: Object, counts: PodCounts, pod: Object) -> None:
        """Take note of a pod that has ended, once; one that was deleted goes then."""
        facts, phase = pod["metadata"], pod["status"].get("phase")
        if phase not in _OVER:
            return
        if facts["uid"] not in counts.seen:
            counts.seen.add(facts["uid"])
            index = int(facts["annotations"][_INDEX])
            if phase == "Succeeded":
                counts.completed.add(index)
            else:
                self._count_failure(spec, counts, pod, index)
        if facts.get("deletionTimestamp"):
            self._objects.remove("Pod", facts["namespace"], facts["name"])

    def _count_failure(self, spec: Object, counts: PodCounts, pod: Object, index: int) -> None:
        action = policy_action(spec, pod)
        if action == "Ignore":
            counts.ignored[index] = counts.ignored.get(index, 0) + 1
            counts.due[index] = time.monotonic() + _WAITS[min(counts.ignored[index], len(_WAITS)) - 1]
            return
        counts.failed_pods += 1
        counts.failures[index] = counts.failures.get(index, 0) + 1
        if action == "FailJob":
            counts.ended_by = "PodFailurePolicy"
        if action == "FailIndex" or counts.failures[index] > spec.get("backoffLimitPerIndex", 0):
            counts.failed.add(index)

    def _stop(self, pods: Iterable[Object]) -> None:
        for pod in pods:
            if pod["status"].get("phase") not in _OVER:
                delete_pod(self._objects, pod)

    def _fill(self, job: Object, counts: PodCounts, pods: list[Object]) -> float:
        """Give every index that needs one a pod, as long as parallelism allows.

        Returns in how many seconds the next index that waits for its pod may have it.
        """
        waits_for_end = job["spec"].get("podReplacementPolicy") == "Failed"
        live = {
            int(pod["metadata"]["annotations"][_INDEX])
            for pod in pods
            if pod["status"].get("phase") not in _OVER
            and (waits_for_end or not pod["metadata"].get("deletionTimestamp"))
        }
        needed = set(range(job["spec"]["completions"])) - counts.completed - counts.failed - live
        waits = {index: counts.due.get(index, 0.0) - time.monotonic() for index in needed}
        ready = sorted(index for index, wait in waits.items() if wait <= 0)
        for index in ready[: job["spec"]["parallelism"] - len(live)]:
            try:
                self._admit(job)
                self._objects.create("Pod", job["metadata"]["namespace"], self._pod(job, counts, index))
            except Refused as exc:
                self._complain(job, str(exc))
        return min((wait for wait in waits.values() if wait > 0), default=_NEVER)

    def _pod(self, job: Object, counts: PodCounts, index: int) -> Object:
        facts, template = job["metadata"], copied(job["spec"]["template"])
        labels = {
            **(template.get("metadata", {}).get("labels") or {}),
            _INDEX: str(index),
            **dict.fromkeys(("job-name", "batch.kubernetes.io/job-name"), facts["name"]),
            **dict.fromkeys(("controller-uid", "batch.kubernetes.io/controller-uid"), facts["uid"]),
        }
        annotations = {**(template.get("metadata", {}).get("annotations") or {}), _INDEX: str(index)}
        annotations[FAILED_COUNT] = str(counts.failures.get(index, 0))
        if counts.ignored.get(index):
            annotations[IGNORED_COUNT] = str(counts.ignored[index])
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": facts["name"], "uid": facts["uid"]}
        return {
            "metadata": {
                "name": f"{facts['name']}-{index}-{secrets.token_hex(3)[:5]}",
                "labels": labels,
                "annotations": annotations,
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": template["spec"],
        }

    def _admit(self, job: Object) -> None:
        """Raise what a ResourceQuota of pods says. Raises Refused: 403."""
        namespace = job["metadata"]["namespace"]
        _, pods = self._objects.list("Pod", namespace)
        used = sum(pod["status"].get("phase") not in _OVER for pod in pods)
        for quota in self._objects.list("ResourceQuota", namespace)[1]:
            limit = quota["spec"].get("hard", {}).get("pods")
            if limit is not None and used >= int(limit):
                told = f"requested: pods=1, used: pods={used}, limited: pods={limit}"
                text = f"exceeded quota: {quota['metadata']['name']}, {told}"
                raise Refused(403, "Forbidden", f'pods "{job["metadata"]["name"]}" is forbidden: {text}')

    def _complain(self, job: Object, why: str) -> None:
        """The event that says why a Job gets no pods; one for each reason."""
        facts, message = job["metadata"], f"Error creating: {why}"
        _, events = self._objects.list("Event", facts["namespace"])
        if any(each["message"] == message for each in events):
            return
        event = {
            "metadata": {"name": f"{facts['name']}.{secrets.token_hex(8)}"},
            "involvedObject": {"kind": "Job", "name": facts["name"], "uid": facts["uid"]},
            "reason": FAILED_CREATE,
            "message": message,
            "type": "Warning",
        }
        self._objects.create("Event", facts["namespace"], event)

    def _tell(self, job: Object, counts: PodCounts, pods: list[Object]) -> None:
        """Write the Job's status."""
        facts = job["metadata"]
        live = [pod for pod in pods if pod["status"].get("phase") not in _OVER]
        ready = sum(pod["status"].get("phase") == "Running" for pod in live)
        leaving = sum(bool(pod["metadata"].get("deletionTimestamp")) for pod in live)
        conditions = conditions_of(job, counts, is_still=not live)

        def edit(item: Object) -> None:
            status = item.setdefault("status", {})
            status |= {"active": len(live) - leaving, "ready": ready, "terminating": leaving}
            status |= {"succeeded": len(counts.completed), "failed": counts.failed_pods}
            status |= {
                "completedIndexes": format_indexes(counts.completed),
                "failedIndexes": format_indexes(counts.failed),
            }
            if counts.began is not None:
                status.setdefault("startTime", timestamp())
            known = {(each["type"], each["status"]) for each in status.get("conditions", ())}
            new = [each for each in conditions if (each["type"], each["status"]) not in known]
            kept = [
                each for each in status.get("conditions", ()) if each["type"] not in {n["type"] for n in new}
            ]
            status["conditions"] = kept + new
            if any(each["type"] == "Complete" for each in new):
                status["completionTime"] = timestamp()

        self._objects.change("Job", facts["namespace"], facts["name"], edit)


def delete_pod(objects: KubeObjects, pod: Object) -> None:
    """What a DELETE of a pod does: it is told to stop, and goes when that has been noted."""

    def edit(item: Object) -> None:
        item["metadata"].setdefault("deletionTimestamp", timestamp())

    objects.change("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"], edit)


def owned_pods(objects: KubeObjects, job: Object) -> list[Object]:
    """The pods of a Job."""
    _, pods = objects.list("Pod", job["metadata"]["namespace"])
    uid = job["metadata"]["uid"]
    return [pod for pod in pods if any(o["uid"] == uid for o in pod["metadata"].get("ownerReferences", ()))]
