"""How the inputs of a batch are, for somebody who only asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.kubernetes.names import HOST_INDEX
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.batches.definition import Plan
from kinetic_core.batches.snapshot import snapshot
from kinetic_core.batches.submit import submit_clientless
from kinetic_core.connections import default_connections
from kinetic_core.job import JobStatus
from kinetic_core.jobs.bundle import pack
from kinetic_core.options import RunOptions
from kinetic_core.testing import kubelet as behaviours
from kinetic_core.testing.kubelet import PodBehaviour
from tests.batches.places import Place
from tests.conftest import wait_for

SUCCEEDED, FAILED, RUNNING, PENDING = (
    JobStatus.SUCCEEDED,
    JobStatus.FAILED,
    JobStatus.RUNNING,
    JobStatus.PENDING,
)


def test_inputs_of_a_cluster_are_what_job_pods_and_store_say(place: Any) -> None:
    def behave(pod: dict[str, Any]) -> PodBehaviour:
        index = int(pod["metadata"]["labels"][HOST_INDEX])
        if index == 0:
            here.tell(pod)
            return behaviours.succeeds()
        if index == 1:
            return behaviours.runs_out_of_memory()
        return behaviours.runs_until_stopped() if index == 2 else behaviours.stays_pending()

    here: Place = place(behave)
    whole, _ = here.submit([1, 2, 3, 4])
    expected = {0: SUCCEEDED, 1: FAILED, 2: RUNNING, 3: PENDING}
    wait_for(lambda: snapshot(here.backend, whole) == expected)
    before = {info.name for info in here.store.list("")}
    here.store.create_if_absent(object_names.result("grp-a-3"), b"", {wire.STATE: "succeeded"})
    assert snapshot(here.backend, whole) == expected, "an outcome that nobody has signed does not count"
    here.store.delete(object_names.result("grp-a-3"))
    assert {info.name for info in here.store.list("")} == before, "a question changes nothing"


def test_inputs_that_began_no_more_are_cancelled(place: Any) -> None:
    def behave(pod: dict[str, Any]) -> PodBehaviour:
        here.tell(pod, wire.DROPPED)
        return behaviours.exits(65)

    here: Place = place(behave)
    whole, _ = here.submit([1, 2])
    wait_for(lambda: snapshot(here.backend, whole) == dict.fromkeys((0, 1), JobStatus.CANCELLED))


@pytest.mark.usefixtures("local_jobs")
def test_inputs_of_this_machine(tmp_path: Path) -> None:
    def work(number: int, folder: str) -> int:
        import time

        while number == 1 and not Path(folder, "go").exists():
            time.sleep(0.01)
        if number == 2:
            raise ValueError(number)
        return number

    packed = pack(work, RunOptions.checked("cpu"), default_connections())
    plan = Plan("grp-a", False, "args", 8, False, False, "a", {})
    whole = submit_clientless(packed, [(number, str(tmp_path)) for number in range(3)], plan)
    assert isinstance(packed.backend, LocalBackend)
    wait_for(lambda: snapshot(packed.backend, whole) == {0: SUCCEEDED, 1: RUNNING, 2: FAILED})
    (tmp_path / "go").touch()
    wait_for(lambda: snapshot(packed.backend, whole) == {0: SUCCEEDED, 1: SUCCEEDED, 2: FAILED})
