"""Jobs that LeaderWorkerSets run: looked at as Jobs with pods, and ended with their sets."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kinetic_core._runner import wire
from kinetic_core.cluster.access import ClusterApi
from kinetic_core.cluster.connecting import Target
from kinetic_core.cluster.informer import SINGLE
from kinetic_core.cluster.names import CANCELLED, JOB_ID
from kinetic_core.cluster.pod_sets import (
    API_VERSION,
    as_job_pod,
    host_in_set,
    is_live,
    runs_in_set,
    set_view,
    without_set,
)
from kinetic_core.cluster.verdict import observe, seconds
from kinetic_core.errors import (
    BackendUnavailable,
    ClusterError,
    ConfigurationError,
    InvalidRequest,
    ObjectNotFound,
)
from kinetic_core.model.job import JobSpec
from kinetic_core.storage.protocol import ObjectStore

Object = dict[str, Any]

_KIND = "LeaderWorkerSet"
_ASK_SECONDS = 1.0
_REMEMBERED = 10_000
_MAKING_SECONDS = 90.0
"""After its Job: longer than a submitter tries (`gke.creation`)."""


@functools.cache
def has_sets(target: Target) -> bool:
    """Whether the cluster has LeaderWorkerSets: asked once for a cluster and process."""
    group, _, version = API_VERSION.partition("/")
    return version in ClusterApi(target).versions(group)


@functools.cache
def may_use_sets(target: Target, namespace: str) -> bool:
    """Whether it has them, and this account may create them there: asked once."""
    group, _, _ = API_VERSION.partition("/")
    return has_sets(target) and ClusterApi(target).may("create", group, "leaderworkersets", namespace)


def check_set(target: Target, spec: JobSpec) -> None:
    """Raises BackendUnavailable if the cluster has no sets, InvalidRequest for what they cannot do."""
    if not has_sets(target):
        raise BackendUnavailable(
            "backend 'pathways' needs LeaderWorkerSets, which this cluster has not: install them "
            "(https://lws.sigs.k8s.io), or run the slice as a Job with backend='gke'"
        )
    if spec.pod.lease is not None:
        raise InvalidRequest("lease= is for Jobs: leave it out, or ask for backend='gke'")


class LeaderWorkerSets:
    """The sets of one cluster, for the jobs of one store, where attempts of their pods are counted."""

    def __init__(self, api: ClusterApi, store: ObjectStore) -> None:
        self._api, self._store = api, store
        self._attempts: dict[str, int] = {}
        """Of pods that have begun, by UID."""
        self._asked: dict[tuple[str, int], tuple[float, list[str]]] = {}
        """When (monotonic) a job's host was asked for, and the UIDs of its pods that had begun."""

    def view(self, job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> tuple[Object, list[Object]]:
        """The Job and its set's pods, as if the Job controller had made them."""
        job_id = job["metadata"]["labels"][JOB_ID]
        numbered = [as_job_pod(pod, self._attempt(job_id, pod)) for pod in pods]
        last = 0 if pods else max(0, len(self._begun(job_id, 0)) - 1)
        view, shown = set_view(job, numbered, last)
        lost = not any(map(is_live, pods)) and self._is_gone(view)
        return (without_set(view), shown) if lost else (view, shown)

    def _is_gone(self, job: Mapping[str, Any]) -> bool:
        """Whether a Job that has not ended lacks its set, for longer than it takes to make it."""
        facts, made = job["metadata"], seconds(job["metadata"].get("creationTimestamp"))
        if made is None or time.time() - made < _MAKING_SECONDS or observe(job, []).is_terminal:
            return False
        if CANCELLED in facts["annotations"]:
            return False  # the Job itself is about to say so
        try:
            return self._api.get(_KIND, facts["namespace"], facts["name"]) is None
        except ClusterError as exc:
            if exc.status != 403:
                raise
            return False

    def delete(self, namespace: str, name: str) -> None:
        """Its pods follow, each with its grace. Raises ConfigurationError if this account may not."""
        try:
            self._api.delete(_KIND, namespace, name)
        except ClusterError as exc:
            if exc.status != 403:
                raise
            raise ConfigurationError(
                f"this account may not delete LeaderWorkerSets in namespace {namespace!r}, so the slice is "
                f"held: {exc}. The role it needs is in docs/guides/clusters.md"
            ) from exc

    def has_pods(self, job: Mapping[str, Any]) -> bool:
        """Whether the set of a Job, deleted or not, has pods left; False for any other Job."""
        facts = job["metadata"]
        query = {"labelSelector": f"{SINGLE},{JOB_ID}={facts['labels'][JOB_ID]}", "limit": "1"}
        return runs_in_set(job) and bool(self._api.list("Pod", facts["namespace"], query)["items"])

    def finish(self, namespace: str, name: str, succeeded: bool) -> None:
        """Delete the set, and let its Job say how it ended: then it is kept for as long as others are.

        A Job of no completions has all that it wants; one that has had its time has failed.
        """
        self.delete(namespace, name)
        wanted = {"completions": 0, "parallelism": 0} if succeeded else {"activeDeadlineSeconds": 1}
        self._api.patch("Job", namespace, name, {"spec": wanted})

    def _attempt(self, job_id: str, pod: Mapping[str, Any]) -> int:
        """Which of its host's pods it is; one that has not begun will be the next."""
        uid = pod["metadata"]["uid"]
        if uid in self._attempts:
            return self._attempts[uid]
        begun = self._begun(job_id, host_in_set(pod))
        if uid not in begun:
            return len(begun)
        if len(self._attempts) >= _REMEMBERED:
            self._attempts.clear()
        self._attempts[uid] = begun.index(uid)
        return self._attempts[uid]

    def _begun(self, job_id: str, host: int) -> list[str]:
        """The pods of a host that have begun, as they claimed their attempts; asked once a second at most."""
        asked, known = self._asked.get((job_id, host), (float("-inf"), []))
        if time.monotonic() - asked < _ASK_SECONDS:
            return known
        begun = list(known)
        while True:
            try:
                claim = self._store.read(wire.claim_object(job_id, len(begun), host))
            except ObjectNotFound:
                break
            begun.append(json.loads(claim)["pod_uid"])
        if len(self._asked) >= _REMEMBERED:
            self._asked.clear()
        self._asked[job_id, host] = time.monotonic(), begun
        return begun
