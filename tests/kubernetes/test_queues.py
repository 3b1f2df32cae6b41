"""A queue that is not there is told before anything is uploaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from kinetic_core.backends.kubernetes.job_objects import check_queue
from kinetic_core.errors import ClusterError, ConfigurationError


@dataclass
class Server:
    """What an API server has: Kueue's versions, if any, and queues by version, namespace and name."""

    served: tuple[str, ...] = ("v1beta1", "v1beta2")
    queues: set[tuple[str, str, str]] = field(default_factory=set)
    status: int | None = None

    def versions(self, group: str) -> frozenset[str]:
        assert group == "kueue.x-k8s.io"
        return frozenset(self.served)

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        if self.status is not None:
            raise ClusterError("no", self.status)
        return {} if (kind.partition("/")[2], namespace, name) in self.queues else None


def test_a_queue_that_is_there_is_used() -> None:
    check_queue(Server(queues={("v1beta2", "team", "research")}), "team", "research")
    check_queue(Server(("v1beta1",), {("v1beta1", "team", "research")}), "team", "research")


@pytest.mark.promise("batches: Kueue queue name; refusal without it", "no Kueue ever admits a job here")
def test_a_cluster_without_kueue_says_so() -> None:
    with pytest.raises(ConfigurationError, match=r"queue='research'.*install it"):
        check_queue(Server(served=()), "team", "research")


def test_a_queue_of_another_namespace_is_none() -> None:
    with pytest.raises(ConfigurationError, match="'team' has no LocalQueue"):
        check_queue(Server(queues={("v1beta2", "other", "research")}), "team", "research")


def test_who_may_not_read_queues_is_believed() -> None:
    check_queue(Server(status=403), "team", "research")
    with pytest.raises(ClusterError):
        check_queue(Server(status=500), "team", "research")


def test_a_version_that_is_not_known_is_not_asked() -> None:
    check_queue(Server(served=("v7",)), "team", "research")
