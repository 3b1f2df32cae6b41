"""How batches end while something is in the way: cancelled, collected and cleaned up by whoever is left."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core import BatchError, BatchHandle, JobHandle, JobStatus
from kinetic_core.backends.base import backend_of
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import GROUP_ID
from kinetic_core.connections import default_connections
from kinetic_core.errors import ClusterUnreachable, JobCancelled
from kinetic_core.testing.fault_proxy import FaultProxy
from tests.cluster.dying import die_in_turn
from tests.cluster.machine import (
    NODES,
    PAIR,
    TPU_TAINT,
    add_to_pair,
    cluster_tool,
    give_up,
    restored,
    stopped,
)
from tests.conftest import wait_for

pytestmark = [
    pytest.mark.usefixtures("gke"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of Google's client
]
ROOT = Path(__file__).parents[2]


@kinetic_core.run(accelerator="cpu", cpu=0.1, memory="160Mi")
def rest(seconds: float, fails_first: bool = False) -> str:
    import os
    import time

    print("resting", flush=True)
    time.sleep(seconds)
    if fails_first and os.environ["KINETIC_FAILED_COUNT"] == "0":
        raise RuntimeError("the first time")
    return os.environ["KINETIC_FAILED_COUNT"]


def script(call: str) -> subprocess.Popen[str]:
    """Another process that calls something of this module."""
    program = f"from tests.cluster import test_batch_endings as here; {call}"
    return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def resting(batch: BatchHandle, most: int) -> None:
    """Wait until so many inputs run."""
    wait_for(lambda: batch.status_counts().get("RUNNING", 0) == most, 90)


def living(api: ClusterApi, batch: BatchHandle) -> list[dict[str, Any]]:
    query = {"labelSelector": f"{GROUP_ID}={batch.group_id}"}
    found = api.list("Pod", os.environ["KINETIC_NAMESPACE"], query)["items"]
    return [pod for pod in found if pod["status"]["phase"] == "Running"]


def check_cancelled(api: ClusterApi, batch: BatchHandle, size: int) -> None:
    values = batch.results(timeout=120, return_exceptions=True)
    assert len(values) == size
    assert {type(value) for value in values} == {JobCancelled}
    assert living(api, batch) == []
    batch.cleanup()


@pytest.mark.promise("batches: Cancel during each: batch")
def test_cancelled_while_the_api_server_is_away(api: ClusterApi, api_proxy: FaultProxy) -> None:
    batch = rest.run_async_map([600.0] * 3, max_concurrent=2)
    resting(batch, 2)
    api_proxy.faults.drop(".", times=None)
    api_proxy.disconnect()
    threading.Timer(10, api_proxy.faults.clear).start()
    batch.cancel()
    check_cancelled(api, batch, 3)


@pytest.mark.promise("batches: Cancel during each: batch")
def test_cancelled_while_the_store_stumbles(api: ClusterApi, store_proxy: FaultProxy) -> None:
    batch = rest.run_async_map([600.0] * 3, max_concurrent=2)
    resting(batch, 2)
    store_proxy.faults.answer(".", 503, times=8)
    batch.cancel()
    check_cancelled(api, batch, 3)


@pytest.mark.promise("batches: Cancel during each: batch")
def test_an_input_that_never_started_is_no_none(api: ClusterApi) -> None:
    """It was: `[None, None]` without an error."""
    batch = rest.run_async_map([600.0] * 2, max_concurrent=1)
    resting(batch, 1)
    batch.cancel()
    with pytest.raises(BatchError, match="2 of 2 inputs") as caught:
        batch.results(timeout=120)
    assert [type(caught.value.exceptions[index]) for index in (0, 1)] == [JobCancelled] * 2
    assert [type(value) for _, value in batch.items()] == [JobCancelled] * 2
    check_cancelled(api, batch, 2)


@pytest.mark.promise("batches: `as_completed`; no attempt before its retries are exhausted")
def test_a_handle_comes_once_after_the_last_retry() -> None:
    batch = rest.run_async_map([(0.0, True), (0.0, False)], retries=1)
    came: list[JobHandle] = list(batch.as_completed(timeout=180))
    assert sorted(job.group_index or 0 for job in came) == [0, 1]
    assert [job.status() for job in came] == [JobStatus.SUCCEEDED] * 2
    assert batch.results(cleanup=False) == ["1", "0"]
    batch.cleanup()


@pytest.mark.promise("batches: Several processes observe, collect and cancel at once")
def test_several_processes_observe_collect_and_cancel_at_once(api: ClusterApi) -> None:
    batch = rest.run_async_map([0.0, 0.0, 600.0, 600.0])
    attached = f"here.kinetic_core.attach_batch({batch.group_id!r})"
    wait_for(lambda: batch.status_counts().get("SUCCEEDED", 0) == 2, 120)
    resting(batch, 2)
    others = [
        script(f"print(sum(isinstance(value, str) for _, value in {attached}.items(cleanup=False)))"),
        script(f"print(len(list({attached}.as_completed())))"),
        *(script(f"{attached}.cancel(); print('cancelled')") for _ in range(2)),
    ]
    said = [other.communicate(timeout=180)[0].strip() for other in others]
    assert said == ["2", "4", "cancelled", "cancelled"]
    values = batch.results(timeout=60, return_exceptions=True, cleanup=False)
    assert values[:2] == ["0", "0"]
    assert [type(value) for value in values[2:]] == [JobCancelled] * 2
    assert living(api, batch) == []
    batch.cleanup()


def die_at_each(group_id: str, verb: str) -> None:
    """Processes that do something with a batch, each of which dies at its n-th request, until one comes to
    its end. Prints how many died.
    """

    def act() -> None:
        with suppress(FileNotFoundError):  # the one before has come far enough
            getattr(kinetic_core.attach_batch(group_id), verb)()

    print(die_in_turn(act, range(1, 60)))


def killed_at_each(batch: BatchHandle, verb: str) -> int:
    said, _ = script(f"here.die_at_each({batch.group_id!r}, {verb!r})").communicate(timeout=400)
    return int(said)


@pytest.mark.promise("batches: client killed at each step of a 500-wide map")
def test_a_client_killed_at_each_request_of_collecting(api: ClusterApi) -> None:
    batch = rest.run_async_map([0.0] * 3)
    batch.wait(timeout=180)
    assert killed_at_each(batch, "results") >= 4
    assert kinetic_core.attach_batch(batch.group_id).results(cleanup=False) == ["0", "0", "0"]
    assert killed_at_each(batch, "cleanup") >= 2
    query = {"labelSelector": f"{GROUP_ID}={batch.group_id}"}
    assert api.list("Job", os.environ["KINETIC_NAMESPACE"], query)["items"] == []
    with pytest.raises(FileNotFoundError):
        kinetic_core.attach_batch(batch.group_id)


@pytest.mark.promise("batches: client killed at each step of a 500-wide map", "these two with 3 inputs")
def test_a_client_killed_at_each_request_of_cancelling(api: ClusterApi) -> None:
    batch = rest.run_async_map([600.0] * 3, max_concurrent=2)
    resting(batch, 2)
    assert killed_at_each(batch, "cancel") >= 3
    check_cancelled(api, batch, 3)


@pytest.mark.promise("batches: API server restart")
@pytest.mark.alone
def test_the_api_server_is_restarted_in_the_middle() -> None:
    group_id = f"grp-{secrets.token_hex(4)}"
    batch = rest.run_async_map([6.0] * 6, max_concurrent=3, group_id=group_id)
    resting(batch, 3)
    store = backend_of(next(filter(None, batch.jobs)), default_connections()).store
    with stopped("kube-apiserver"):
        other = script(f"print(here.kinetic_core.attach_batch({group_id!r}).results(cleanup=False))")
        wait_for(lambda: len(list(store.list(f"jobs/{group_id}-", f"jobs/{group_id}-*/result"))) == 3, 60)
    assert batch.results(timeout=240, cleanup=False) == ["0"] * 6
    assert other.communicate(timeout=120)[0].strip() == str(["0"] * 6)
    batch.cleanup()


@pytest.mark.promise("batches: Cancel during each: batch")
@pytest.mark.alone
@pytest.mark.slow
def test_cancelled_while_a_node_is_lost(api: ClusterApi) -> None:
    """What may go on there unseen is said, until somebody knows that the node is dead."""
    on_pair = kinetic_core.run(
        accelerator="cpu", cpu=0.4, memory="160Mi", node_selector=PAIR, tolerations=TPU_TAINT
    )
    with restored(api) as lost:
        for node in NODES:
            add_to_pair(api, node)
        batch = on_pair(rest.__wrapped__).run_async_map([600.0] * 6)
        resting(batch, 6)
        assert [pod for pod in living(api, batch) if pod["spec"]["nodeName"] == lost]
        cluster_tool("lose", lost)
        with pytest.raises(ClusterUnreachable, match="not proven dead"):
            batch.cancel()
        give_up(api, lost)
        batch.cancel()
        check_cancelled(api, batch, 6)
