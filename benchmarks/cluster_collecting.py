"""How soon user code runs in a pod, and how soon the values of many jobs are here.

Needs the environment of ../shared/cluster/testcluster. The five hundred jobs run on a node without a machine:
what their runners would store, this program stores, signed with each job's own key.
"""

from __future__ import annotations

import os
import secrets
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from cluster_jobs import IMAGE, KUBECONFIG, settings_for
from fake_node import fake_node
from measuring import Verdict, report, seconds

import kinetic_core
from kinetic_core._runner import codec, object_names, wire
from kinetic_core.backends.base import Backend, open_backend
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.connections import default_connections
from kinetic_core.jobs.signing import outcome_key

_JOBS = 500
_RUNS = 5
_AGE = """
import os
def age():
    with open("/proc/1/stat") as stat, open("/proc/uptime") as uptime:
        began = int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return float(uptime.read().split()[0]) - began
"""
"""Seconds since process 1 of a container began (proc(5): field 22 of stat; clock ticks are 10 ms)."""


def measure() -> list[Verdict]:
    api = ClusterApi(Target(KUBECONFIG))
    namespace = settings_for(f"bench-{secrets.token_hex(3)}")
    api.create("Namespace", "", {"metadata": {"name": namespace}})
    try:
        return [*starting(api, namespace), *collecting(api)]
    finally:
        api.delete("Namespace", "", namespace)


def starting(api: ClusterApi, namespace: str) -> list[Verdict]:
    """From the start of a container to user code, less what bare Python takes for the same."""
    place: dict[str, Any] = {}
    exec(_AGE, place)

    @kinetic_core.run(accelerator="cpu")
    def age() -> float:
        found: float = place["age"]()
        return found

    age.run_async().result(stream_logs=False)
    ours = [age.run_async().result(stream_logs=False) for _ in range(_RUNS)]
    bare = [bare_age(api, namespace) for _ in range(_RUNS)]
    note = f"{statistics.median(ours):.2f} s against {statistics.median(bare):.2f} s"
    taken = statistics.median(ours) - statistics.median(bare)
    return [Verdict("container starts -> user function, over bare Python", taken, 0.25, "s", note)]


def bare_age(api: ClusterApi, namespace: str) -> float:
    """The same of a bare pod that runs nothing but Python."""
    name = f"bare-{secrets.token_hex(4)}"
    container = {"name": "c", "image": IMAGE, "command": ["python3", "-c", f"{_AGE}\nprint(age())"]}
    spec = {"restartPolicy": "Never", "containers": [container]}
    api.create("Pod", namespace, {"metadata": {"name": name}, "spec": spec})
    while (api.get("Pod", namespace, name) or {"status": {}})["status"].get("phase") != "Succeeded":
        time.sleep(0.1)
    return float(api.pod_log(namespace, name, "c") or b"nan")


def collecting(api: ClusterApi) -> list[Verdict]:
    """The values of five hundred jobs that have ended, with their clean-up going on behind."""
    with fake_node(api) as options:
        return [Verdict(f"values of {_JOBS} ended jobs", _collected(options), 2.0, "s")]


def _collected(options: dict[str, Any]) -> float:
    @kinetic_core.run(accelerator="cpu", **options)
    def increment(n: int) -> int:
        return n + 1

    backend = open_backend("gke", default_connections())
    batch = increment.run_async_map(range(_JOBS), max_concurrent=None)
    told: set[str] = set()
    while len(told) < _JOBS:
        for index, job in enumerate(batch.jobs):
            if job is not None and job.job_id not in told and _told(backend, job, index + 1):
                told.add(job.job_id)
        time.sleep(0.2)
    batch.wait(timeout=300)
    values: list[int] = []
    taken = seconds(lambda: values.extend(batch.results()))
    assert values == list(range(1, _JOBS + 1))
    return taken


def _told(backend: Backend, job: kinetic_core.JobHandle, value: int) -> bool:
    """Store an outcome as the runner does; False if the Job is not there yet."""
    found = backend.get(job.namespace, job.job_id)
    if found is None:
        return False
    header = {"protocol": wire.PROTOCOL, "job_id": job.job_id, "attempt": 0, "author": "runner"}
    header |= {"state": "succeeded", "codec": "typed", "times": {}}
    parts = codec.encode(value)
    backend.store.create_if_absent(
        object_names.result(job.job_id), wire.encode_frame(header, parts, outcome_key(found[0]))
    )
    return True


if __name__ == "__main__":
    if not (KUBECONFIG and IMAGE):
        sys.exit("this needs ../shared/cluster/testcluster up, and its env evaluated")
    os.environ.setdefault("KINETIC_PACKAGE_ROOT", str(Path(__file__).parent))
    sys.exit(report(measure()))
