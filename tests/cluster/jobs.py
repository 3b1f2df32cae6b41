"""Functions that jobs of these tests run, and how they are watched."""

from __future__ import annotations

import os
import time
from typing import Any

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import JOB_ID
from tests.conftest import wait_for

on_cpu = kinetic_core.run(accelerator="cpu", cpu=0.1)
"""With a tenth of a core each: the only node for such jobs has two, for which tests would wait in turn."""
PREPARATION = "packing", "build", "upload"
"""Phases before a job's submission; the last one goes on until its Job is there."""


def pods(api: ClusterApi, handle: kinetic_core.JobHandle) -> list[dict[str, Any]]:
    query = {"labelSelector": f"{JOB_ID}={handle.job_id}"}
    found: list[dict[str, Any]] = api.list("Pod", handle.namespace, query)["items"]
    return found


def own_lines(log: str | None) -> list[str]:
    """The lines of user code; on this cluster the runner adds one that says that there is no TPU."""
    return [line for line in (log or "").splitlines() if "kinetic: asked for" not in line]


def evict(api: ClusterApi, pod: dict[str, Any]) -> None:
    """As draining a node does it, and what manages priorities."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    api.call("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)


def delete(api: ClusterApi, pod: dict[str, Any]) -> None:
    api.delete("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])


@on_cpu
def greet(name: str) -> str:
    print(f"greeting {name}")
    return f"hello {name}"


@on_cpu
def sleep(seconds: float) -> str:

    print("sleeping", flush=True)
    time.sleep(seconds)
    return "awake"


def count(seconds: int) -> str:
    for number in range(seconds):
        print(f"second {number}", flush=True)
        time.sleep(1)
    return os.environ["KINETIC_POD_UID"]


def running(handle: kinetic_core.JobHandle) -> None:
    wait_for(lambda: handle.status() is JobStatus.RUNNING, 60)
