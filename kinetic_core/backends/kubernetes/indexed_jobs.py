"""Inputs of batches that share Jobs: each is observed, or stopped, as if it were a job of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.indexes import parse_indexes
from kinetic_core.backends.kubernetes.chunks import indexes_of, input_of, variable
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import (
    CANCELLED,
    CHUNK,
    GIVEN_UP,
    GROUP_ID,
    HOST_INDEX,
    JOB_ID,
    JOB_NAME,
    JOB_UID,
    OUTCOME_KEY,
    SUSPENDED,
    WAITING_FOR_SLOT,
)
from kinetic_core.backends.kubernetes.objects import Job
from kinetic_core.backends.kubernetes.watch_cache import SELECTOR
from kinetic_core.errors import ClusterError, ClusterUnreachable, ConfigurationError

ObjectView = Mapping[str, Any]


def index_view(
    job: ObjectView, pods: Sequence[ObjectView], child: tuple[str, int], own: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return Job and pods of input `child` (batch, index), which is index `own` of the chunk's Job.

    `pods` are those of this index. The Job carries the key of the input's outcome.
    """
    facts, status = job["metadata"], job.get("status") or {}
    annotations = dict(facts.get("annotations") or {})
    told = _ended(job, own, annotations)
    if told is None and not pods:
        message = "its turn has not come: the batch runs as many inputs at once as max_concurrent says"
        told = {"type": WAITING_FOR_SLOT, "status": "True", "message": message}
    suspended = Job(job).shown_conditions.get(SUSPENDED)
    if GIVEN_UP in annotations:
        annotations.pop(CANCELLED, None)  # it was how the Job was ended, not why
    view = {
        **job,
        "metadata": {
            **facts,
            "labels": {**facts["labels"], JOB_ID: object_names.input_id(*child)},
            "annotations": annotations,
        },
        "spec": {**job["spec"], "completions": 1, "template": _with_key(job, child[1])},
        "status": {**status, "conditions": [each for each in (told, suspended) if each is not None]},
    }
    return view, [_as_only_host(pod) for pod in pods]


