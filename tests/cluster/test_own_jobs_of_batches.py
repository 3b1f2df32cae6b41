"""Batches whose inputs have a Job each, on the real cluster: their client dies, and another goes on."""

from __future__ import annotations

import os
import secrets
import subprocess
from contextlib import AbstractContextManager

import pytest

import kinetic_core
from kinetic_core import BatchHandle, JobStatus
from kinetic_core.backends.base import backend_of
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import GROUP_ID, QUEUE_DIGEST_NAME
from kinetic_core.connections import default_connections
from kinetic_core.errors import JobCancelled
from tests.cluster.dying import client, first_line
from tests.conftest import wait_for

pytestmark = [
    pytest.mark.usefixtures("gke"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of Google's client
]


@kinetic_core.run(accelerator="cpu", cpu=0.1, lease=60)
def alone(number: int) -> int:
    import time

    time.sleep(600 if number >= 100 else 3)
    return number


@kinetic_core.run(accelerator="tpu-v5p-8", backend="gke")
def on_hosts(number: int) -> int:
    import time

    time.sleep(3)
    return number


@kinetic_core.run(accelerator="tpu-v5p-8", backend="pathways")
def on_set(number: int) -> int:
    import time

    time.sleep(3)
    return number


SCRIPT = """
from tests.cluster.test_own_jobs_of_batches import {function}
batch = {function}.run_async_map({inputs}, group_id={group_id!r}, max_concurrent={most})
print(batch.group_id, flush=True)
batch.results()
"""


def submitter(
    function: str, group_id: str, inputs: list[int], most: int
) -> AbstractContextManager[subprocess.Popen[str]]:
    """Another process that makes a batch, or goes on with it, until it is killed."""
    return client(SCRIPT.format(function=function, inputs=inputs, group_id=group_id, most=most))


def killed_client(function: str, inputs: list[int], most: int, backend: str) -> str:
    """The id of a batch of which so many inputs run, and whose client is dead."""
    group_id = f"grp-{secrets.token_hex(4)}"
    with submitter(function, group_id, inputs, most) as process:
        assert first_line(process) == group_id
        looking = kinetic_core.attach_batch(group_id, backend=backend, goes_on=False, poll_interval=0.2)
        wait_for(lambda: looking.status_counts().get("RUNNING", 0) == most, 120)
    return group_id


def attempts(batch: BatchHandle) -> int:
    """How often inputs have begun, on their first host."""
    (job, *_) = filter(None, batch.jobs)
    pattern = f"jobs/{batch.group_id}-*/attempts/*/claim.json"
    return len(list(backend_of(job, default_connections()).store.list(f"jobs/{batch.group_id}-", pattern)))


@pytest.mark.promise("batches: `attach_batch` from any machine sees the same batch")
def test_whoever_attaches_goes_on(api: ClusterApi) -> None:
    group_id = killed_client("alone", [0, 1, 2, 3, 4], 2, "gke")
    looking = kinetic_core.attach_batch(group_id, backend="gke", goes_on=False)
    first = [job for job in looking.jobs if job is not None]
    wait_for(lambda: all(job.status() is JobStatus.SUCCEEDED for job in first), 60)
    assert len(first) == 2
    with submitter("alone", group_id, [0, 1, 2, 3, 4], 2) as other:
        batch = kinetic_core.attach_batch(group_id, backend="gke")
        assert batch.results(timeout=120, cleanup=False) == [0, 1, 2, 3, 4]
        assert other.wait(120) == 0
    assert attempts(batch) == 5
    namespace = os.environ["KINETIC_NAMESPACE"]
    assert api.get("Job", namespace, QUEUE_DIGEST_NAME.format(group_id)) is not None
    batch.cleanup()
    assert api.list("Job", namespace, {"labelSelector": f"{GROUP_ID}={group_id}"})["items"] == []
    wait_for(lambda: api.get("Job", namespace, QUEUE_DIGEST_NAME.format(group_id)) is None)


@pytest.mark.promise("batches: … cancelled and resumed after the client's death")
def test_cancelling_reaches_what_a_dead_client_has_started() -> None:
    group_id = killed_client("alone", [100, 101, 102], 2, "gke")
    kinetic_core.attach_batch(group_id, backend="gke", goes_on=False).cancel()
    values = kinetic_core.attach_batch(group_id, backend="gke").results(return_exceptions=True, timeout=60)
    assert [type(value) for value in values] == [JobCancelled] * 3


@pytest.mark.promise(
    "batches: Batches of slices: queued by the client, resumed by `attach_batch`",
    "both ways",
)
@pytest.mark.alone
@pytest.mark.slices
@pytest.mark.parametrize(("function", "backend"), [("on_hosts", "gke"), ("on_set", "pathways")])
def test_a_batch_of_slices_outlives_its_client(function: str, backend: str) -> None:
    group_id = killed_client(function, [0, 1, 2], 1, backend)
    batch = kinetic_core.attach_batch(group_id, backend=backend)
    assert batch.results(timeout=180) == [0, 1, 2]
