"""The inputs of batches that share Jobs: one looked at, or stopped, as if it were a job of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from kinetic_core._runner import wire
from kinetic_core.cluster.access import ClusterApi
from kinetic_core.cluster.index_view import index_view
from kinetic_core.cluster.informer import SELECTOR
from kinetic_core.cluster.names import GIVEN_UP, GROUP_ID, HOST_INDEX, JOB_NAME, PART
from kinetic_core.cluster.parts import child_of, indexes_of
from kinetic_core.errors import ClusterError, ClusterUnreachable, ConfigurationError

Object = dict[str, Any]

_LIVE = "status.phase!=Succeeded,status.phase!=Failed"
_SAMPLE = 20
_POLL_SECONDS = 0.2


class IndexedJobs:
    """The parts of batches on one cluster. Their pods are never listed all together."""

    def __init__(self, api: ClusterApi, stop_seconds: float) -> None:
        self._api, self._stop_seconds = api, stop_seconds

    def get(self, namespace: str, job_id: str) -> tuple[Object, list[Object]] | None:
        """An input's view of the last part that has it, and its pods; None if it is no part's."""
        found = self._find(namespace, job_id)
        if found is None:
            return None
        job, index, own = found
        pods = self._api.list("Pod", namespace, {"labelSelector": _own_pods(job, own)})["items"]
        return index_view(job, pods, (job["metadata"]["labels"][GROUP_ID], index), own)

    def stop(self, namespace: str, job_id: str) -> bool:
        """End what runs of an input and return when it is dead; False if it is no part's.

        Its cancel marker must be stored, else a pod follows that runs it. Raises ClusterUnreachable.
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
        """The inputs whose pods run now: a request that costs what runs, not what the batch has."""
        jobs = {job["metadata"]["name"]: indexes_of(job) for job in self.parts(namespace, group_id)}
        query = {"labelSelector": f"{GROUP_ID}={group_id},{PART}", "fieldSelector": "status.phase=Running"}
        pods = self._api.list("Pod", namespace, query)["items"] if jobs else []
        placed = ((pod["metadata"]["labels"]["job-name"], pod) for pod in pods)
        return {
            jobs[name][int(pod["metadata"]["labels"][HOST_INDEX])] for name, pod in placed if name in jobs
        }

    def some_waiting(self, namespace: str, job: Mapping[str, Any]) -> list[Object]:
        """A few of a part's pods that have not started: those of one part all wait for the same."""
        query = {
            "labelSelector": f"job-name={job['metadata']['name']}",
            "fieldSelector": "status.phase=Pending",
            "limit": str(_SAMPLE),
        }
        found: list[Object] = self._api.list("Pod", namespace, query)["items"]
        return found

    def give_up(self, namespace: str, job_id: str, failure: wire.Failure) -> None:
        """Write down why a part can never run, for all who look at its inputs. It is still to be ended."""
        note = {"metadata": {"annotations": {GIVEN_UP: json.dumps(failure.to_dict())}}}
        self._api.patch("Job", namespace, JOB_NAME.format(job_id), note)

    def parts(self, namespace: str, group_id: str) -> list[Object]:
        """The Jobs of a batch, the oldest first."""
        query = {"labelSelector": f"{SELECTOR},{GROUP_ID}={group_id},{PART}"}
        found = self._api.list("Job", namespace, query)["items"]
        return sorted(found, key=lambda job: int(job["metadata"]["labels"][PART]))

    def all(self, namespace: str) -> dict[str, list[Object]]:
        """One request."""
        found: dict[str, list[Object]] = {}
        for job in self._api.list("Job", namespace, {"labelSelector": f"{SELECTOR},{PART}"})["items"]:
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
        """The Job that runs an input, the input's index in the batch, and in the Job."""
        child = child_of(job_id)
        if child is None:
            return None
        for job in reversed(self.parts(namespace, child[0])):
            indexes = indexes_of(job)
            if child[1] in indexes:
                return job, child[1], indexes.index(child[1])
        return None


def _own_pods(job: Mapping[str, Any], own: int) -> str:
    return f"job-name={job['metadata']['name']},{HOST_INDEX}={own}"


def _runs(pod: Mapping[str, Any]) -> bool:
    """Whether a container of it may run: one that waits for a node finds the marker when it starts."""
    return bool((pod.get("spec") or {}).get("nodeName"))
