"""Pods of a slice of several hosts: their names, each other's addresses, one node pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinetic_core.backends.kubernetes.names import (
    HOST_INDEX,
    HOSTS_SERVICE,
    JOB_ID,
    NODE_POOL,
    SLICE,
    WORKER_INDEX,
)

COORDINATOR_PORT = 55527
"""Port on which host 0's JAX process listens for the others: JAX's own choice on Kubernetes."""

HOSTS_SERVICE_MANIFEST: Mapping[str, Any] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": HOSTS_SERVICE, "labels": {"app": "kinetic"}},
    "spec": {
        "clusterIP": "None",
        "selector": {SLICE: "true"},
        "publishNotReadyAddresses": True,  # hosts find each other before they are ready
    },
}
"""Service for all slices of a namespace: it only gives pods names, and outlives every job."""


def slice_environment(name: str, hosts: int) -> list[dict[str, Any]]:
    """Return the variables by which JAX and libtpu find this host and the others.

    `TPU_WORKER_ID` and `TPU_WORKER_HOSTNAMES` are all that JAX needs on TPUs. Elsewhere it reads
    `JAX_COORDINATOR_ADDRESS` and is told the rest: https://docs.jax.dev/en/latest/multi_process.html
    """
    names = [f"{name}-{index}.{HOSTS_SERVICE}" for index in range(hosts)]
    return _environment(names, f"metadata.annotations['{HOST_INDEX}']")


def set_environment(name: str, hosts: int) -> list[dict[str, Any]]:
    """Return the variables of `slice_environment` for a LeaderWorkerSet, which has a Service of its own name.

    The webhook of LeaderWorkerSets, which knows TPUs only, leaves a container with a TPU_WORKER_ID alone.
    """
    names = [f"{name}-0.{name}", *(f"{name}-0-{index}.{name}" for index in range(1, hosts))]
    return _environment(names, f"metadata.labels['{WORKER_INDEX}']")


def _environment(names: list[str], own_index: str) -> list[dict[str, Any]]:
    hosts = len(names)
    values = {
        "KINETIC_HOST_COUNT": str(hosts),
        "TPU_WORKER_HOSTNAMES": ",".join(names),
        "JAX_COORDINATOR_ADDRESS": f"{names[0]}:{COORDINATOR_PORT}",
        "JAX_NUM_PROCESSES": str(hosts),
    }
    index = {"fieldRef": {"fieldPath": own_index}}
    plain = [{"name": key, "value": value} for key, value in values.items()]
    own = ("KINETIC_HOST_INDEX", "TPU_WORKER_ID", "JAX_PROCESS_ID")
    return plain + [{"name": key, "valueFrom": index} for key in own]


def slice_affinity(job_id: str) -> dict[str, Any]:
    """Require one node pool, which is one slice, for all hosts of a job and no other job's.

    Two jobs that each held half of a slice would wait for each other for ever.
    """
    own = {"matchLabels": {JOB_ID: job_id}}
    others = {
        "matchExpressions": [
            {"key": SLICE, "operator": "Exists"},
            {"key": JOB_ID, "operator": "NotIn", "values": [job_id]},
        ]
    }
    return {
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": NODE_POOL, "labelSelector": own}
            ]
        },
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": NODE_POOL, "labelSelector": others, "namespaceSelector": {}}
            ]
        },
    }
