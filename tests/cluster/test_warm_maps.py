"""Maps on workers of a real cluster: a pod for each worker, and every value, also when a pod is deleted."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core._runner import wire
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.batches.handle import BatchHandle
from kinetic_core.batches.outcomes import StoredBatch
from kinetic_core.jobs.inputs import read_manifest
from kinetic_core.jobs.lanes import segments
from kinetic_core.jobs.references import checked_reference
from tests.cluster.jobs import delete, pods
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("gke")


def whoami(number: int) -> tuple[int, str, bool]:
    """Say where the input runs, and whether an earlier one has left a file."""
    left = Path("left").exists() or (Path.home() / "left").exists()
    Path("left").touch()
    (Path.home() / "left").touch()
    time.sleep(0.05)
    return number, os.environ["KINETIC_POD_UID"], left


def nap(number: int) -> tuple[int, str]:
    time.sleep(0.5)
    return number, os.environ["KINETIC_POD_UID"]


def test_a_map_takes_a_pod_for_each_worker(api: ClusterApi) -> None:
    function = kinetic_core.run(accelerator="cpu", warm="5m", cpu=0.1)
    values = function(whoami).run_async_map(range(100), max_concurrent=2).results(cleanup=False)
    assert [value[0] for value in values] == list(range(100))
    assert len({value[1] for value in values}) == 2
    assert not any(value[2] for value in values)
    batch = function(nap).run_async_map(range(40), max_concurrent=2)
    wait_for(lambda: batch.progress().ended >= 4, 60)
    lane = kinetic_core.attach(f"{batch.group_id}-l0")
    (pod,) = pods(api, kinetic_core.attach(lane.worker))
    assert pod["metadata"]["uid"] in {value[1] for value in values}, "the workers are those of the first map"
    delete(api, pod)
    found = batch.results(timeout=300, cleanup=False)
    assert [value[0] for value in found] == list(range(40))
    assert len({value[1] for value in found}) == 3


def moment(number: int) -> tuple[int, float]:
    time.sleep(0.5)
    return number, time.time()


def test_a_cancelled_map_goes_on_in_another_round() -> None:
    """What has a value keeps it; how inputs ended is told by listings, without a segment being read."""
    function = kinetic_core.run(accelerator="cpu", warm="5m", cpu=0.1)(moment)
    group_id = f"grp-{secrets.token_hex(4)}"

    def again() -> BatchHandle:
        return function.run_async_map(range(30), group_id=group_id, skip_done=True, max_concurrent=2)

    first = again()
    wait_for(lambda: first.progress().ended >= 4, 120)
    first.cancel()
    found = dict(first.items(cleanup=False))
    values = {index: value for index, value in found.items() if isinstance(value, tuple)}
    assert 4 <= len(values) < 30
    second = again()
    done = second.results(timeout=300, cleanup=False)
    assert [value[0] for value in done] == list(range(30))
    assert {index: done[index] for index in values} == values
    child = second.jobs[0]
    assert child is not None
    backend = child.place
    whole = checked_reference(read_manifest(backend.store, group_id)["reference"], group_id, backend)
    listed = [info for number in (0, 1) for info in segments(backend.store, group_id, number)]
    assert listed
    assert all(info.metadata[wire.STATES] for info in listed)
    assert StoredBatch(backend, whole).states() == dict.fromkeys(range(30), "succeeded")
    second.cleanup()
