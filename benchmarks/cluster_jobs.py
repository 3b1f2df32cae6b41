"""What a job costs on a cluster: requests, latency, against a bare Job of the same image in the same run.

Needs the environment of ../shared/cluster/testcluster: its API server writes an audit log, its store counts.
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
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fake_node import fake_node
from measuring import Verdict, report, seconds
from projects import make_project

import kinetic_core
from kinetic_core.backends.base import backend_of
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.connections import default_connections
from kinetic_core.job import JobObservation, JobStatus
from kinetic_core.jobs.dry_run import dry_run
from kinetic_core.jobs.observe import watch
from kinetic_core.jobs.submit import Call, prepare, submit
from kinetic_core.options import RunOptions
from kinetic_core.testing import make_queue

IMAGE = os.environ.get("KINETIC_TEST_IMAGE", "")
KUBECONFIG = os.environ.get("KUBECONFIG", "")
AUDIT = Path(os.environ.get("TESTCLUSTER_HOME", "/var/tmp/testcluster"), "log", "audit.jsonl")
_FUNCTION = "def work(x):\n    return x + 1\n"
_OBSERVED = 500
_NOWHERE = {"kinetic.test/node": "none"}
"""No node has that label: pods, which ask the store for things, do not run while requests are counted."""


@kinetic_core.run(accelerator="cpu")
def trivial(x: int) -> int:
    return x + 1


def audited(since: int, *, verbs: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Requests of the Python client that the API server wrote down after a place in its log."""
    time.sleep(1.5)  # it writes in batches
    with AUDIT.open() as stream:
        stream.seek(since)
        events = [json.loads(line) for line in stream]
    asked = [
        event
        for event in events
        if "python" in event.get("userAgent", "")  # a client may send none
        and event["user"]["username"] == "admin"
        and (not verbs or event["verb"] in verbs)
    ]
    return list({event["auditID"]: event for event in asked}.values())  # a watch is written down twice


def store_traffic() -> tuple[int, int]:
    """Requests to the Cloud Storage emulator so far, and the bytes it was sent."""
    with urllib.request.urlopen(f"{os.environ['STORAGE_EMULATOR_HOST']}/emulator/stats") as answer:
        kinds = json.load(answer).values()
        return sum(kind["requests"] for kind in kinds), sum(kind["bytes_in"] for kind in kinds)


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
    """A project of 2,000 files that has not changed since the last submission; in another process, too."""
    with tempfile.TemporaryDirectory() as folder:
        make_project(Path(folder), 2000, 5 << 20)
        namespace: dict[str, Any] = {"__name__": "work", "__file__": f"{folder}/work.py"}
        exec(compile(_FUNCTION, f"{folder}/work.py", "exec"), namespace)
        os.environ["KINETIC_PACKAGE_ROOT"] = folder
        options = RunOptions.checked("cpu", node_selector=_NOWHERE)
        submit(prepare(Call(namespace["work"], (1,)), options, default_connections()))
        warm = _taken(lambda: submit(prepare(Call(namespace["work"], (2,)), options, default_connections())))
        program = f"import sys; sys.path.insert(0, {folder!r}); import work, kinetic_core; "
        program += f"kinetic_core.run(accelerator='cpu', node_selector={_NOWHERE})(work.work).run_async(3)"
        fresh = _taken(lambda: subprocess.run([sys.executable, "-c", program], check=True))
        manifest = len(json.dumps(dry_run(Call(namespace["work"], (2,)), options, default_connections())))
        del os.environ["KINETIC_PACKAGE_ROOT"]
    return [
        Verdict("unchanged project: store requests of a submit", warm[0], 4, ""),
        Verdict("unchanged project: API-server requests of a submit", warm[2], 2, ""),
        Verdict("the same in a process of its own: store requests", fresh[0], 4, ""),
        Verdict("the same in a process of its own: API-server requests", fresh[2], 2, ""),
        Verdict(
            "unchanged project: sent to the store and as manifest", (warm[1] + manifest) / 1000, 20, "KB"
        ),
    ]


def _taken(action: Callable[[], object]) -> tuple[int, int, int]:
    """What an action asks for: store requests, bytes sent to the store, API-server requests."""
    place, before = AUDIT.stat().st_size, store_traffic()
    action()
    after = store_traffic()
    return after[0] - before[0], after[1] - before[1], len(audited(place))


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
    """Requests while five hundred jobs are watched for a minute. Pods run on a node without a machine."""
    seen: dict[str, JobStatus] = {}

    def note(job_id: str, now: JobObservation) -> None:
        seen[job_id] = now.status

    with fake_node(api) as options:
        suspended = RunOptions.checked("cpu", queue="nobody", **options)
        references = [
            submit(prepare(Call(trivial.__wrapped__, (n,)), suspended, default_connections()))
            for n in range(_OBSERVED)
        ]
        endless = {"metadata": {"annotations": {"kinetic.test/outcome": "run"}}}
        for reference in references:  # the queue admits them, to run on
            admitted = {"suspend": False, "template": endless}
            api.patch("Job", namespace, reference.k8s_name, {"spec": admitted})
        place = AUDIT.stat().st_size
        subscriptions = [
            watch(backend_of(each, default_connections()), each, partial(note, each.job_id))
            for each in references
        ]
        time.sleep(60)
        requests = audited(place)
        for subscription in subscriptions:
            subscription.close()
    running = sum(status is JobStatus.RUNNING for status in seen.values())
    if running < _OBSERVED:
        raise AssertionError(f"only {running} of {_OBSERVED} jobs were running")
    return [
        Verdict(f"{_OBSERVED} running jobs observed for 60 s: API-server requests", len(requests), 10, "")
    ]


if __name__ == "__main__":
    if not (KUBECONFIG and IMAGE and AUDIT.exists()):
        sys.exit("this needs ../shared/cluster/testcluster up, and its env evaluated")
    sys.exit(report(measure()))
