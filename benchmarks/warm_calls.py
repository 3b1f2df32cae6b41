"""Calls on a warm worker beside calls with a pod of their own, in one run: on this machine, and on a cluster.

`python benchmarks/warm_calls.py [CALLS]`; the cluster's part needs the environment of
../shared/cluster/testcluster, and is left out without it. Also, what a worker of this machine costs while it
waits.
`python benchmarks/warm_calls.py one PLACE` is one call, for a process of its own.
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from measuring import Verdict, report, seconds

import kinetic_core
from kinetic_core._runner import object_names
from kinetic_core.backends.base import known_backend
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.connections import default_connections
from kinetic_core.jobs.warm import workers
from kinetic_core.testing.fault_proxy import FaultProxy

KUBECONFIG = os.environ.get("KUBECONFIG", "")
_COLD = 5
_FRESH = 10
_FILES = 2000
_IDLE_SECONDS = 20.0
_OPTIONS: dict[str, dict[str, Any]] = {
    "local": {"accelerator": "cpu"},
    "cluster": {"accelerator": "cpu", "cpu": 0.1},
}


def trivial(number: int) -> int:
    return number + 1


def compared(place: str, calls: int, limit: float) -> list[Verdict]:
    """Measure calls one after the other, by one client; the first warm one makes the worker."""
    options = _OPTIONS[place]
    cold_call = kinetic_core.run(**options)(trivial)
    warm_call = kinetic_core.run(**options, warm="2m")(trivial)
    cold = [seconds(lambda: cold_call.run_async(1).result()) for _ in range(_COLD)]
    warm_call.run_async(0).result()
    taken = sorted(seconds(lambda: warm_call.run_async(1).result()) for _ in range(calls))
    slow = taken[min(len(taken) - 1, len(taken) * 99 // 100)]
    command = [sys.executable, __file__, "one", place]
    fresh = [seconds(lambda: subprocess.run(command, check=True)) for _ in range(_FRESH)]
    note = f"with a pod of its own {statistics.median(cold):.3f} s"
    return [
        Verdict(f"warm call, {place}, p50 of {calls}", statistics.median(taken), limit, "s", note),
        Verdict(f"warm call, {place}, p99 of {calls}", slow, 0.4, "s"),
        Verdict(f"process with one warm call, {place}, p50 of {_FRESH}", statistics.median(fresh), 0.6, "s"),
    ]


def importing(number: int) -> int:
    import numpy

    return int(numpy.add(number, 1))


def reused(place: str, calls: int) -> list[Verdict]:
    """Measure calls that import NumPy: each in a process of its own, in a fork, and in one process."""
    found = {}
    for reuse in (None, "fork", "process"):
        call = kinetic_core.run(**_OPTIONS[place], warm="2m", reuse=reuse)(importing)
        for _ in range(2):  # after the first, a keeper imports
            call.run_async(0).result()
        found[reuse] = statistics.median(seconds(lambda: call.run_async(1).result()) for _ in range(calls))  # noqa: B023
    alone = found[None]
    what = f"warm call that imports NumPy, {place}, p50 of {calls}"
    return [
        Verdict(
            f"{what}, reuse={reuse!r}",
            found[reuse] / alone,
            1.0,
            "x",
            f"{found[reuse]:.3f} s of {alone:.3f} s",
        )
        for reuse in ("fork", "process")
    ]


def without_nudges(place: str, calls: int) -> list[Verdict]:
    """Measure calls on a worker whose port nobody knows: both sides look into the store, and nothing else."""
    function = kinetic_core.run(**_OPTIONS[place], memory="300Mi", warm="2m")(trivial)
    first = function.run_async(0)
    first.result(cleanup=False)
    known_backend(None, default_connections()).store.delete(object_names.nudge(first.worker))
    taken = []
    for _ in range(calls):
        handle = function.run_async(1)
        taken.append(seconds(handle.result))
        assert handle.worker == first.worker
    what = f"warm call without a nudge, {place}, p50 of {calls}"
    return [Verdict(what, statistics.median(taken), 1.2, "s")]


def requests_of_an_idle_worker() -> list[Verdict]:
    """Count what a worker of the cluster asks its store while it waits."""
    emulator = os.environ["STORAGE_EMULATOR_HOST"]
    with FaultProxy(emulator, host=str(urlsplit(emulator).hostname)) as proxy:
        os.environ["STORAGE_EMULATOR_HOST"] = proxy.url
        try:
            kinetic_core.run(**_OPTIONS["cluster"], memory="310Mi", warm="2m")(trivial).run_async(0).result()
        finally:
            os.environ["STORAGE_EMULATOR_HOST"] = emulator
        time.sleep(2)  # a worker looks more often at first
        before = len(proxy.faults.requests)
        time.sleep(_IDLE_SECONDS)
        asked = len(proxy.faults.requests) - before
    note = "by store alone, with or without a nudge"
    return [Verdict("idle worker, cluster, requests a second", asked / _IDLE_SECONDS, 2.0, "", note)]


def on_hosts(calls: int) -> list[Verdict]:
    """Measure calls on a warm slice of two hosts of the cluster beside one with pods of its own."""
    options: dict[str, Any] = {"accelerator": "tpu-v5p-8", "backend": "gke", "cpu": 0.1}
    cold_call = kinetic_core.run(**options)(trivial)
    warm_call = kinetic_core.run(**options, warm="2m", reuse="process")(trivial)
    cold = statistics.median(seconds(lambda: cold_call.run_async(1).result()) for _ in range(_COLD))
    for _ in range(2):
        warm_call.run_async(0).result()
    warm = statistics.median(seconds(lambda: warm_call.run_async(1).result()) for _ in range(calls))
    what = f"warm call on two hosts, cluster, p50 of {calls}"
    return [Verdict(what, warm / cold, 0.5, "x", f"{warm:.3f} s of {cold:.3f} s with pods of its own")]


def edited(place: str, calls: int) -> list[Verdict]:
    """Measure calls before each of which a line of 2,000 files is edited, and check that the job has it."""
    with tempfile.TemporaryDirectory(prefix="kinetic-bench-project-") as folder:
        root, helper = Path(folder), Path(folder, "helper.py")
        for number in range(_FILES):
            file = root / f"package{number % 40}" / f"module{number}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"NUMBER = {number}\n" * 30)
        (root / "caller.py").write_text("def call():\n    import helper\n    return helper.VALUE\n")
        os.environ["KINETIC_PACKAGE_ROOT"] = folder
        sys.path.insert(0, folder)
        import caller  # type: ignore[import-not-found]

        function = kinetic_core.run(**_OPTIONS[place], warm="2m")(caller.call)
        taken = []
        for number in range(calls + 1):
            helper.write_text(f"VALUE = {number}\n")
            began = time.perf_counter()
            assert function.run_async().result() == number
            taken.append(time.perf_counter() - began)
        sys.path.remove(folder)
        del sys.modules["caller"]
        os.environ["KINETIC_PACKAGE_ROOT"] = str(Path(__file__).parent)
    slow = sorted(taken[1:])[calls * 95 // 100]
    what = f"edit a line of {_FILES} files and call, {place}, p95 of {calls}"
    return [Verdict(what, slow, 0.5, "s", f"p50 {statistics.median(taken[1:]):.3f} s")]


def one(place: str) -> None:
    """Call once, on the worker that `compared` has made."""
    assert kinetic_core.run(**_OPTIONS[place], warm="2m")(trivial).run_async(1).result() == 2


def idle() -> list[Verdict]:
    """Measure the processes of the workers of this machine, of which one waits."""
    (worker,) = workers(known_backend(None, default_connections()), "default")
    record = Path(os.environ["KINETIC_LOCAL_STORE"], "cluster", "default", f"{worker.job_id}.json")
    known = json.loads(record.read_text())
    pids = [int(known[name]["pid"]) for name in ("agent", "group")]
    used = sum(map(_processor_seconds, pids))
    time.sleep(_IDLE_SECONDS)
    used = sum(map(_processor_seconds, pids)) - used
    memory = sum(_memory(pid) for pid in pids)
    note = "agent and runner"
    return [
        Verdict("idle worker, local, memory", memory / 1e6, 60, "MB", note),
        Verdict("idle worker, local, share of a core", 100 * used / _IDLE_SECONDS, 0.2, "%", note),
    ]


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    """Bytes of a process, of what it shares with others its part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def stop_workers(namespace: str) -> None:
    backend = known_backend(None, default_connections())
    for worker in list(workers(backend, namespace)):
        kinetic_core.attach(worker.job_id).cancel()


