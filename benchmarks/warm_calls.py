"""Calls on a warm worker beside calls with a pod of their own, in one run: on this machine, and on a cluster.

`python benchmarks/warm_calls.py [CALLS]`; the cluster's part needs the environment of
../shared/cluster/testcluster, and is left out without it.
"""

from __future__ import annotations

import os
import secrets
import statistics
import sys
import tempfile
from pathlib import Path

from measuring import Verdict, report, seconds

import kinetic_core
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.jobs.warm import workers

KUBECONFIG = os.environ.get("KUBECONFIG", "")
_COLD = 5


def trivial(number: int) -> int:
    return number + 1


def compared(place: str, calls: int, limit: float) -> list[Verdict]:
    """Measure calls one after the other, by one client; the first warm one makes the worker."""
    options = {"accelerator": "cpu", "cpu": 0.1} if place == "cluster" else {"accelerator": "cpu"}
    cold_call = kinetic_core.run(**options)(trivial)
    warm_call = kinetic_core.run(**options, warm="2m")(trivial)
    cold = [seconds(lambda: cold_call.run_async(1).result()) for _ in range(_COLD)]
    warm_call.run_async(0).result()
    taken = sorted(seconds(lambda: warm_call.run_async(1).result()) for _ in range(calls))
    slow = taken[min(len(taken) - 1, len(taken) * 99 // 100)]
    note = f"with a pod of its own {statistics.median(cold):.3f} s"
    return [
        Verdict(f"warm call, {place}, p50 of {calls}", statistics.median(taken), limit, "s", note),
        Verdict(f"warm call, {place}, p99 of {calls}", slow, 3 * limit, "s"),
    ]


def stop_workers(namespace: str) -> None:
    from kinetic_core.backends.base import known_backend
    from kinetic_core.connections import default_connections

    backend = known_backend(None, default_connections())
    for worker in list(workers(backend, namespace)):
        kinetic_core.attach(worker.job_id).cancel()


def measure(calls: int) -> list[Verdict]:
    found = []
    with tempfile.TemporaryDirectory(prefix="kinetic-bench-") as home:
        os.environ |= {"KINETIC_LOCAL_STORE": home, "XDG_CACHE_HOME": home, "KINETIC_BACKEND": "local"}
        os.environ["KINETIC_PACKAGE_ROOT"] = str(Path(__file__).parent)
        found += compared("local", calls, 0.5)
        stop_workers("default")
    if not KUBECONFIG:
        return found
    namespace = f"bench-{secrets.token_hex(3)}"
    os.environ |= {
        "KINETIC_BACKEND": "gke",
        "KINETIC_KUBECONFIG": KUBECONFIG,
        "KINETIC_BUCKET": f"test-bucket/{namespace}",
        "KINETIC_CONTAINER_IMAGE": os.environ["KINETIC_TEST_IMAGE"],
        "KINETIC_NAMESPACE": namespace,
    }
    api = ClusterApi(Target(KUBECONFIG))
    api.create("Namespace", "", {"metadata": {"name": namespace}})
    try:
        found += compared("cluster", calls, 1.2)
        stop_workers(namespace)
    finally:
        api.delete("Namespace", "", namespace)
    return found


if __name__ == "__main__":
    sys.exit(report(measure(int(sys.argv[1]) if sys.argv[1:] else 100)))
