"""A node of the test cluster without a machine, on which pods run no code."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kinetic_core.backends.kubernetes.client import ClusterApi


@contextmanager
def fake_node(api: ClusterApi) -> Iterator[dict[str, Any]]:
    """What a job needs to run there, as options: it is big enough for a thousand pods."""
    pool = f"bench-{secrets.token_hex(3)}"
    label = {"cloud.google.com/gke-nodepool": pool}
    size = {"cpu": "1000", "memory": "4Ti", "ephemeral-storage": "10Ti", "pods": "1000"}
    taint = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
    node = {
        "metadata": {
            "name": pool,
            "labels": {**label, "type": "kwok"},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [taint]},
        "status": {"capacity": size, "allocatable": size},
    }
    api.create("Node", "", node)
    try:
        yield {"node_selector": label, "tolerations": [{"operator": "Exists"}]}
    finally:
        api.delete("Node", "", pool)
