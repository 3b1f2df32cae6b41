"""What may happen to a batch: its clients die, nodes and servers go, and every input runs once."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import kinetic_core
from kinetic_core import BatchError, BatchHandle, JobStatus
from kinetic_core.backends.base import backend_of
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import GROUP_ID
from kinetic_core.connections import default_connections
from kinetic_core.errors import JobCancelled, WaitTimeout
from kinetic_core.store.gcs import GcsObjectStore
from kinetic_core.testing.fault_proxy import FaultProxy
from tests.cluster.dying import die_at
from tests.cluster.machine import NODES, PAIR, TPU_TAINT, add_to_pair, cluster_tool, give_up, restored
from tests.conftest import wait_for

pytestmark = [
    pytest.mark.usefixtures("gke"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of Google's client
]
WIDE = range(500)
MOST_REQUESTS = 16
"""Of which the last few are not made: a batch is submitted with fewer, and those processes end unharmed."""


def rest(seconds: float) -> tuple[str, str]:
    """Sleeps; the job's id and how often the infrastructure has begun it anew."""
    import os
    import time

    print("resting", flush=True)
    time.sleep(seconds)
    return os.environ["KINETIC_JOB_ID"], os.environ["KINETIC_IGNORED_COUNT"] or "0"


def rest_until(sign: str) -> str:
    """Sleeps until there is an object at that address; the job's id."""
    import os
    import time
    import urllib.error
    import urllib.request

    while True:
        try:
            urllib.request.urlopen(sign, timeout=5).close()
            return os.environ["KINETIC_JOB_ID"]
        except OSError as exc:  # nobody may answer just now
            if isinstance(exc, urllib.error.HTTPError) and exc.code != 404:
                raise
        time.sleep(0.2)


small = kinetic_core.run(accelerator="cpu", cpu=0.1, memory="160Mi")(rest)
nowhere = kinetic_core.run(accelerator="cpu", node_selector={"kinetic.test/node": "none"})(rest)
"""No node has that label: what is submitted stays, and takes nothing from anybody."""


def jobs_of(api: ClusterApi, group_id: str) -> list[dict[str, Any]]:
    query = {"labelSelector": f"{GROUP_ID}={group_id}"}
    found: list[dict[str, Any]] = api.list("Job", os.environ["KINETIC_NAMESPACE"], query)["items"]
    return found


def check(batch: BatchHandle, size: int) -> None:
    """Every input has run once, and its value is there."""
    values = batch.results(timeout=240, cleanup=False)
    assert [job_id for job_id, _ in values] == [f"{batch.group_id}-{index}" for index in range(size)]
    claims = backend_of(batch.jobs[0], default_connections()).store.list(  # type: ignore[arg-type]
        f"jobs/{batch.group_id}-", f"jobs/{batch.group_id}-*/attempts/*/claim.json"
    )
    assert len(list(claims)) == size
    batch.cleanup()


def submit_and_die(prefix: str) -> None:
    """Processes that begin a batch of 500 each, and end at one of their requests as by SIGKILL."""
    for number in range(1, MOST_REQUESTS + 1):
        for side in ("before", "after"):
            child = os.fork()
            if child == 0:
                die_at(".*", number, side)
                nowhere.run_async_map(WIDE, group_id=f"{prefix}-{number}-{side}", max_concurrent=1)
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


