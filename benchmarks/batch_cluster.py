"""A batch task of 10,000 inputs on the test cluster, in a real Airflow: what it takes beyond its pods.

    .venv-airflow/bin/python benchmarks/batch_cluster.py [INPUTS]

Needs the environment of ../shared/cluster/testcluster. The pods go to a node without a machine, on which they
succeed at once. It is of another pool until this program has stored what their runners would, signed with
each input's own key, and for a minute at least, in which the requests of the task's trigger are counted. Then
the cluster runs the pods, and a plain task checks every value.

Beyond the cluster's own time, which is that from the creation of the first Job to the completion of the last
one, are the first leg up to that creation, and all from that completion to the end of the task in Airflow.
Kubernetes tells both in whole seconds, rounded down.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from an_airflow import airflow_with
from cluster_jobs import AUDIT, IMAGE, KUBECONFIG, audited, settings_for
from fake_node import fake_node
from mapped_pods import on_cluster
from measuring import Verdict, report

from kinetic_core._runner import codec, object_names, wire
from kinetic_core.backends.base import Backend, open_backend
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.connections import default_connections
from kinetic_core.jobs.signing import key_id_of, outcome_key

_INPUTS = 10_000
_SECONDS = 3600.0
_FOLLOWED = 60.0
_POOL = "cloud.google.com/gke-nodepool"


def measure(count: int) -> list[Verdict]:
    namespace = settings_for(f"bench-{secrets.token_hex(3)}")
    api = ClusterApi(Target(KUBECONFIG))
    api.create("Namespace", "", {"metadata": {"name": namespace}})
    try:
        with fake_node(api) as options:
            told = on_cluster(namespace, count, BENCHMARK_NODE=json.dumps(options))
            node = options["node_selector"][_POOL]
            api.patch("Node", "", node, {"metadata": {"labels": {_POOL: "closed"}}})
            with airflow_with("batch_cluster_dags.py", told) as airflow:
                backend = open_backend("gke", default_connections())
                return one_run(airflow, api, backend, namespace, node, count)
    finally:
        api.delete("Namespace", "", namespace)


def one_run(
    airflow: Any, api: ClusterApi, backend: Backend, namespace: str, node: str, count: int
) -> list[Verdict]:
    run_id = airflow.run("batch", timeout=_SECONDS)
    group_id = airflow.until(lambda: next(iter(jobs_of(backend, namespace)), None), 300, "a batch")
    place, began = AUDIT.stat().st_size, time.monotonic()
    tell(backend, jobs_of(backend, namespace)[group_id][0], group_id, range(count))
    stored = time.monotonic() - began
    time.sleep(max(0.0, _FOLLOWED - stored))
    minutes = (time.monotonic() - began) / 60
    own = [each for each in audited(place) if each.get("objectRef", {}).get("namespace") == namespace]
    api.patch("Node", "", node, {"metadata": {"labels": {_POOL: node}}})
    last: list[Mapping[str, Any]] = []

    def is_over() -> bool:
        last[:] = jobs_of(backend, namespace).get(group_id) or last  # they are removed at the end
        return airflow.api.run_state("batch", run_id) in ("success", "failed")

    airflow.until(is_over, _SECONDS, "the end of the run")
    work, check = (
        {each["task_id"]: each for each in airflow.api.task_instances("batch", run_id)}[name]
        for name in ("work", "check")
    )
    if (work["state"], work["try_number"], check["state"]) != ("success", 1, "success"):
        raise AssertionError(f"nothing to compare: {work['state']}, {work['try_number']}, {check['state']}")
    if not last:
        raise AssertionError("the Jobs were gone before their pods had a node: nothing is measured")
    created = min(moment(job["metadata"]["creationTimestamp"]) for job in last)
    completed = max(moment(job["status"]["completionTime"]) for job in last)
    first = created - moment(work["start_date"])
    after = moment(work["end_date"]) - completed
    print(
        f"stored in {stored:.0f} s, the cluster ran {completed - created:.0f} s, values checked in "
        f"{moment(check['end_date']) - moment(check['start_date']):.0f} s"
    )
    note = f"submitted in {first:.1f} s, ended {after:.1f} s after the last Job"
    return [
        Verdict(f"{count} inputs on fake nodes: beyond the cluster's own time", first + after, 15, "s", note),
        Verdict("the same, followed: API-server requests a minute", (len(own) - 1) / minutes, 20, ""),
    ]


def jobs_of(backend: Backend, namespace: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the Jobs of a namespace by batch."""
    assert backend.parts is not None
    return backend.parts.all(namespace)


def moment(text: str) -> float:
    """Return Unix seconds of a time of Airflow's or Kubernetes'."""
    return datetime.fromisoformat(text).timestamp()


def tell(backend: Backend, job: Mapping[str, Any], group_id: str, inputs: Iterable[int]) -> None:
    """Store what the runners of these inputs would."""
    key, key_id = outcome_key(job) or b"", key_id_of(job)

    def one(index: int) -> None:
        child, own = object_names.input_id(group_id, index), wire.input_key(key, index)
        header: dict[str, object] = {
            "protocol": wire.PROTOCOL,
            "job_id": child,
            "attempt": 0,
            "key_id": key_id,
        }
        header |= {"state": "succeeded", "codec": "typed", "times": {}, "author": "runner"}
        frame = wire.encode_frame(header, codec.encode(index + 1), own)
        sealed = wire.sealed_state(child, "succeeded", key_id, own)
        backend.store.create_if_absent(object_names.result(child), frame, {wire.STATE: sealed})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, inputs))


if __name__ == "__main__":
    if not (KUBECONFIG and IMAGE and AUDIT.exists()):
        sys.exit("this needs ../shared/cluster/testcluster up, and its env evaluated")
    load = os.getloadavg()[0]
    status = report(measure([*map(int, sys.argv[1:]), _INPUTS][0]))
    print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    sys.exit(status)
