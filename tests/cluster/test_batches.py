"""Batches whose inputs share a Job, on the real cluster: no client is needed, and none is trusted to live."""

from __future__ import annotations

import os
import secrets
import subprocess
import threading
from contextlib import AbstractContextManager
from typing import Any

import pytest

import kinetic_core
from kinetic_core import BatchError, BatchHandle, JobStatus
from kinetic_core.backends.base import backend_of
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import GROUP_ID, HOST_INDEX
from kinetic_core.connections import default_connections
from kinetic_core.errors import BatchTimeout, JobCancelled, JobConflict, JobOutOfMemory
from tests.cluster.dying import client, first_line, leave_a_trace
from tests.cluster.jobs import evict
from tests.conftest import wait_for

pytestmark = [
    pytest.mark.usefixtures("gke"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of Google's client
]


@kinetic_core.run(accelerator="cpu", cpu=0.1, memory="160Mi")
def work(number: int) -> Any:
    """What a number asks for: 0 to 99 succeed, 100 sleeps, 200 fails, 300 uses all memory, 400 fails once."""
    import os
    import time

    print(f"number {number}, attempt {os.environ['KINETIC_FAILED_COUNT']}", flush=True)
    if number == 100:
        time.sleep(600)
    if number == 101:
        time.sleep(0 if os.environ.get("KINETIC_IGNORED_COUNT") else 600)
    if number == 200 or (number == 400 and os.environ["KINETIC_FAILED_COUNT"] == "0"):
        raise KeyError(number)
    if number == 300:
        return len(bytearray(1 << 30))
    if number == 500 and "-" in os.environ["KINETIC_INDEXES"]:
        raise KeyError("the first time, with others")
    return number, os.environ["KINETIC_JOB_ID"]


def objects(api: ClusterApi, kind: str, batch: BatchHandle) -> list[dict[str, Any]]:
    query = {"labelSelector": f"{GROUP_ID}={batch.group_id}"}
    found: list[dict[str, Any]] = api.list(kind, os.environ["KINETIC_NAMESPACE"], query)["items"]
    return found


def child(batch: BatchHandle, index: int) -> kinetic_core.JobHandle:
    found = batch.jobs[index]
    assert found is not None
    return found


def partial_results(batch: BatchHandle) -> list[Any]:
    with pytest.raises(BatchTimeout) as early:
        batch.results(timeout=0.1)
    return early.value.partial_results


@pytest.mark.promise("batches: Inputs stored once, packed, no object per input", "four objects for twenty")
@pytest.mark.promise("batches: Results readable as they arrive, `(index, value)`")
def test_twenty_inputs_are_one_job(api: ClusterApi) -> None:
    batch = work.run_async_map(range(20), name="twenty", tags={"a": "b"})
    (job,) = objects(api, "Job", batch)
    assert job["spec"]["completions"] == 20
    other = kinetic_core.attach_batch(batch.group_id)
    assert (other.name, other.tags) == ("twenty", {"a": "b"})
    seen: dict[int, Any] = {}
    observer = threading.Thread(target=lambda: seen.update(other.items(cleanup=False)))
    observer.start()
    expected = [(number, f"{batch.group_id}-{number}") for number in range(20)]
    assert batch.results(cleanup=False, timeout=240) == expected
    observer.join()
    assert sorted(seen.items()) == list(enumerate(expected))
    assert batch.status_counts() == {"SUCCEEDED": 20}
    assert child(batch, 7).status() is JobStatus.SUCCEEDED
    assert child(other, 7).logs() == "number 7, attempt 0\n"
    assert {"start", "function"} & {phase.name for phase in child(batch, 7).explain().phases}
    alone = kinetic_core.attach(f"{batch.group_id}-7")
    assert alone.result(stream_logs=False) == expected[7]
    store = alone.place.store
    assert len(list(store.list(f"batches/{batch.group_id}/"))) == 4
    batch.cleanup()
    assert objects(api, "Job", batch) == []
    assert list(store.list(f"jobs/{batch.group_id}-")) == list(store.list(f"batches/{batch.group_id}/")) == []


@pytest.mark.promise("batches: Cancel one index")
@pytest.mark.promise("batches: Retries of one index")
@pytest.mark.promise(
    "batches: `BatchError` with every remote exception",
    "`KeyError`, out of memory, cancelled",
)
@pytest.mark.promise("batches: Partial results on timeout", "`BatchTimeout`")
@pytest.mark.promise("batches: One index OOM")
def test_every_input_ends_in_its_own_way(api: ClusterApi) -> None:
    batch = work.run_async_map([1, 200, 300, 400, 100, 101], retries=1, max_concurrent=6)
    wait_for(lambda: all("number" in (child(batch, index).logs() or "") for index in (4, 5)), 120)
    assert dict(batch.statuses())[4] is JobStatus.RUNNING
    wait_for(lambda: partial_results(batch)[0], 120)
    first, *_, fifth, sixth = partial_results(batch)
    assert (first[0], fifth, sixth) == (1, None, None)
    child(batch, 4).cancel()
    assert child(batch, 4).status() is JobStatus.CANCELLED
    (pod,) = [p for p in objects(api, "Pod", batch) if p["metadata"]["labels"][HOST_INDEX] == "5"]
    evict(api, pod)
    with pytest.raises(BatchError, match="3 of 6") as caught:
        batch.results(timeout=240)
    error = caught.value
    assert {index: type(exc) for index, exc in error.exceptions.items()} == {
        1: KeyError,
        2: JobOutOfMemory,
        4: JobCancelled,
    }
    assert [value and value[0] for value in error.partial_results] == [1, None, None, 400, None, 101]
    assert (child(batch, 1).logs() or "").splitlines()[0] == "number 200, attempt 0"
    assert child(batch, 3).observe().attempt == 1
    assert [job.group_index for job in batch.failures()] == [1, 2, 4]
    assert objects(api, "Job", batch), "a batch with failures is kept"
    batch.cleanup()


@pytest.mark.promise("batches: `fail_fast` through the marker")
def test_after_a_failure_nothing_starts(api: ClusterApi) -> None:
    batch = work.run_async_map([200, 1, 2], fail_fast=True, max_concurrent=1)
    stopping = work.run_async_map([100, 200], fail_fast=True, cancel_running_on_fail=True)
    with pytest.raises(BatchError, match="3 of 3") as caught:
        batch.results(timeout=120)
    kinds = {index: type(error) for index, error in caught.value.exceptions.items()}
    assert kinds == {0: KeyError, 1: JobCancelled, 2: JobCancelled}
    assert [job.group_index for job in caught.value.failures] == [0]
    assert [job is not None for job in batch.jobs] == [True, False, False]
    values = stopping.results(timeout=120, return_exceptions=True)
    assert isinstance(values[1], KeyError)
    assert isinstance(values[0], JobCancelled)
    for each in (batch, stopping):
        each.cleanup()


@pytest.mark.promise("batches: Cancel all")
def test_cancelling_all_stops_what_runs(api: ClusterApi) -> None:
    batch = work.run_async_map([1, 100, 100], max_concurrent=2)
    wait_for(lambda: batch.status_counts().get("SUCCEEDED") == 1, 120)
    wait_for(lambda: "number" in (child(batch, 1).logs() or ""), 60)
    kinetic_core.attach_batch(batch.group_id).cancel()
    values = batch.results(timeout=180, return_exceptions=True)
    assert values[0][0] == 1
    assert isinstance(values[1], JobCancelled)
    assert [p for p in objects(api, "Pod", batch) if p["status"]["phase"] == "Running"] == []
    batch.cleanup()


@pytest.mark.promise("data: `KINETIC_OUTPUT_DIR`, unique per job and child")
@pytest.mark.promise("batches: Each input has outputs of its own (W60)")
def test_outputs_of_an_input_are_its_own() -> None:
    """At the default place in the bucket, which the inputs of one Job must not share."""
    traced = kinetic_core.run(accelerator="cpu", cpu=0.1, memory="160Mi")(leave_a_trace)
    batch = traced.run_async_map(["first", "second"])
    assert batch.results(timeout=120, cleanup=False) == ["first", "second"]
    for index, name in enumerate(("first", "second")):
        outputs = child(batch, index).outputs()
        assert [outputs.read(file.name) for file in outputs] == [name.encode()]
    batch.cleanup()


SCRIPT = """
from tests.cluster.test_batches import work
batch = work.run_async_map({inputs}, group_id={group_id!r})
print(batch.group_id, flush=True)
import time
time.sleep(600)
"""


def submitter(
    group_id: str, inputs: list[int], **environment: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    """Another process that starts a batch and then lives on."""
    return client(SCRIPT.format(inputs=inputs, group_id=group_id), **environment)


@pytest.mark.promise("batches: It returns, and the client may die at once", "SIGKILL")
@pytest.mark.promise("batches: `attach_batch` from any machine sees the same batch")
@pytest.mark.promise("batches: Deterministic batch id: a repeated call adopts")
@pytest.mark.promise("batches: `skip_done=True` resumes a half-failed sweep")
@pytest.mark.promise("batches: Duplicate `run_async_map` with one id, two machines")
def test_two_machines_make_one_batch_that_outlives_both(api: ClusterApi) -> None:
    group_id = f"grp-{secrets.token_hex(4)}"
    with submitter(group_id, [1, 500, 3]) as one, submitter(group_id, [1, 500, 3]) as two:
        assert first_line(one) == first_line(two) == group_id
    batch = kinetic_core.attach_batch(group_id)
    assert len(objects(api, "Job", batch)) == 1
    values = batch.results(timeout=120, return_exceptions=True)
    assert [isinstance(value, KeyError) for value in values] == [False, True, False]
    claims = backend_of(child(batch, 0), default_connections()).store.list(
        f"jobs/{group_id}-", f"jobs/{group_id}-*/attempts/*/claim.json"
    )
    assert len(list(claims)) == 3
    with pytest.raises(JobConflict):
        work.run_async_map([1, 500, 4], group_id=group_id)
    again = work.run_async_map([1, 500, 3], group_id=group_id)
    assert len(objects(api, "Job", again)) == 1
    resumed = work.run_async_map([1, 500, 3], group_id=group_id, skip_done=True)
    assert [value[0] for value in resumed.results(timeout=120)] == [1, 500, 3]
    resumed.cleanup()