def _ended(job: ObjectView, own: int, annotations: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the condition of an index that has ended, None if it has not."""
    if own in _indexes(job.get("status") or {}, "completedIndexes"):
        return {"type": "Complete", "status": "True"}
    failed: ObjectView = {"type": "Failed", "status": "True", "message": "it failed, and has no retries left"}
    whole: ObjectView = Job(job).shown_conditions.get("Failed") or {}
    if own not in _indexes(job.get("status") or {}, "failedIndexes"):
        if whole.get("status") != "True":
            return None
        failed = whole
    if GIVEN_UP in annotations:
        return {**failed, "reason": "NeverRan", "failure": json.loads(annotations[GIVEN_UP])}
    if failed is not whole:
        return dict(failed)
    if whole.get("reason") == "MaxFailedIndexesExceeded":
        text = "it was stopped: another input had failed, and cancel_running_on_fail was asked for"
        return {**whole, "reason": "Cancelled", "message": text}
    return dict(whole)


def _indexes(status: ObjectView, name: str) -> set[int]:
    return set(parse_indexes(status.get(name) or ""))


def _with_key(job: ObjectView, index: int) -> dict[str, Any]:
    template = job["spec"]["template"]
    container = template["spec"]["containers"][0]
    whole = variable(job, OUTCOME_KEY)
    assert whole is not None  # noqa: S101  every manifest of ours has it
    key = wire.input_key(bytes.fromhex(whole), index).hex()
    env = [{**each, "value": key} if each["name"] == OUTCOME_KEY else each for each in container["env"]]
    return {**template, "spec": {**template["spec"], "containers": [{**container, "env": env}]}}


def _as_only_host(pod: ObjectView) -> dict[str, Any]:
    """Return the pod as host 0: its index is the input it runs, not the host of a slice."""
    facts = pod["metadata"]
    kept = {key: value for key, value in (facts.get("annotations") or {}).items() if key != HOST_INDEX}
    return {**pod, "metadata": {**facts, "annotations": kept}}


Object = dict[str, Any]

_LIVE = "status.phase!=Succeeded,status.phase!=Failed"
_SAMPLE = 20
_POLL_SECONDS = 0.2


class IndexedJobs:
    """Chunks of batches on one cluster. Their pods are never listed all at once."""

    def __init__(self, api: ClusterApi, stop_seconds: float) -> None:
        self._api, self._stop_seconds = api, stop_seconds

    def get(self, namespace: str, job_id: str) -> tuple[Object, list[Object]] | None:
        """Return an input's view of the last chunk that has it, and its pods; None if no chunk has it."""
        found = self._find(namespace, job_id)
        if found is None:
            return None
        job, index, own = found
        pods = self._api.list("Pod", namespace, {"labelSelector": _own_pods(job, own)})["items"]
        return index_view(job, pods, (job["metadata"]["labels"][GROUP_ID], index), own)

    def stop(self, namespace: str, job_id: str) -> bool:
        """End an input's pods and return when they are dead; return False if no chunk has the input.

        The input's cancel marker must be stored before, else another pod runs it. Raises ClusterUnreachable.
        """
        found = self._find(namespace, job_id)
        if found is None:
            return False
        job, _, own = found
        query = {"labelSelector": _own_pods(job, own), "fieldSelector": _LIVE}
        give_up = time.monotonic() + self._stop_seconds
        while running := [pod for pod in self._api.list("Pod", namespace, query)["items"] if _runs(pod)]:
            for pod in running:
                if not pod["metadata"].get("deletionTimestamp"):
                    self._delete(namespace, pod)
            if time.monotonic() > give_up:
                raise ClusterUnreachable(
                    f"{job_id} is cancelled, but its pod is not proven dead after {self._stop_seconds:g} s: "
                    "a node may be unreachable. Nothing replaces it"
                )
            time.sleep(_POLL_SECONDS)
        return True

    def running(self, namespace: str, group_id: str) -> set[int]:
        """Return the inputs whose pods run now, with a request whose cost depends on running pods only."""
        jobs = {job["metadata"]["uid"]: indexes_of(job) for job in self.parts(namespace, group_id)}
        query = {"labelSelector": f"{GROUP_ID}={group_id},{CHUNK}", "fieldSelector": "status.phase=Running"}
        pods = self._api.list("Pod", namespace, query)["items"] if jobs else []
        labels = (pod["metadata"]["labels"] for pod in pods)
        placed = ((each.get(JOB_UID), int(each[HOST_INDEX])) for each in labels)
        return {jobs[uid][own] for uid, own in placed if uid in jobs}

    def some_waiting(self, namespace: str, job: Mapping[str, Any]) -> list[Object]:
        """Return a few of a chunk's pods that have not started: those of one chunk all wait for the same."""
        query = {
            "labelSelector": f"{JOB_UID}={job['metadata']['uid']}",
            "fieldSelector": "status.phase=Pending",
            "limit": str(_SAMPLE),
        }
        found: list[Object] = self._api.list("Pod", namespace, query)["items"]
        return found

    def give_up(self, namespace: str, job_id: str, failure: wire.Failure) -> None:
        """Record on a chunk why it can never run, for all observers of its inputs; does not end the chunk."""
        note = {"metadata": {"annotations": {GIVEN_UP: json.dumps(failure.to_dict())}}}
        self._api.patch("Job", namespace, JOB_NAME.format(job_id), note)

    def parts(self, namespace: str, group_id: str) -> list[Object]:
        """List the Jobs of a batch, the oldest first."""
        query = {"labelSelector": f"{SELECTOR},{GROUP_ID}={group_id},{CHUNK}"}
        found = self._api.list("Job", namespace, query)["items"]
        return sorted(found, key=lambda job: int(job["metadata"]["labels"][CHUNK]))

    def all(self, namespace: str) -> dict[str, list[Object]]:
        """List the Jobs of all batches by batch id, with one request."""
        found: dict[str, list[Object]] = {}
        for job in self._api.list("Job", namespace, {"labelSelector": f"{SELECTOR},{CHUNK}"})["items"]:
            found.setdefault(job["metadata"]["labels"][GROUP_ID], []).append(job)
        return found

    def _delete(self, namespace: str, pod: Object) -> None:
        try:
            self._api.delete("Pod", namespace, pod["metadata"]["name"], pod["metadata"]["uid"])
        except ClusterError as exc:
            if exc.status != 403:
                raise
            raise ConfigurationError(
                f"this account may not delete pods in namespace {namespace!r}, which is how one input of a "
                f"batch is stopped: {exc}. The role it needs is in docs/guides/clusters.md"
            ) from exc

    def _find(self, namespace: str, job_id: str) -> tuple[Object, int, int] | None:
        """Return the Job that runs an input, the input's index in the batch, and its index in the Job."""
        child = input_of(job_id)
        if child is None:
            return None
        for job in reversed(self.parts(namespace, child[0])):
            indexes = indexes_of(job)
            if child[1] in indexes:
                return job, child[1], indexes.index(child[1])
        return None


def _own_pods(job: Mapping[str, Any], own: int) -> str:
    return f"{JOB_UID}={job['metadata']['uid']},{HOST_INDEX}={own}"


def _runs(pod: Mapping[str, Any]) -> bool:
    """Return whether a container of the pod may run; without a node, it will find the cancel marker."""
    return bool((pod.get("spec") or {}).get("nodeName"))