@pytest.mark.promise(
    "batches: One Indexed Job per ≤ 10,000 inputs, `parallelism`, `backoffLimitPerIndex`",
    "500 wide",
)
@pytest.mark.promise("batches: client killed at each step of a 500-wide map", "submission")
def test_a_client_killed_at_any_request_of_a_wide_batch(api: ClusterApi) -> None:
    prefix = f"grp-{secrets.token_hex(4)}"
    program = f"from tests.cluster.test_batch_faults import submit_and_die; submit_and_die({prefix!r})"
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, cwd=root, timeout=300, capture_output=True, text=True
    )
    ends = [int(line) for line in ran.stdout.split()]
    assert set(ends) == {0, 9}
    assert ends == sorted(ends, reverse=True), "no process outlives a request that killed another"
    for number in range(1, ends.count(9) // 2 + 1):
        for side in ("before", "after"):
            group_id = f"{prefix}-{number}-{side}"
            batch = nowhere.run_async_map(WIDE, group_id=group_id, max_concurrent=1)
            (job,) = jobs_of(api, group_id)
            assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (500, 1)
            assert len([each for each in batch.jobs if each is not None]) == 500
            batch.cancel()
            batch.cleanup()
            assert jobs_of(api, group_id) == []


def test_twenty_seconds_without_an_api_server(api_proxy: FaultProxy) -> None:
    batch = small.run_async_map([3.0] * 8, max_concurrent=4)
    wait_for(lambda: batch.status_counts().get("RUNNING"), 60)
    api_proxy.faults.drop(".", times=None)
    api_proxy.disconnect()
    threading.Timer(20, api_proxy.faults.clear).start()
    check(batch, 8)


@pytest.mark.promise("batches: Results object store 503")
def test_results_that_can_be_neither_written_nor_read_at_first(store_proxy: FaultProxy) -> None:
    for match in ('(?s)POST .*upload.*/result"', r"GET .*/result\?alt"):
        store_proxy.faults.answer(match, 503, times=6)
    check(small.run_async_map([0.0] * 6), 6)


@pytest.mark.promise("batches: One never schedulable")
@pytest.mark.alone  # wants half of a node, which others share
def test_an_input_without_room_is_named_and_cancellable(emulator: str, location: str) -> None:
    """All fit on that node but one, while another sleeps, whose value comes with what is said of that one."""
    half = kinetic_core.run(accelerator="cpu", cpu=1.1, node_selector={"kubernetes.io/hostname": "node-0"})
    bucket, _, prefix = location.partition("/")
    sign = f"room-{secrets.token_hex(4)}"
    address = f"{emulator}/storage/v1/b/{bucket}/o/{quote(f'{prefix}/{sign}', safe='')}"
    batch = half(rest_until).run_async_map([address, address])
    try:
        wait_for(lambda: batch.status_counts().get("RUNNING"), 60)
        (waiting,) = [index for index, status in batch.statuses() if status is JobStatus.PENDING]
        child = batch.jobs[waiting]
        assert child is not None
        wait_for(lambda: child.observe().reason == "Unschedulable", 30)
        assert "Insufficient cpu" in child.observe().message
        with pytest.raises(WaitTimeout):
            batch.results(timeout=0.5)
        child.cancel()
        with pytest.raises(JobCancelled):
            child.result(stream_logs=False)
        assert dict(batch.statuses())[1 - waiting] is JobStatus.RUNNING
        GcsObjectStore.at(location).create_if_absent(sign, b"")
        with pytest.raises(BatchError, match="1 of 2") as caught:
            batch.results(timeout=60)
        assert caught.value.partial_results[1 - waiting] == f"{batch.group_id}-{1 - waiting}"
        assert caught.value.partial_results[waiting] is None
        assert {index: type(exc) for index, exc in caught.value.exceptions.items()} == {waiting: JobCancelled}
    finally:
        batch.cancel()
        batch.cleanup()


@pytest.fixture
def pair(api: ClusterApi) -> Iterator[str]:
    """Two nodes for a batch, and the one to lose; it is back after the test."""
    with restored(api) as lost:
        for node in NODES:
            add_to_pair(api, node)
        yield lost


@pytest.mark.promise("batches: Node lost in the middle")
@pytest.mark.alone
def test_a_node_is_lost_in_the_middle(api: ClusterApi, pair: str) -> None:
    """An administrator gives it up: what ran there begins anew, at the expense of nobody's retries."""
    on_pair = kinetic_core.run(
        accelerator="cpu", cpu=0.4, memory="160Mi", node_selector=PAIR, tolerations=TPU_TAINT
    )
    batch = on_pair(rest).run_async_map([12.0] * 8, max_concurrent=8)
    query = {"labelSelector": f"{GROUP_ID}={batch.group_id}"}

    def running_there() -> int:
        found = api.list("Pod", os.environ["KINETIC_NAMESPACE"], query)["items"]
        there = [pod for pod in found if pod["spec"].get("nodeName") == pair]
        return sum(pod["status"]["phase"] == "Running" for pod in there)

    wait_for(lambda: batch.status_counts().get("RUNNING") == 8 and running_there(), 90)
    lost = running_there()
    cluster_tool("lose", pair)
    wait_for(lambda: batch.status_counts().get("SUCCEEDED", 0) == 8 - lost, 90)
    give_up(api, pair)
    values = batch.results(timeout=240, cleanup=False)
    assert [job_id for job_id, _ in values] == [f"{batch.group_id}-{index}" for index in range(8)]
    assert sorted(begun_anew for _, begun_anew in values) == ["0"] * (8 - lost) + ["1"] * lost
    batch.cleanup()
