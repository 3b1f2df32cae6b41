"""What a batch task of 10,000 inputs adds to the time that the cluster takes for its pods.

    .venv-airflow/bin/python benchmarks/batch_fake_nodes.py [INPUTS]

Needs the environment of ../shared/cluster/testcluster. In a real Airflow, `@task.kinetic_batch` runs on a
node without a machine, where pods succeed and run no code. Another process of this program stores what their
runners would, as soon as it sees a pod, and says when the Job was complete. A plain task checks every value.

Measured is the time from the submission, when the task's worker began, to the end of the task, without that
between the Job's creation and its completion.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from queue import SimpleQueue
from typing import Any

from an_airflow import airflow_with
from batches import tell
from cluster_jobs import IMAGE, KUBECONFIG, settings_for
from fake_node import fake_node
from mapped_pods import on_cluster
from measuring import Verdict, report

from kinetic_core.backends.base import open_backend
from kinetic_core.backends.kubernetes.chunks import indexes_of
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.names import GROUP_ID
from kinetic_core.connections import default_connections

_INPUTS = 10_000
_SECONDS = 1800.0
_INDEX = "batch.kubernetes.io/job-completion-index"


def measure(count: int) -> list[Verdict]:
    namespace = f"bench-{secrets.token_hex(3)}"
    api = ClusterApi(Target(KUBECONFIG))
    api.create("Namespace", "", {"metadata": {"name": namespace}})
    try:
        with fake_node(api) as options:
            (pool,) = options["node_selector"].values()
            change = on_cluster(namespace, count, BENCHMARK_POOL=pool)
            with airflow_with("batch_fake_nodes_dags.py", change) as airflow:
                return one_run(airflow, namespace, count)
    finally:
        api.delete("Namespace", "", namespace)


def one_run(airflow: Any, namespace: str, count: int) -> list[Verdict]:
    """Run the DAG once, with the process that plays the pods' runners beside it."""
    runners = subprocess.Popen([sys.executable, __file__, "runners", namespace], stdout=subprocess.PIPE)
    try:
        run_id = airflow.run("batch", timeout=_SECONDS)
        airflow.until(
            lambda: airflow.api.run_state("batch", run_id) in ("success", "failed"), _SECONDS, "the batch"
        )
        told, _ = runners.communicate(timeout=60)
    finally:
        runners.kill()
    created, complete, first, last = json.loads(told)
    instances = {each["task_id"]: each for each in airflow.api.task_instances("batch", run_id)}
    states = {name: each["state"] for name, each in instances.items()}
    if states != {"work": "success", "check": "success"}:
        raise AssertionError(f"the run is nothing to measure: {states}")
    began, ended = (
        datetime.fromisoformat(instances["work"][name]).timestamp() for name in ("start_date", "end_date")
    )
    before, after = created - began, ended - complete
    print(f"the Job took {complete - created:.0f} s, for {last - first:.0f} of which outcomes appeared")
    note = f"{before:.1f} s until there was a Job, {after:.1f} s after it was complete"
    what = f"{count} inputs on a fake node, without the cluster's own time"
    return [Verdict(what, before + after, 15, "s", note)]


def play_runners(namespace: str) -> None:
    """Store the outcome of each pod of the batch's one Job as soon as it appears, until the Job is complete.

    Prints four Unix times: the Job appeared, it was complete, the first and the last outcomes were stored.
    """
    settings_for(namespace)
    backend, api = open_backend("gke", default_connections()), ClusterApi(Target(KUBECONFIG))
    appeared: SimpleQueue[int] = SimpleQueue()
    jobs, pods = (watched(api, kind, namespace) for kind in ("Job", "Pod"))
    job = next(jobs)
    times = [time.time()]

    def see_pods() -> None:
        for pod in pods:
            if _INDEX in pod["metadata"].get("annotations", {}):
                appeared.put(int(pod["metadata"]["annotations"][_INDEX]))

    def store() -> None:
        inputs, seen = indexes_of(job), set[int]()
        while True:
            new = {appeared.get()}
            while not appeared.empty():
                new.add(appeared.get())
            tell(backend, job, job["metadata"]["labels"][GROUP_ID], [inputs[each] for each in new - seen])
            seen |= new
            stored.append(time.time())

    stored: list[float] = []
    for action in (see_pods, store):
        threading.Thread(target=action, daemon=True).start()
    for job_now in jobs:
        conditions = (job_now.get("status") or {}).get("conditions") or ()
        if any(each["type"] == "Complete" for each in conditions):
            break
    print(json.dumps([*times, time.time(), stored[0], stored[-1]]), flush=True)


def watched(api: ClusterApi, kind: str, namespace: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a kind as they appear and change, from the beginning of a new namespace."""
    version = str(api.list(kind, namespace, {})["metadata"]["resourceVersion"])
    while True:
        for _, found in api.watch(kind, namespace, {}, version, 300):
            version = found["metadata"]["resourceVersion"]
            if found["metadata"].get("uid"):  # not a bookmark
                yield found


if __name__ == "__main__":
    if not (KUBECONFIG and IMAGE):
        sys.exit("this needs ../shared/cluster/testcluster up, and its env evaluated")
    if sys.argv[1:2] == ["runners"]:
        play_runners(sys.argv[2])
        sys.exit()
    load = os.getloadavg()[0]
    status = report(measure([*map(int, sys.argv[1:]), _INPUTS][0]))
    print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    sys.exit(status)
