"""What of the test cluster a test may stop, lose and start: its programs, and the nodes that run jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.backends.kubernetes.client import ClusterApi

NODES = ("node-3", "node-4")
"""The two hosts of a slice."""
PAIR = {"kinetic.test/pair": "1"}
"""A label for some of them, as a node selector of jobs."""
TPU_TAINT: list[dict[str, Any]] = [{"key": "google.com/tpu", "operator": "Exists"}]
"""The toleration that lets any job run there."""
TPU = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
"""The taint of the nodes with TPUs."""
_OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "value": "dead", "effect": "NoExecute"}


def cluster_tool(*arguments: str) -> None:
    """Run the test cluster's program; skips the test where there is none."""
    program = Path(os.environ.get("TESTCLUSTER", "../shared/cluster/testcluster"))
    if not program.exists():
        pytest.skip(f"no {program} to {' '.join(arguments)} with")
    subprocess.run([program, *arguments], check=True, capture_output=True)


@contextmanager
def stopped(part: str) -> Iterator[None]:
    """A program of the cluster is not there."""
    cluster_tool("stop", part)
    try:
        yield
    finally:
        cluster_tool("start", part)


def add_to_pair(api: ClusterApi, node: str) -> None:
    """Let jobs with `PAIR` as their node selector run there, too."""
    api.patch("Node", "", node, {"metadata": {"labels": PAIR}})


@contextmanager
def restored(api: ClusterApi) -> Iterator[str]:
    """A node to stop or lose. It is back in the end, and nothing is left of what was said of the nodes."""
    cluster_tool("status")
    try:
        yield NODES[1]
    finally:
        facts = {"labels": dict.fromkeys(PAIR)}
        for node in NODES:
            api.patch("Node", "", node, {"metadata": facts, "spec": {"taints": [TPU]}})
        cluster_tool("start", NODES[1])


@contextmanager
def relabelled(api: ClusterApi, nodes: Sequence[str], accelerator: str) -> Iterator[None]:
    """Let nodes play hosts of other hardware, of as many chips a host, by its labels."""
    chosen = parse_accelerator(accelerator)
    count = {"cloud.google.com/gke-accelerator-count": str(chosen.chips_per_host)}
    labels = {**count, **chosen.node_selector()}
    before: dict[str, dict[str, str]] = {}
    try:
        for node in nodes:
            found: dict[str, Any] = api.get("Node", "", node) or {}
            before[node] = found["metadata"]["labels"]
            api.patch("Node", "", node, {"metadata": {"labels": labels}})
        yield
    finally:
        for node, had in before.items():
            api.patch("Node", "", node, {"metadata": {"labels": {name: had.get(name) for name in labels}}})


def give_up(api: ClusterApi, node: str) -> None:
    """As an administrator, or the cloud's controller, gives up a node that is dead."""
    facts: dict[str, Any] = api.get("Node", "", node) or {}
    api.patch("Node", "", node, {"spec": {"taints": [*facts["spec"]["taints"], _OUT_OF_SERVICE]}})


def kill_everything_of(job_id: str) -> None:
    """Kill, at once, every process of a job on this machine, once the runner's note is written."""
    time.sleep(1.5)  # the runner looks once a second when nothing is printed
    mine = f"KINETIC_JOB_ID={job_id}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mine in process.read_bytes().split(b"\0"):
                found.append(int(process.parent.name))
        except OSError:
            continue  # it has ended, or is the kernel's
    assert found
    for pid in sorted(found):
        os.kill(pid, signal.SIGSTOP)
    for pid in sorted(found):
        os.kill(pid, signal.SIGKILL)


def is_ready(api: ClusterApi, node: str) -> bool:
    """Whether its kubelet has told the API server lately that it is well."""
    found: dict[str, Any] = api.get("Node", "", node) or {}
    return any((each["type"], each["status"]) == ("Ready", "True") for each in found["status"]["conditions"])
