"""A slice one of whose hosts dies, or which is cancelled: at the start, in the middle, at the end; and one
whose cluster or store is away meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core._runner import object_names
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import HOST_INDEX, WORKER_INDEX
from kinetic_core.errors import ClusterUnreachable, JobCancelled
from kinetic_core.testing import FaultProxy
from tests.cluster.jobs import own_lines, pods
from tests.cluster.machine import NODES, TPU, cluster_tool, give_up, restored, stopped
from tests.conftest import wait_for

pytestmark = [pytest.mark.usefixtures("gke"), pytest.mark.alone, pytest.mark.slow]
PATIENCE = 90


def rest(*seconds: float) -> str:
    """Each host for its own time, when the slice starts for the first time; which start of it this is."""
    import os
    import time

    start = os.environ["KINETIC_IGNORED_COUNT"]
    print(f"begun {start}", flush=True)
    time.sleep(seconds[int(os.environ["TPU_WORKER_ID"])] if start == "0" else 1)
    print(f"over {start}", flush=True)
    return start


def until_stored(path: str) -> str:
    """Each host until that object of the emulator is there; which start of the slice this is."""
    import os
    import time
    import urllib.error
    import urllib.request

    start = os.environ["KINETIC_IGNORED_COUNT"]
    print(f"begun {start}", flush=True)
    while True:
        try:
            urllib.request.urlopen(os.environ["STORAGE_EMULATOR_HOST"] + path, timeout=10).close()
            return start
        except urllib.error.HTTPError:
            time.sleep(0.5)


@pytest.fixture(params=["gke", "pathways"])
def backend(request: pytest.FixtureRequest) -> str:
    """Two hosts as a Job, and as a LeaderWorkerSet."""
    return str(request.param)


@pytest.fixture
def resting(backend: str) -> kinetic_core.RemoteCallable[..., str]:
    return kinetic_core.run(accelerator="tpu-v5p-8", backend=backend)(rest)


@pytest.fixture(autouse=True)
def nothing_left(api: ClusterApi, namespace: str) -> Iterator[None]:
    """What a failed test leaves would keep the nodes from the next."""
    yield
    for kind in ("Job", "LeaderWorkerSet"):
        api.delete_all(kind, namespace, "app=kinetic")


@pytest.fixture
def kept_back(api: ClusterApi) -> Iterator[str]:
    """A node that takes no pods for now: the slice lacks a host."""
    api.patch("Node", "", NODES[1], {"spec": {"unschedulable": True}})
    yield NODES[1]
    let_go(api)


def let_go(api: ClusterApi) -> None:
    api.patch("Node", "", NODES[1], {"spec": {"unschedulable": None}})


def lines(handle: kinetic_core.JobHandle, host: int) -> list[str]:
    return own_lines(handle.logs(host=host))


def ran(handle: kinetic_core.JobHandle) -> Counter[str]:
    """How often user code began, by the start of the slice."""
    told = (handle.logs() or "").splitlines()
    return Counter(line.partition("begun ")[2] for line in told if "begun " in line)


def there(api: ClusterApi, handle: kinetic_core.JobHandle, node: str) -> list[str]:
    """The names of the job's pods that run on a node."""
    return [
        pod["metadata"]["name"]
        for pod in pods(api, handle)
        if pod["spec"].get("nodeName") == node and pod["status"]["phase"] == "Running"
    ]


def pod_of(api: ClusterApi, handle: kinetic_core.JobHandle, host: int) -> str:
    """The name of a host's pod, which a Job and a set number in different ways."""
    facts = [pod["metadata"] for pod in pods(api, handle)]
    numbered = {
        each["annotations"].get(HOST_INDEX) or each["labels"].get(WORKER_INDEX): each for each in facts
    }
    return str(numbered[str(host)]["name"])


@contextmanager
def without_a_node(
    api: ClusterApi, resting: kinetic_core.RemoteCallable[..., str]
) -> Iterator[tuple[kinetic_core.JobHandle, str]]:
    """A slice in the middle, and the node of one of its hosts, which is lost; it is back in the end."""
    with restored(api) as node:
        handle = resting.run_async(600, 600)
        wait_for(lambda: lines(handle, 0) and lines(handle, 1), PATIENCE)
        cluster_tool("lose", node)
        yield handle, node


def nothing_runs(api: ClusterApi, handle: kinetic_core.JobHandle) -> bool:
    return not [pod for pod in pods(api, handle) if pod["status"]["phase"] == "Running"]


def cancelled(api: ClusterApi, handle: kinetic_core.JobHandle) -> None:
    handle.cancel()
    wait_for(lambda: nothing_runs(api, handle), 60)  # pods of a dead node are shown until they are collected
    with pytest.raises(JobCancelled):
        handle.result(stream_logs=False)
    handle.cleanup()


@pytest.mark.promise("batches: No user code before all ranks are there in one generation")
@pytest.mark.promise("batches: Slice, one host dead at the start")
def test_a_host_that_dies_before_all_are_there(
    api: ClusterApi, resting: kinetic_core.RemoteCallable[..., str], kept_back: str
) -> None:
    handle = resting.run_async(1, 1)
    wait_for(lambda: there(api, handle, NODES[0]), PATIENCE)
    (first,) = there(api, handle, NODES[0])
    api.delete("Pod", handle.namespace, first)
    let_go(api)
    start = handle.result(timeout=240, stream_logs=False, cleanup=False)
    # The one that died had checked in: the other may have begun in that start, and been told at once.
    assert ran(handle)[start] == 2, "user code began once on each host"
    assert set(ran(handle).values()) <= {1, 2}
    handle.cleanup()


