"""Whether a cluster has the queue a job asks for: without it the job would stay suspended for ever."""

from __future__ import annotations

from typing import Protocol

from kinetic_core.cluster.access import Object
from kinetic_core.errors import ClusterError, ConfigurationError

_GROUP = "kueue.x-k8s.io"
_VERSIONS = ("v1beta2", "v1beta1")
"""Of Kueue's API, which differ in nothing that is read here."""


class Reader(Protocol):
    """What of `ClusterApi` is needed."""

    def versions(self, group: str) -> frozenset[str]:
        """Those of an API group that the server has."""

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object, None if there is none."""


def check_queue(api: Reader, namespace: str, queue: str) -> None:
    """Raises ConfigurationError if the cluster has no Kueue, or the namespace no such LocalQueue.

    A role that may not read queues is believed.
    """
    try:
        served = api.versions(_GROUP)
        if not served:
            raise ConfigurationError(
                f"queue={queue!r} is a queue of Kueue, which this cluster does not have: install it "
                "(`kinetic up --kueue`, or https://kueue.sigs.k8s.io/docs/installation/), or leave queue= out"
            )
        version = next((one for one in _VERSIONS if one in served), None)
        if version is not None and api.get(f"LocalQueue/{version}", namespace, queue) is None:
            raise ConfigurationError(
                f"queue={queue!r}: namespace {namespace!r} has no LocalQueue of that name. `kubectl get "
                f"localqueues -n {namespace}` names those it has"
            )
    except ClusterError as exc:
        if exc.status != 403:
            raise
