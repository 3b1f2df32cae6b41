"""Slices as LeaderWorkerSets: the set of a Job without pods, whose pods are shown as the Job's own.

The Job keeps what is known of the call (its key, its deadline, how it ended) for as long as a Job is kept.
The set holds nodes: it goes when the job has ended, and with its Job in any case. Facts about sets:
https://github.com/kubernetes-sigs/lws (leaderworkerset.x-k8s.io/v1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinetic_core._runner import wire
from kinetic_core._runner.wire import Failure, FailureClass
from kinetic_core.backends.kubernetes.names import (
    CANCELLED,
    CONTAINER,
    HOST_INDEX,
    IGNORED_COUNT,
    LEADER_WORKER_SET,
    QUEUE,
    WORKER,
    WORKER_INDEX,
)
from kinetic_core.backends.kubernetes.pods import RUNNER_GONE

Object = Mapping[str, Any]

API_VERSION = "leaderworkerset.x-k8s.io/v1"
_BROKEN = (wire.EXIT_NEVER_RETRY, wire.EXIT_NO_RUNNER)
"""Exit codes of containers in which no runner came to report; a container with a runner stays."""


def runs_in_set(job: Object) -> bool:
    """Return whether a LeaderWorkerSet runs the pods of this Job."""
    return LEADER_WORKER_SET in (job["metadata"].get("labels") or {})


def leader_worker_set(job: Object, uid: str = "") -> dict[str, Any]:
    """Build the LeaderWorkerSet whose pods run a Job; `uid` is the UID of that Job, its owner.

    Only the leader gets a token of the Kubernetes API, to delete the set when the job has ended.
    """
    facts, template = job["metadata"], job["spec"]["template"]
    pod = {key: value for key, value in template["spec"].items() if key != "restartPolicy"}
    labels, queue = dict(facts["labels"]), facts["annotations"].get(QUEUE)
    if queue is not None:
        labels[QUEUE] = queue
    metadata = {key: facts[key] for key in ("name", "namespace", "annotations")}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": facts["name"], "uid": uid}
    return {
        "apiVersion": API_VERSION,
        "kind": "LeaderWorkerSet",
        "metadata": {**metadata, "labels": labels, **({"ownerReferences": [owner]} if uid else {})},
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {
                "size": job["spec"]["completions"],
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": {**template, "spec": {**pod, "automountServiceAccountToken": True}},
                "workerTemplate": {**template, "spec": pod},
            },
        },
    }


def as_job_pod(pod: Object, attempt: int) -> dict[str, Any]:
    """Return a set's pod with the host and attempt that the Job controller would have noted."""
    facts = pod["metadata"]
    told = {HOST_INDEX: str(host_in_set(pod)), IGNORED_COUNT: str(attempt)}
    return {**pod, "metadata": {**facts, "annotations": {**(facts.get("annotations") or {}), **told}}}


def is_live(pod: Object) -> bool:
    """Return whether the pod holds a node, or will."""
    return (pod.get("status") or {}).get("phase") in ("Pending", "Running")


def waits_for_worker(job: Object) -> bool:
    """Return whether this Job is of a call that a worker runs, or will run: no pod was made for it."""
    return WORKER in (job["metadata"].get("labels") or {}) and job["spec"].get("parallelism") == 0


def end_without_pods(succeeded: bool) -> dict[str, int]:
    """Return the change of its spec by which a Job that has no pods ends.

    A Job with no completions left to do has succeeded; a Job whose deadline is over has failed.
    """
    return {"completions": 0, "parallelism": 0} if succeeded else {"activeDeadlineSeconds": 1}


def host_in_set(pod: Object) -> int:
    """Return the number of a set's pod in its slice."""
    return int((pod["metadata"].get("labels") or {}).get(WORKER_INDEX) or 0)


def set_view(
    job: Object, pods: list[dict[str, Any]], attempt: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the Job as its set's pods show it: failed if a container ended as every retry would.

    `attempt` is the last that began, which a Job without pods carries itself.
    """
    facts, status = job["metadata"], job.get("status") or {}
    annotations = {**(facts.get("annotations") or {}), IGNORED_COUNT: str(attempt)}
    told = list(status.get("conditions") or ())
    broken = next((end for pod in pods for end in _ends(pod) if end.get("exitCode") in _BROKEN), None)
    if broken is not None and CANCELLED not in annotations:
        message = f"the container exited with code {broken['exitCode']} before the runner could start"
        message = RUNNER_GONE if broken["exitCode"] == wire.EXIT_NO_RUNNER else message
        failure = Failure(FailureClass.CONFIGURATION, message, "start", exit_code=broken["exitCode"])
        failed = {"type": "Failed", "status": "True", "reason": "RunnerFailed", "failure": failure.to_dict()}
        told.append({**failed, "lastTransitionTime": broken.get("finishedAt")})
    status = {**status, "conditions": told}
    return {**job, "metadata": {**facts, "annotations": annotations}, "status": status}, pods


def without_set(view: Object) -> dict[str, Any]:
    """Return the Job as failed because its set is gone without a recorded end."""
    text = (
        "its LeaderWorkerSet is gone: it was deleted by hand, or its submitter died before it could be made"
    )
    failure = Failure(FailureClass.CONTROL_PLANE, text, "start")
    failed = {"type": "Failed", "status": "True", "reason": "SetDeleted", "failure": failure.to_dict()}
    status = view["status"]
    return {**view, "status": {**status, "conditions": [*status["conditions"], failed]}}


def _ends(pod: Object) -> list[Mapping[str, Any]]:
    """Return the current and the previous end of the job's container."""
    return [
        (each.get(name) or {}).get("terminated") or {}
        for each in (pod.get("status") or {}).get("containerStatuses") or ()
        for name in ("state", "lastState")
        if each.get("name") == CONTAINER
    ]