@contextmanager
def on_this_machine() -> Iterator[None]:
    """Let calls run on this machine, in a new store; their workers are ended."""
    with tempfile.TemporaryDirectory(prefix="kinetic-bench-") as home:
        os.environ |= {"KINETIC_LOCAL_STORE": home, "XDG_CACHE_HOME": home, "KINETIC_BACKEND": "local"}
        os.environ["KINETIC_PACKAGE_ROOT"] = str(Path(__file__).parent)
        yield
        stop_workers("default")


@contextmanager
def on_the_cluster() -> Iterator[None]:
    """Let calls run on the test cluster, in a new namespace; their workers are ended."""
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
        yield
        stop_workers(namespace)
    finally:
        api.delete("Namespace", "", namespace)


def measure(calls: int) -> list[Verdict]:
    with on_this_machine():
        found = compared("local", calls, 0.15) + idle() + reused("local", min(calls, 50))
        found += edited("local", min(calls, 40)) + without_nudges("local", min(calls, 50))
    if KUBECONFIG:
        with on_the_cluster():
            found += compared("cluster", calls, 0.15) + reused("cluster", min(calls, 50))
            found += edited("cluster", min(calls, 40)) + on_hosts(min(calls, 20))
            found += without_nudges("cluster", min(calls, 50)) + requests_of_an_idle_worker()
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(sys.argv[2])
    else:
        sys.exit(report(measure(int(sys.argv[1]) if sys.argv[1:] else 100)))
