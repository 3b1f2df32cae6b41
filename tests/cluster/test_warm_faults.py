"""Warm calls while the store stumbles, and when a node of their worker is lost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

import kinetic_core
from kinetic_core._runner import object_names
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import NODE_SILENT
from kinetic_core.testing.fault_proxy import FaultProxy
from kinetic_core.testing.faulty_server import Faults
from tests.cluster.jobs import own_lines, pods
from tests.cluster.machine import NODES, PAIR, TPU_TAINT, add_to_pair, cluster_tool, give_up, restored
from tests.conftest import Kinetic, wait_for

pytestmark = [
    pytest.mark.usefixtures("gke"),
    pytest.mark.alone,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of Google's client
]
UPLOADS = ("/payload-", "/handle.json", "index/", "/calls/0000000", "/claim.json", '/result"')
"""Objects that a warm call stores, in this order: four by its client, two by its worker."""
DOWNLOADS = (r"/calls/0000000\d.json\?alt", r"/payload-\w+.pkl\?alt", r"trees/\w+.json\?alt")
"""Objects that a worker reads for a call."""
FAULTS: dict[str, Callable[[Faults, str], None]] = {
    "503": lambda faults, match: faults.answer(match, 503, times=2),
    "dropped": lambda faults, match: faults.drop(match, times=2),
    "lost": lambda faults, match: faults.lose_reply(match),
}


def work(word: str) -> tuple[str, str]:
    print("this is", word)
    return word, os.environ["KINETIC_POD_UID"]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_store_stumbles_at_every_step(store_proxy: FaultProxy, kinetic: Kinetic, fault: str) -> None:
    warm = kinetic_core.run(accelerator="cpu", warm="5m", cpu=0.1)(work)
    first = warm.run_async("first")
    _, uid = first.result(cleanup=False)
    for pattern in UPLOADS:
        FAULTS[fault](store_proxy.faults, f"(?s)POST .*upload.*{pattern}")
    for pattern in DOWNLOADS:
        FAULTS[fault](store_proxy.faults, f"GET .*{pattern}")
    second = warm.run_async("second")
    assert second.result(cleanup=False, timeout=120) == ("second", uid), "the same worker has run it"
    assert store_proxy.faults.unmet == ()
    claims = second.place.store.list(f"jobs/{second.job_id}/attempts/")
    assert [each.name for each in claims if each.name.endswith("claim.json")] == [
        object_names.claim(second.job_id, 0)
    ]
    assert own_lines(second.logs()) == ["this is second"]
    assert warm.run_async("third").result() == ("third", uid)
    assert kinetic("warm", "stop", "--all").code == 0


def naps_on_a_worker() -> str:
    """Sleep on a worker; in a pod of its own, return at once."""
    print("begun", flush=True)
    time.sleep(600 if "KINETIC_ON_WORKER" in os.environ else 0)
    return os.environ["KINETIC_POD_UID"]


@pytest.fixture
def node(api: ClusterApi) -> Iterator[str]:
    """A node to lose; it is back after the test."""
    with restored(api) as found:
        yield found


def falls_silent(node: str, worker: kinetic_core.JobHandle) -> None:
    """All of it is lost; returns when that is seen."""
    cluster_tool("lose", node)
    wait_for(lambda: worker.observe().reason == NODE_SILENT, 90)


def begins(handle: kinetic_core.JobHandle) -> None:
    wait_for(lambda: "begun" in (handle.logs() or ""), 60)


READ_FIRST = {"given": r"/calls/0000000\d.json\?alt", "claimed": r"/payload-\w+.pkl\?alt"}
"""What a worker reads next at a moment: as long as nothing answers that, it stays there."""


@pytest.mark.parametrize("moment", ["given", "claimed", "begun", "ended"])
def test_a_call_outlives_its_workers_node(
    api: ClusterApi, node: str, emulator: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Lost once the worker was given the call, has claimed it, runs its function, or has stored its value."""
    add_to_pair(api, node)
    options: dict[str, Any] = {"node_selector": PAIR, "tolerations": TPU_TAINT}
    warm = kinetic_core.run(accelerator="cpu", cpu=0.1, warm="5m", **options)
    with FaultProxy(emulator, host=str(urlsplit(emulator).hostname)) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        first = warm(work).run_async("first")
        first.result(cleanup=False)
        if moment in READ_FIRST:
            proxy.faults.silence(f"GET .*{READ_FIRST[moment]}", 600, times=None)
        handle = warm(naps_on_a_worker).run_async() if moment != "ended" else warm(work).run_async("ended")
        assert handle.worker == first.worker
        store = handle.place.store
        if moment == "begun":
            begins(handle)
        elif moment == "claimed":
            wait_for(lambda: store.find(object_names.claim(handle.job_id, 0)) is not None, 60)
        elif moment == "ended":
            wait_for(lambda: store.find(object_names.result(handle.job_id)) is not None, 60)
        worker = kinetic_core.attach(handle.worker)
        (pod,) = pods(api, worker)
        add_to_pair(api, NODES[0])
        falls_silent(node, worker)
        proxy.faults.clear()
        assert pods(api, handle) == [], "its worker may live"
        if moment == "ended":
            assert handle.result(timeout=60, cleanup=False) == ("ended", pod["metadata"]["uid"])
            assert pods(api, handle) == []
        give_up(api, node)
        if moment != "ended":
            assert handle.result(timeout=180, cleanup=False) not in ("", pod["metadata"]["uid"])
            assert handle.observe().attempt == (0 if moment == "given" else 1)
            assert own_lines(handle.logs()).count("begun") == (2 if moment == "begun" else 1)
        handle.cleanup()


@pytest.mark.slices
def test_a_call_outlives_a_host_of_its_worker(api: ClusterApi, node: str, kinetic: Kinetic) -> None:
    """Whose machine is back after a minute."""
    warm = kinetic_core.run(accelerator="tpu-v5p-8", warm="5m", cpu=0.1, backend="gke")
    handle = warm(naps_on_a_worker).run_async()
    wait_for(lambda: own_lines(handle.logs()) == ["[host 0] begun", "[host 1] begun"], 60)
    worker = kinetic_core.attach(handle.worker)
    before = {pod["metadata"]["uid"] for pod in pods(api, worker)}
    falls_silent(node, worker)
    assert pods(api, handle) == []
    cluster_tool("start", node)
    assert handle.result(timeout=240, cleanup=False) not in {"", *before}
    assert handle.observe().attempt == 1
    assert len(pods(api, handle)) == len(before) == 2
    handle.cleanup()
    assert kinetic("warm", "stop", "--all").code == 0