@pytest.mark.promise("batches: Node lost in the middle")
def test_a_node_that_is_lost_in_the_middle(
    api: ClusterApi, resting: kinetic_core.RemoteCallable[..., str]
) -> None:
    """An administrator gives it up, and there is another: the slice starts anew, at no cost of retries."""
    with without_a_node(api, resting) as (handle, node):
        wait_for(lambda: is_silent(api, node), PATIENCE)
        give_up(api, node)
        wait_for(lambda: not there(api, handle, node), PATIENCE)
        api.patch("Node", "", node, {"spec": {"taints": [TPU]}})
        cluster_tool("start", node)
        start = handle.result(timeout=300, stream_logs=False, cleanup=False)
    assert start != "0"
    assert set(lines(handle, 0)) >= {f"begun {start}", f"over {start}"} <= set(lines(handle, 1))
    handle.cleanup()


def is_silent(api: ClusterApi, node: str) -> bool:
    told = (api.get("Node", "", node) or {})["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] != "True" for each in told)


@pytest.mark.promise("batches: … at the end")
def test_a_host_that_dies_when_its_own_part_is_done(
    api: ClusterApi, resting: kinetic_core.RemoteCallable[..., str]
) -> None:
    """What host 0 returns counts, once, whether the slice had to start anew for it or not."""
    handle = resting.run_async(12, 0)
    wait_for(lambda: any(line.startswith("over") for line in lines(handle, 1)), PATIENCE)
    api.delete("Pod", handle.namespace, pod_of(api, handle, 1))
    start = handle.result(timeout=240, stream_logs=False, cleanup=False)
    assert f"over {start}" in lines(handle, 0)
    assert ran(handle)[start] == 2
    handle.cleanup()


@pytest.mark.promise("batches: Cancel during each: slice")
def test_cancelled_before_all_are_there(
    api: ClusterApi, resting: kinetic_core.RemoteCallable[..., str], kept_back: str
) -> None:
    handle = resting.run_async(1, 1)
    wait_for(lambda: there(api, handle, NODES[0]), PATIENCE)
    assert handle.status() is not JobStatus.FAILED
    cancelled(api, handle)


@pytest.mark.promise("batches: Cancel during each: slice")
def test_cancelled_when_one_is_done(api: ClusterApi, resting: kinetic_core.RemoteCallable[..., str]) -> None:
    handle = resting.run_async(600, 0)
    wait_for(lambda: any(line.startswith("over") for line in lines(handle, 1)), PATIENCE)
    cancelled(api, handle)


@pytest.mark.promise("batches: Cancel during each: slice", "(all")
def test_cancelled_while_a_node_is_lost(
    api: ClusterApi, resting: kinetic_core.RemoteCallable[..., str]
) -> None:
    """What may go on there unseen is said, until somebody knows that the node is dead."""
    with without_a_node(api, resting) as (handle, node):
        with pytest.raises(ClusterUnreachable, match="not proven dead"):
            handle.cancel()
        give_up(api, node)
        cancelled(api, handle)


@pytest.mark.promise("batches: API server restart")
def test_it_ends_while_there_is_no_api_server(api: ClusterApi, backend: str, location: str) -> None:
    """Its outcome is stored, its pods go once somebody can be told, and it does not run again."""
    bucket, prefix = location.split("/")
    waiting = kinetic_core.run(accelerator="tpu-v5p-8", backend=backend)(until_stored)
    handle = waiting.run_async(f"/storage/v1/b/{bucket}/o/{prefix}%2Fgo")
    wait_for(lambda: lines(handle, 0) and lines(handle, 1), PATIENCE)
    store = handle.place.store
    with stopped("kube-apiserver"):
        store.create_if_absent("go", b"on")
        wait_for(lambda: store.find(object_names.result(handle.job_id)) is not None, PATIENCE)
    assert handle.result(timeout=120, stream_logs=False, cleanup=False) == "0"
    wait_for(lambda: nothing_runs(api, handle), PATIENCE)
    assert ran(handle) == {"0": 2}
    handle.cleanup()


@pytest.mark.promise("batches: Results object store 503")
def test_a_store_that_answers_503_at_every_step(
    api: ClusterApi, store_proxy: FaultProxy, resting: kinetic_core.RemoteCallable[..., str]
) -> None:
    """Claims, what the hosts tell each other, payload, logs and the result: several times each."""
    for told in ("/claim", "/gang/", "/log/", "/result"):
        store_proxy.faults.answer(f"(?s)POST .*upload.*{told}", 503, times=4)
    store_proxy.faults.answer("GET .*payload", 503, times=4)
    handle = resting.run_async(2, 2)
    assert handle.result(timeout=240, stream_logs=False, cleanup=False) == "0"
    assert ran(handle) == {"0": 2}
    wait_for(lambda: nothing_runs(api, handle), PATIENCE)
    handle.cleanup()
