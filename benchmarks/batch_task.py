"""Airflow's share of a task of ten thousand inputs: what worker and triggerer do besides the inputs.

Needs the environment of ../shared/cluster/testcluster. The batch waits for a queue that admits nothing, and
this program stores what its runners would, signed with each input's own key. Then the Job is removed. What
`@task.kinetic_batch` does in its first leg, in the trigger and in its last leg runs in this process, without
Airflow around it.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from batches import project
from cluster_jobs import AUDIT, IMAGE, KUBECONFIG, audited, settings_for
from measuring import Verdict, report, seconds

from airflow_provider.batch_of_task import BatchWatch, StartedBatch, start_or_adopt_batch
from airflow_provider.batch_values import BatchValues
from airflow_provider.job_of_task import Origin, TaskIdentity
from airflow_provider.xcom import Signatures
from kinetic_core._runner import codec, object_names, wire
from kinetic_core.backends.base import Backend, open_backend
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.batches.definition import Plan
from kinetic_core.batches.outcomes import StoredBatch
from kinetic_core.connections import default_connections
from kinetic_core.jobs.signing import key_id_of, outcome_key
from kinetic_core.jobs.submit import Call
from kinetic_core.options import RunOptions
from kinetic_core.testing import make_queue

_INPUTS = 10_000


class Kept:
    """Variables of an Airflow."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    def set(self, name: str, value: str) -> None:
        self._values[name] = value


def memory() -> float:
    """MiB that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def measure() -> list[Verdict]:
    namespace = settings_for(f"bench-{secrets.token_hex(3)}")
    api = ClusterApi(Target(KUBECONFIG))
    api.create("Namespace", "", {"metadata": {"name": namespace}})
    make_queue(api, namespace, "nobody")
    try:
        return task(open_backend("gke", default_connections()), namespace)
    finally:
        api.delete("Namespace", "", namespace)


def task(backend: Backend, namespace: str) -> list[Verdict]:
    with project() as work:
        call = Call(work.function, (), {})
        first_leg(call, range(1))
        made: list[StartedBatch] = []
        before = time.process_time()
        first = seconds(lambda: made.append(first_leg(call, range(_INPUTS))))
        first_cpu = time.process_time() - before
    whole = made[0].reference
    before, held = time.process_time(), memory()
    watch = BatchWatch.open(backend, whole, {})
    place = AUDIT.stat().st_size
    until = time.monotonic() + 60
    while time.monotonic() < until:
        watch.look(lambda _: None)
        time.sleep(1)
    followed, requests = time.process_time() - before, len(audited(place))
    grown = memory() - held
    tell(backend, namespace, whole.job_id)
    began = time.perf_counter()
    backend.remove(namespace, f"{whole.job_id}-p0")
    while not watch.look(print):
        time.sleep(1)
    watch.close()
    heard = time.perf_counter() - began
    values: list[BatchValues] = []
    before = time.process_time()
    last = seconds(lambda: values.append(last_leg(backend, made[0])))
    last_cpu = time.process_time() - before
    one = seconds(lambda: check(values[0], [0, _INPUTS // 2, _INPUTS - 1]))
    pushed = len(str(values[0].serialize()))
    share = first_cpu + followed + last_cpu
    note = f"first leg {first_cpu:.1f}, a minute of the trigger {followed:.1f}, last leg {last_cpu:.1f}"
    return [
        Verdict(f"{_INPUTS} inputs: processor seconds of legs and trigger", share, 5.0, "s", note),
        Verdict("the same: first leg, of an unchanged project", first, 15.0, "s"),
        Verdict("the same: memory of the trigger", grown, 60, "MiB"),
        Verdict("the same, followed for 60 s: API-server requests", requests, 20, ""),
        Verdict("end of the Job -> the trigger's event", heard, 10.0, "s"),
        Verdict("the last leg", last, 5.0, "s"),
        Verdict("three values out of all", one, 1.0, "s"),
        Verdict("bytes of XCom", pushed, 2000, "B"),
    ]


def first_leg(call: Call, numbers: Sequence[int]) -> StartedBatch:
    """Start the batch as a worker does."""
    identity = TaskIdentity("bench", "run", "began", "task", len(numbers), 1)
    options = RunOptions.checked(accelerator="cpu", queue="nobody")
    plan = Plan("", False, "kwargs", 64, False, False, "task", {})
    items: list[dict[str, Any]] = [{"x": number} for number in numbers]
    origin = Origin.of(identity, "bench")
    return start_or_adopt_batch(call, items, options, default_connections(), identity, plan, origin=origin)


def last_leg(backend: Backend, started: StartedBatch) -> BatchValues:
    """Make the task's value as a worker does."""
    states = StoredBatch(backend, started.reference).states()
    failed = [index for index in range(started.size) if states.get(index) != "succeeded"]
    assert not failed, failed[:5]
    signatures = Signatures(Kept())
    made = BatchValues.of(started.reference, started.size, failed, None, signatures)
    assert len(made) == _INPUTS
    return BatchValues(made.serialize(), signatures, default_connections())


def check(values: BatchValues, indexes: Sequence[int]) -> None:
    assert [values[index] for index in indexes] == [index + 1 for index in indexes]


def tell(backend: Backend, namespace: str, group_id: str) -> None:
    """Store what runners would."""
    assert backend.parts is not None
    (job,) = backend.parts.parts(namespace, group_id)
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
        list(pool.map(one, range(_INPUTS)))


if __name__ == "__main__":
    if not (KUBECONFIG and IMAGE and AUDIT.exists()):
        sys.exit("this needs ../shared/cluster/testcluster up, and its env evaluated")
    os.environ.setdefault("KINETIC_PACKAGE_ROOT", str(Path(__file__).parent))
    sys.exit(report(measure()))
