"""The rules of Indexed Jobs as pure functions: what a pod's end counts for, and what state a Job then has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kinetic_core.testing.kube_objects import Object, timestamp

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
