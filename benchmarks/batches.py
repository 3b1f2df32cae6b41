"""What a batch costs on a cluster: against a bare Indexed Job, in requests, in bytes, in time to its values.

Needs the environment of ../shared/cluster/testcluster. The twenty inputs run on real nodes. The five hundred
stay suspended: what their runners would store, this program stores, signed with each input's own key.
"""

from __future__ import annotations

import os
import resource
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_jobs import AUDIT, IMAGE, KUBECONFIG, audited, lag_after_completion, settings_for
from measuring import Verdict, report, seconds
from projects import make_project

import kinetic_core
from kinetic_core._runner import codec, object_names, wire
from kinetic_core.backends.base import Backend, open_backend
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.connections import default_connections
from kinetic_core.jobs.signing import key_id_of, outcome_key
from kinetic_core.testing import make_queue

_SMALL, _LARGE, _HUGE, _RUNS = 20, 500, 10_000, 3
_AT_ONCE = 19
"""Pods of a tenth of a core that the node of two cores has room for."""
_PROJECT_BYTES = 50 << 20
_FUNCTION = "def work(x):\n    return x + 1\n"


@kinetic_core.run(accelerator="cpu", cpu=0.1, memory="128Mi")
def trivial(x: int) -> int:
    return x + 1


@kinetic_core.run(accelerator="cpu", cpu=0.1, memory="128Mi")
def sleeping(seconds: float) -> None:
    time.sleep(seconds)


def measure() -> list[Verdict]:
    namespace = settings_for(f"bench-{secrets.token_hex(3)}")
    api = ClusterApi(Target(KUBECONFIG))
    api.create("Namespace", "", {"metadata": {"name": namespace}})
    make_queue(api, namespace, "nobody")
    try:
        return [*running(api, namespace), *submitting(namespace), *many(), *cancelling(api, namespace)]
    finally:
        api.delete("Namespace", "", namespace)


def running(api: ClusterApi, namespace: str) -> list[Verdict]:
    """Twenty trivial inputs, warm, against a bare Job of twenty indexes; and what comes after their end."""
    batched()
    ours, bares, lags = [], [], []
    for _ in range(_RUNS):
        bares.append(seconds(lambda: bare_job(api, namespace)))
        place = AUDIT.stat().st_size
        ours.append(seconds(batched))
        lags.append(lag_after_completion(place, time.time()))
    taken, bare = statistics.median(ours), statistics.median(bares)
    note = f"{taken:.1f} s against {bare:.1f} s"
    return [
        Verdict(f"{_SMALL} inputs / bare Indexed Job of {_SMALL}", taken / bare, 1.4, "x", note),
        Verdict("Complete accepted by the API server -> all values", statistics.median(lags), 0.8, "s"),
    ]


def batched() -> None:
    batch = trivial.run_async_map(range(_SMALL), max_concurrent=_SMALL)
    assert batch.results() == list(range(1, _SMALL + 1))


def bare_job(api: ClusterApi, namespace: str) -> None:
    """Create it and watch it to its end."""
    name = f"bare-{secrets.token_hex(4)}"
    container: dict[str, Any] = {
        "name": "c",
        "image": IMAGE,
        "command": ["python3", "-c", "import cloudpickle"],
    }
    container["resources"] = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "128Mi"}}
    pod = {"restartPolicy": "Never", "containers": [container]}
    indexed = {"completionMode": "Indexed", "completions": _SMALL, "parallelism": _SMALL}
    body = {"metadata": {"name": name}, "spec": {**indexed, "backoffLimit": 0, "template": {"spec": pod}}}
    version = api.create("Job", namespace, body)["metadata"]["resourceVersion"]
    for _, job in api.watch("Job", namespace, {"fieldSelector": f"metadata.name={name}"}, version, 300):
        if any(each["type"] == "Complete" for each in (job.get("status") or {}).get("conditions") or ()):
            return


@contextmanager
def project() -> Iterator[kinetic_core.RemoteCallable[..., Any]]:
    """A function in a project of 2,000 files; its jobs wait for a queue that admits nothing."""
    with tempfile.TemporaryDirectory() as folder:
        make_project(Path(folder), 2000, _PROJECT_BYTES)
        place: dict[str, Any] = {"__name__": "work", "__file__": f"{folder}/work.py"}
        exec(compile(_FUNCTION, f"{folder}/work.py", "exec"), place)
        os.environ["KINETIC_PACKAGE_ROOT"] = folder
        yield kinetic_core.run(accelerator="cpu", queue="nobody")(place["work"])
        del os.environ["KINETIC_PACKAGE_ROOT"]


