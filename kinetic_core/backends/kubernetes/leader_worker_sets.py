"""Jobs that LeaderWorkerSets run: observed as Jobs with pods, and ended with their sets."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from kinetic_core.backends.kubernetes.attempts import ClaimedAttempts
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.names import CANCELLED, JOB_ID
from kinetic_core.backends.kubernetes.objects import seconds
from kinetic_core.backends.kubernetes.set_objects import (
    API_VERSION,
    as_job_pod,
    end_without_pods,
    host_in_set,
    is_live,
    runs_in_set,
    set_view,
    without_set,
)
from kinetic_core.backends.kubernetes.verdict import observe
from kinetic_core.backends.kubernetes.watch_cache import SINGLE
from kinetic_core.connections import Connections
from kinetic_core.errors import (
    BackendUnavailable,
    ClusterError,
    ConfigurationError,
    InvalidRequest,
)
from kinetic_core.job import JobSpec
from kinetic_core.store.protocol import ObjectStore

Object = dict[str, Any]

_KIND = "LeaderWorkerSet"
_MAKING_SECONDS = 90.0
"""Seconds after the creation of a Job until its set must exist: longer than a submitter tries."""


def has_sets(target: Target, connections: Connections) -> bool:
    """Return whether the cluster has LeaderWorkerSets; asked once per cluster and client."""
    group, _, version = API_VERSION.partition("/")
    return connections.get(
        (has_sets, target), lambda: version in ClusterApi(target, connections).versions(group)
    )


def may_use_sets(target: Target, connections: Connections, namespace: str) -> bool:
    """Return whether the cluster has LeaderWorkerSets that this account may create there; asked once."""
    group, _, _ = API_VERSION.partition("/")
    return has_sets(target, connections) and connections.get(
        (may_use_sets, target, namespace),
        lambda: ClusterApi(target, connections).may("create", group, "leaderworkersets", namespace),
    )


def check_set(target: Target, connections: Connections, spec: JobSpec) -> None:
    """Raise BackendUnavailable if the cluster has no sets, InvalidRequest for unsupported options."""
    if not has_sets(target, connections):
        raise BackendUnavailable(
            "backend 'pathways' needs LeaderWorkerSets, which this cluster lacks: install them "
            "(https://lws.sigs.k8s.io), or run the slice as a Job with backend='gke'"
        )
    if spec.pod.lease is not None:
        raise InvalidRequest("lease= is for Jobs: leave it out, or ask for backend='gke'")


class LeaderWorkerSets:
    """Sets of one cluster, for the jobs of one store, which counts the attempts of their pods."""

    def __init__(self, api: ClusterApi, store: ObjectStore) -> None:
        self._api, self._attempts = api, ClaimedAttempts(store)

    def view(self, job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> tuple[Object, list[Object]]:
        """Return the Job and its set's pods, as if the Job controller had made them."""
        numbered = [as_job_pod(pod, self._attempt(job, pod)) for pod in pods]
        last = 0 if pods else max(0, len(self._attempts.claims(job, 0)) - 1)
        view, shown = set_view(job, numbered, last)
        lost = not any(map(is_live, pods)) and self._is_gone(view)
        return (without_set(view), shown) if lost else (view, shown)

    def _is_gone(self, job: Mapping[str, Any]) -> bool:
        """Return whether a Job that has not ended lacks its set, for longer than creating the set takes."""
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
        """Delete a set, and its pods with their grace. Raises ConfigurationError if this account may not."""
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
        """Return whether the set of a Job, deleted or not, has pods left; False for any other Job."""
        facts = job["metadata"]
        query = {"labelSelector": f"{SINGLE},{JOB_ID}={facts['labels'][JOB_ID]}", "limit": "1"}
        return runs_in_set(job) and bool(self._api.list("Pod", facts["namespace"], query)["items"])

    def finish(self, namespace: str, name: str, succeeded: bool) -> None:
        """Delete a set, and let its Job say how it ended, so that it is kept as long as other Jobs."""
        self.delete(namespace, name)
        self._api.patch("Job", namespace, name, {"spec": end_without_pods(succeeded)})

    def _attempt(self, job: Mapping[str, Any], pod: Mapping[str, Any]) -> int:
        """Return the attempt of a pod on its host; a pod that has not begun will be the next attempt."""
        host = host_in_set(pod)
        claim = self._attempts.claim(job, pod, host)
        return len(self._attempts.claims(job, host)) if claim is None else claim.number
