"""What mapped pods cost Airflow and the cluster, beside KubernetesPodOperator(deferrable=True).

    .venv-airflow/bin/python benchmarks/mapped_pods.py [INSTANCES [TURNS [SECONDS]]]

SECONDS is how long the function sleeps; the operator's trigger polls all the while. Needs the environment of
../shared/cluster/testcluster. One Airflow with the LocalExecutor runs both DAGs, and that of a third task,
`@task.kubernetes(deferrable=True)`, whose figures are shown beside, by
turns: the same function, image, size of a pod, namespace and pool, whose slots deferred tasks keep. The
operator's pods print their value and return none: with its sidecar they would take longer. Compared are the
time from the first task queued to the last one ended, the processor time of the triggerer with its children,
and the requests that workers and triggerer make to the Kubernetes API, from its audit log. Of each figure the
best turn counts: in its first one a triggerer imports what triggers need, and builds the API through which
they reach XComs.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from an_airflow import airflow_with
from cluster_jobs import AUDIT, IMAGE, KUBECONFIG, audited
from measuring import Verdict, report

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target

_DEFAULTS = (200, 2, 0)
"""Instances, turns, seconds."""
_SLOTS = 32
"""Pods at once, at most."""
_SECONDS = 3600.0
_PAGE = 100


@dataclass(frozen=True)
class Cost:
    """`wall` and `triggerer` in seconds; `tries` of all instances together."""

    wall: float
    triggerer: float
    requests: int
    tries: int


def processor_time(pid: int) -> float:
    """User and system seconds of a process, its living descendants, and those that they have waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [each.read_text().split() for each in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # it has ended meanwhile
        return 0.0
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_time(int(child)) for listed in children for child in listed)


def instances_of(airflow: Any, dag_id: str, run_id: str, count: int) -> list[dict[str, Any]]:
    path = f"/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances?limit={_PAGE}"
    pages = [airflow.api.call("GET", f"{path}&offset={offset}") for offset in range(0, count, _PAGE)]
    return [each for page in pages for each in page["task_instances"]]


def one_turn(airflow: Any, dag_id: str, namespace: str, count: int) -> Cost:
    """A run of a DAG, all of whose instances must succeed; nobody else has things in that namespace."""
    triggerer = airflow.processes["triggerer"].pid
    place, before = AUDIT.stat().st_size, processor_time(triggerer)
    run_id = airflow.run(dag_id, timeout=_SECONDS)
    airflow.until(lambda: airflow.api.run_state(dag_id, run_id) in ("success", "failed"), _SECONDS, dag_id)
    spent = processor_time(triggerer) - before
    asked = Counter(_kind(event) for event in audited(place) if _namespace(event) == namespace)
    instances = instances_of(airflow, dag_id, run_id, count)
    states = Counter(each["state"] for each in instances)
    if states != {"success": count}:
        raise AssertionError(f"the run of {dag_id} is nothing to compare: {states}")
    queued, ended = (
        choose(datetime.fromisoformat(each[name]) for each in instances)
        for choose, name in ((min, "queued_when"), (max, "end_date"))
    )
    tries = sum(each["try_number"] for each in instances)
    cost = Cost((ended - queued).total_seconds(), spent, asked.total(), tries)
    print(f"{dag_id}: {cost}, load {os.getloadavg()[0]:.1f}", flush=True)
    for kind, number in asked.most_common(12):
        print(f"{number / count:8.2f} {kind}", flush=True)
    return cost


def _kind(event: dict[str, Any]) -> str:
    """A request by verb and kind of object; both providers read logs and status as objects of their own."""
    about = event.get("objectRef", {})
    parts = (event["verb"], about.get("resource", event["requestURI"]), about.get("subresource"))
    return " ".join(filter(None, parts))


def _namespace(event: dict[str, Any]) -> str:
    return str(event.get("objectRef", {}).get("namespace", ""))


def on_cluster(namespace: str, count: int, **more: str) -> Callable[[dict[str, str]], None]:
    """What lets an Airflow run its jobs there: a change of its components' environment."""

    def change(environment: dict[str, str]) -> None:
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each leg compiles what it imports
        environment |= {
            "BENCHMARK_INSTANCES": str(count),
            "BENCHMARK_NAMESPACE": namespace,
            "KINETIC_BACKEND": "gke",
            "KINETIC_KUBECONFIG": KUBECONFIG,
            "KINETIC_BUCKET": f"test-bucket/{namespace}",
            "KINETIC_CONTAINER_IMAGE": IMAGE,
            **more,
        }

    return change


def measure(count: int, turns: int, seconds: int) -> list[Verdict]:
    namespace = f"bench-{secrets.token_hex(3)}"
    connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": KUBECONFIG}}
    told = {
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(connection),
        "BENCHMARK_SECONDS": str(seconds),
    }
    api = ClusterApi(Target(KUBECONFIG))
    api.create("Namespace", "", {"metadata": {"name": namespace}})
    try:
        with airflow_with("mapped_pods_*.py", on_cluster(namespace, count, **told)) as airflow:
            pool = {"name": "pods", "slots": _SLOTS, "include_deferred": True}
            airflow.api.call("POST", "/pools", pool)
            rounds = [
                [
                    one_turn(airflow, dag_id, namespace, count)
                    for dag_id in ("operator", "kinetic", "decorator")
                ]
                for _ in range(turns)
            ]
    finally:
        api.delete("Namespace", "", namespace)
    theirs, ours, beside = (
        Cost(*(min(getattr(cost, each.name) for cost in costs) for each in fields(Cost)))
        for costs in zip(*rounds, strict=True)
    )
    print(
        f"@task.kubernetes beside: {beside.wall:.0f} s, triggerer {beside.triggerer:.1f} s, "
        f"{beside.requests} requests"
    )
    return compared(count, ours, theirs)


def compared(count: int, ours: Cost, theirs: Cost) -> list[Verdict]:
    return [
        Verdict(
            f"{count} mapped @task.kinetic / KubernetesPodOperator: time",
            ours.wall / theirs.wall,
            0.7,
            "x",
            f"{ours.wall:.0f} s and {theirs.wall:.0f} s",
        ),
        Verdict(
            "the same: processor time of the triggerer",
            ours.triggerer / theirs.triggerer,
            0.3,
            "x",
            f"{ours.triggerer:.1f} s and {theirs.triggerer:.1f} s",
        ),
        Verdict(
            "the same: requests to the Kubernetes API",
            ours.requests / theirs.requests,
            0.3,
            "x",
            f"{ours.requests} and {theirs.requests}",
        ),
    ]


if __name__ == "__main__":
    if not (KUBECONFIG and IMAGE and AUDIT.exists()):
        sys.exit("this needs ../shared/cluster/testcluster up, and its env evaluated")
    load = os.getloadavg()[0]
    status = report(measure(*map(int, sys.argv[1:]), *_DEFAULTS[len(sys.argv) - 1 :]))
    print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    sys.exit(status)