def submitting(namespace: str) -> list[Verdict]:
    """Five hundred inputs, then of the unchanged project: submitted, observed for a minute, collected."""
    backend = open_backend("gke", default_connections())
    with project() as work:
        before = held(backend)
        first = seconds(lambda: work.run_async_map(range(_LARGE)))
        once = held(backend) - before
        place = AUDIT.stat().st_size
        made: list[kinetic_core.BatchHandle] = []
        taken = seconds(lambda: made.append(work.run_async_map(range(_LARGE))))
        batch = made[0]
        requests = len(audited(place))
    stored = sum(info.size for info in backend.store.list(f"batches/{batch.group_id}/"))
    place = AUDIT.stat().st_size
    time.sleep(60)
    observed = len(audited(place))
    assert backend.parts is not None
    (job,) = backend.parts.parts(namespace, batch.group_id)
    tell(backend, job, batch.group_id, range(_LARGE))
    backend.remove(namespace, f"{batch.group_id}-p0")
    batch.wait(timeout=60)
    values: list[int] = []
    collected = seconds(lambda: values.extend(batch.results(cleanup=False)))
    assert values == list(range(1, _LARGE + 1))
    told = f"of {_PROJECT_BYTES >> 20} MiB; submitted in {first:.1f} s"
    return [
        Verdict(f"{_LARGE} inputs, 2,000 new files: stored", once / 1e6, 40, "MB", told),
        Verdict(f"{_LARGE} inputs, unchanged project: submitted", taken, 3.0, "s"),
        Verdict("the same: API-server requests", requests, 10, ""),
        Verdict("the same: bytes stored for each input", stored / _LARGE, 1024, "B"),
        Verdict("the same, observed for 60 s: API-server requests", observed, 20, ""),
        Verdict(f"values of {_LARGE} inputs that have ended", collected, 1.5, "s"),
    ]


def held(backend: Backend) -> int:
    """Bytes of every object of this benchmark's."""
    return sum(info.size for info in backend.store.list(""))


def many() -> list[Verdict]:
    """Ten thousand inputs of an unchanged project: submitted, then watched for a minute."""
    with project() as work:
        work.run_async_map([0])
        made: list[kinetic_core.BatchHandle] = []
        taken = seconds(lambda: made.append(work.run_async_map(range(_HUGE))))
        place = AUDIT.stat().st_size
        time.sleep(60)
        observed = len(audited(place))
    assert len(made[0].statuses()) == _HUGE
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        Verdict(f"{_HUGE} inputs, unchanged project: submitted", taken, 15.0, "s"),
        Verdict("the same, observed for 60 s: API-server requests", observed, 20, ""),
        Verdict("the same: memory of this process at most", peak, 300, "MiB"),
    ]


def cancelling(api: ClusterApi, namespace: str) -> list[Verdict]:
    """Ten thousand inputs of which nineteen run, cancelled; against as many pods of a bare Job, deleted.

    Both return when no pod is left. Each of those ends at once when it is told to.
    """
    batch = sleeping.run_async_map([600] * _HUGE, max_concurrent=_AT_ONCE)
    while sum(status is kinetic_core.JobStatus.RUNNING for _, status in batch.statuses()) < _AT_ONCE:
        time.sleep(1)
    taken = seconds(batch.cancel)
    bare = seconds_to_delete(api, namespace)
    told = f"{taken:.1f} s against {bare:.1f} s"
    return [
        Verdict(
            f"{_HUGE} inputs of which {_AT_ONCE} run, cancelled / pods deleted", taken / bare, 3, "x", told
        )
    ]


def seconds_to_delete(api: ClusterApi, namespace: str) -> float:
    """Run a bare Job of as many pods, and measure until the last of them is gone."""
    name = f"bare-{secrets.token_hex(4)}"
    container: dict[str, Any] = {
        "name": "c",
        "image": IMAGE,
        "command": ["sh", "-c", "trap exit TERM; sleep 600 & wait"],
    }
    container["resources"] = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "128Mi"}}
    pod = {"restartPolicy": "Never", "containers": [container]}
    job = {"completions": _AT_ONCE, "parallelism": _AT_ONCE, "template": {"spec": pod}}
    api.create("Job", namespace, {"metadata": {"name": name}, "spec": job})
    query = {"labelSelector": f"batch.kubernetes.io/job-name={name}"}
    while (
        sum(pod["status"]["phase"] == "Running" for pod in api.list("Pod", namespace, query)["items"])
        < _AT_ONCE
    ):
        time.sleep(1)

    def delete() -> None:
        api.delete("Job", namespace, name)
        while api.list("Pod", namespace, query)["items"]:
            time.sleep(0.1)

    return seconds(delete)


def tell(backend: Backend, job: Mapping[str, Any], group_id: str, inputs: Iterable[int]) -> None:
    """Store what the runners of these inputs would, on a few threads."""
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
    os.environ.setdefault("KINETIC_PACKAGE_ROOT", str(Path(__file__).parent))
    sys.exit(report(measure()))
