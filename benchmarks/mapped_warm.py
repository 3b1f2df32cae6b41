"""A mapped task on four warm workers of the test cluster, beside the same task with a pod for each instance.

    .venv-airflow/bin/python benchmarks/mapped_warm.py [INSTANCES [TURNS]]

Needs the environment of ../shared/cluster/testcluster. One Airflow with the LocalExecutor runs both DAGs by
turns: the same trivial function, image, size of a pod and namespace, and a pool of four slots, which deferred
tasks keep. Of each DAG the best turn counts.
"""

from __future__ import annotations

import os
import secrets
import sys

from an_airflow import airflow_with
from cluster_jobs import KUBECONFIG
from mapped_pods import on_cluster, one_turn
from measuring import Verdict, report

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target

_DEFAULTS = (200, 2)
"""Instances, turns."""
_SLOTS = 4


def measure(count: int, turns: int) -> list[Verdict]:
    namespace = f"bench-{secrets.token_hex(3)}"
    api = ClusterApi(Target(KUBECONFIG))
    api.create("Namespace", "", {"metadata": {"name": namespace}})
    try:
        with airflow_with("mapped_warm_dags.py", on_cluster(namespace, count)) as airflow:
            airflow.api.call("POST", "/pools", {"name": "four", "slots": _SLOTS, "include_deferred": True})
            pairs = [
                [one_turn(airflow, dag_id, namespace, count).wall for dag_id in ("pods", "warm")]
                for _ in range(turns)
            ]
    finally:
        api.delete("Namespace", "", namespace)
    pods, warm = (min(walls) for walls in zip(*pairs, strict=True))
    what = f"{count} mapped tasks on {_SLOTS} warm workers / with a pod each"
    return [Verdict(what, warm / pods, 0.5, "x", f"{warm:.0f} s and {pods:.0f} s")]


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    load = os.getloadavg()[0]
    status = report(measure(*given, *_DEFAULTS[len(given) :]))
    print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    sys.exit(status)
