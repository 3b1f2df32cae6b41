"""What a job costs on a cluster: requests, latency, against a bare Job of the same image in the same run.

Needs the environment of ../shared/cluster/testcluster: its API server writes an audit log, its store counts.
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from measuring import Verdict, report, seconds
from projects import make_project

import kinetic_core
from kinetic_core.cluster.access import ClusterApi
from kinetic_core.cluster.connecting import Target
from kinetic_core.configuration import read_settings
from kinetic_core.lifecycle.backends import open_backend
from kinetic_core.lifecycle.observing import watch
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.submission import Call, prepare, submit
from kinetic_core.testing import make_queue

IMAGE = os.environ.get("KINETIC_TEST_IMAGE", "")
KUBECONFIG = os.environ.get("KUBECONFIG", "")
AUDIT = Path(os.environ.get("TESTCLUSTER_HOME", "/var/tmp/testcluster"), "log", "audit.jsonl")
_FUNCTION = "def work(x):\n    return x + 1\n"
_OBSERVED = 500


@kinetic_core.run(accelerator="cpu")
def trivial(x: int) -> int:
    return x + 1


def audited(since: int, *, verbs: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Requests of the Python client that the API server wrote down after a place in its log."""
    time.sleep(1.5)  # it writes in batches
    with AUDIT.open() as stream:
        stream.seek(since)
        events = [json.loads(line) for line in stream]
    return [
        event
        for event in events
        if "python" in event["userAgent"]
        and event["user"]["username"] == "admin"
        and (not verbs or event["verb"] in verbs)
    ]


def store_requests() -> int:
    """Requests to the Cloud Storage emulator so far."""
    with urllib.request.urlopen(f"{os.environ['STORAGE_EMULATOR_HOST']}/emulator/stats") as answer:
        return sum(kind["requests"] for kind in json.load(answer).values())


def settings_for(namespace: str) -> str:
    """Let this process submit to the test cluster, into a namespace and a prefix of its name."""
    os.environ.update(
        {
            "KINETIC_BACKEND": "gke",
            "KINETIC_KUBECONFIG": KUBECONFIG,
            "KINETIC_BUCKET": f"test-bucket/{namespace}",
            "KINETIC_CONTAINER_IMAGE": IMAGE,
            "KINETIC_NAMESPACE": namespace,
        }
    )
    return namespace


def measure() -> list[Verdict]:
    namespace = settings_for(f"bench-{secrets.token_hex(3)}")
    api = ClusterApi(Target(KUBECONFIG))
    api.create("Namespace", "", {"metadata": {"name": namespace}})
    make_queue(api, namespace, "nobody")
    try:
        return [*submitting(), *calling(api, namespace), *observing(api, namespace)]
    finally:
        api.delete("Namespace", "", namespace)


def submitting() -> list[Verdict]:
    """A project of 2,000 files that has not changed since the last submission."""
    with tempfile.TemporaryDirectory() as folder:
        make_project(Path(folder), 2000, 5 << 20)
        namespace: dict[str, Any] = {"__name__": "work", "__file__": f"{folder}/work.py"}
        exec(compile(_FUNCTION, f"{folder}/work.py", "exec"), namespace)
        os.environ["KINETIC_PACKAGE_ROOT"] = folder
        options = RunOptions.checked("cpu")
        submit(prepare(Call(namespace["work"], (1,)), options))
        place, before = AUDIT.stat().st_size, store_requests()
        submit(prepare(Call(namespace["work"], (2,)), options))
        after = store_requests()
        requests = audited(place)
        del os.environ["KINETIC_PACKAGE_ROOT"]
    return [
        Verdict("unchanged project: store requests of a submit", after - before, 4, ""),
        Verdict("unchanged project: API-server requests of a submit", len(requests), 2, ""),
    ]


def bare_job(api: ClusterApi, namespace: str) -> float:
    """Seconds from creating a bare Job to its Complete condition, watched."""
    name = f"bare-{secrets.token_hex(4)}"
    container = {"name": "c", "image": IMAGE, "command": ["python3", "-c", "import cloudpickle"]}
    pod = {"restartPolicy": "Never", "containers": [container]}
    body = {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {"spec": pod}}}
    start = time.perf_counter()
    created = api.create("Job", namespace, body)
    version = created["metadata"]["resourceVersion"]
    for _, job in api.watch("Job", namespace, {"fieldSelector": f"metadata.name={name}"}, version, 60):
        if any(each["type"] == "Complete" for each in (job.get("status") or {}).get("conditions") or ()):
            break
    return time.perf_counter() - start


def calling(api: ClusterApi, namespace: str) -> list[Verdict]:
    """A trivial call, warm, against a bare Job; and what comes after its end."""
    trivial(0)
    bare_job(api, namespace)
    calls, bares, lags = [], [], []
    for _ in range(5):
        bares.append(bare_job(api, namespace))
        place = AUDIT.stat().st_size
        calls.append(seconds(lambda: trivial(1)))
        lags.append(lag_after_completion(place, time.time()))
    return [
        Verdict(
            "trivial call / bare Job of the same image",
            statistics.median(calls) / statistics.median(bares),
            1.2,
            "x",
            f"{statistics.median(calls):.2f} s against {statistics.median(bares):.2f} s",
        ),
        Verdict("Complete accepted by the API server -> value returned", statistics.median(lags), 0.3, "s"),
    ]


def lag_after_completion(place: int, returned: float) -> float:
    """Seconds from the job controller's last status update to the value."""
    time.sleep(1.5)
    with AUDIT.open() as stream:
        stream.seek(place)
        events = [json.loads(line) for line in stream]
    updates = [
        event["stageTimestamp"]
        for event in events
        if event["verb"] == "update"
        and event.get("objectRef", {}).get("resource") == "jobs"
        and event.get("objectRef", {}).get("subresource") == "status"
        and "job-controller" in event["userAgent"]
    ]
    from datetime import datetime

    return returned - datetime.fromisoformat(max(updates)).timestamp()


def observing(api: ClusterApi, namespace: str) -> list[Verdict]:
    """Requests while five hundred jobs are watched for a minute. They stay suspended: nothing runs."""
    del api
    backend = open_backend("gke", read_settings())
    suspended = RunOptions.checked("cpu", queue="nobody")
    references = [submit(prepare(Call(trivial.__wrapped__, (n,)), suspended)) for n in range(_OBSERVED)]
    place = AUDIT.stat().st_size
    subscriptions = [watch(reference, lambda _: None) for reference in references]
    time.sleep(60)
    requests = audited(place)
    for subscription in subscriptions:
        subscription.close()
    del backend, namespace
    return [Verdict(f"{_OBSERVED} jobs observed for 60 s: API-server requests", len(requests), 10, "")]


if __name__ == "__main__":
    if not (KUBECONFIG and IMAGE and AUDIT.exists()):
        sys.exit("this needs ../shared/cluster/testcluster up, and its env evaluated")
    sys.exit(report(measure()))
