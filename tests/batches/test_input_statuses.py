"""How the inputs of a batch are, for somebody who only asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.kubernetes.names import HOST_INDEX
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.batches.definition import Plan
from kinetic_core.batches.handle import BatchHandle
from kinetic_core.batches.indexed import IndexedScheduler
from kinetic_core.batches.rerun import stored_states
from kinetic_core.batches.snapshot import batch_times, snapshot
from kinetic_core.batches.submit import submit_clientless
from kinetic_core.connections import default_connections
from kinetic_core.job import JobStatus
from kinetic_core.jobs.bundle import pack
from kinetic_core.options import RunOptions
from kinetic_core.store.protocol import ObjectInfo
from kinetic_core.testing import kubelet as behaviours
from kinetic_core.testing.kubelet import PodBehaviour
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.airflow_provider.records_of_jobs import reference
from tests.batches.places import PLAN, Place
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
    wait_for(lambda: snapshot(here.backend, whole, 4) == expected)
    before = {info.name for info in here.store.list("")}
    here.store.create_if_absent(object_names.result("grp-a-3"), b"", {wire.STATE: "succeeded"})
    assert snapshot(here.backend, whole, 4) == expected, "an outcome that nobody has signed does not count"
    here.store.delete(object_names.result("grp-a-3"))
    assert {info.name for info in here.store.list("")} == before, "a question changes nothing"


@pytest.mark.parametrize(
    ("size", "state", "code", "status", "requests"),
    [
        (3, "succeeded", wire.EXIT_SUCCEEDED, SUCCEEDED, []),
        (3, wire.DROPPED, wire.EXIT_NEVER_RETRY, JobStatus.CANCELLED, ["list"]),
        (2000, wire.DROPPED, wire.EXIT_NEVER_RETRY, JobStatus.CANCELLED, ["find"]),
    ],
)
def test_the_store_is_asked_for_what_a_cluster_leaves_open(
    place: Any, size: int, state: str, code: int, status: JobStatus, requests: list[str]
) -> None:
    """What waits, runs or has a value the cluster tells; why an input has failed only the store knows."""

    def behave(pod: dict[str, Any]) -> PodBehaviour:
        index = int(pod["metadata"]["labels"][HOST_INDEX])
        if index == 0:
            here.tell(pod, state)
            return behaviours.exits(code)
        return behaviours.runs_until_stopped() if index == 1 else behaviours.stays_pending()

    here: Place = place(behave)
    whole, _ = here.submit(list(range(size)), replace(PLAN, max_concurrent=3))
    expected = dict.fromkeys(range(size), PENDING) | {0: status, 1: RUNNING}
    wait_for(lambda: snapshot(here.backend, whole, size) == expected)
    here.store.requests.clear()
    assert snapshot(here.backend, whole, size) == expected
    assert [operation for operation, _ in here.store.requests] == requests
    here.store.requests.clear()
    assert stored_states(here.backend, whole.namespace, whole.job_id, indexes=[0, 2]) == {0: state}
    assert here.store.requests == [("find", object_names.result(f"grp-a-{index}")) for index in (0, 2)]


def test_inputs_that_never_ran_are_cancelled_with_their_batch(place: Any) -> None:
    here: Place = place(lambda _: behaviours.runs_until_stopped())
    whole, _ = here.submit([1, 2, 3, 4, 5, 6], replace(PLAN, max_concurrent=2))
    board = here.watched(6, whole)
    batch = BatchHandle(whole.job_id, None, {}, board, IndexedScheduler(here.backend, whole))
    wait_for(lambda: batch.status_counts().get("RUNNING") == 2)
    assert repr(batch) == "<batch grp-a: 6 inputs, 0 ended>"
    batch.cancel()
    wait_for(lambda: batch.progress().is_over)
    assert batch.status_counts() == {"CANCELLED": 6}
    assert [index for index, _ in batch.statuses()] == list(range(6))
    assert repr(batch) == "<batch grp-a: 6 inputs, 6 ended (6 cancelled)>"
    assert "6 cancelled" in batch._repr_html_()
    batch.close()


class Store(MemoryObjectStore):
    """Empty objects, and when each was stored."""

    def __init__(self, times: Mapping[str, float]) -> None:
        super().__init__()
        self._times = times
        for name in times:
            self.create_if_absent(name, b"")

    def list(self, prefix: str, pattern: str = "", since: str = "") -> Iterator[ObjectInfo]:
        for each in super().list(prefix, pattern, since):
            yield replace(each, created=self._times[each.name])


@pytest.mark.attack
def test_for_how_long_the_attempts_of_a_batch_have_run() -> None:
    """The first input was retried, the second lost an attempt, the third runs, the last has not begun."""
    times = {
        object_names.claim("grp-a-0", 0): 10.0,
        object_names.attempt_outcome("grp-a-0", 0): 13.0,
        object_names.claim("grp-a-0", 1): 20.0,
        object_names.result("grp-a-0"): 25.0,
        object_names.claim("grp-a-1", 0): 10.0,
        object_names.claim("grp-a-1", 1): 30.0,
        object_names.result("grp-a-1"): 31.0,
        object_names.claim("grp-a-2", 0): 90.0,
        object_names.result("grp-a-3"): 50.0,
        object_names.claim("grp-a-12-0", 0): 1.0,  # of a batch `grp-a-12`
        "jobs/grp-a-2/attempts/planted/claim.json": 1.0,
        object_names.claim("grp-a-4", 0): 1.0,  # of an input that the batch does not have
        object_names.claim(f"grp-a-1{'0' * 30}", 0): 1.0,
    }
    store = Store(times)
    submitted = reference("grp-a", created_at="1970-01-01T00:00:04Z")
    assert batch_times(Store({}), submitted, 4, 100.0, is_over=False) == (0.0, 96.0, 96.0), "it has not begun"
    run_seconds = (3 + 5) + (20 + 1) + 10
    assert batch_times(store, submitted, 4, 100.0, is_over=False) == (run_seconds, 96.0, 6.0)
    assert batch_times(store, submitted, 4, 100.0, is_over=True) == (run_seconds, 96.0, 6.0), "one still runs"


def test_the_times_of_a_batch_are_those_since_its_submission() -> None:
    """A retry runs inputs again; those of the first try, which ended before, stay stored."""
    times = {
        object_names.claim("grp-a-0", 0): 10.0,
        object_names.result("grp-a-0"): 20.0,
        object_names.claim("grp-a-1", 0): 1010.0,
        object_names.result("grp-a-1"): 1025.0,
        object_names.claim("grp-a-2", 0): 1012.0,
        object_names.result("grp-a-2"): 1020.0,
    }
    store = Store(times)
    again = reference("grp-a", created_at="1970-01-01T00:16:40Z")
    assert batch_times(store, again, 4, 5000.0, is_over=True) == (10 + 15 + 8, 25.0, 10.0)
    found = reference("grp-a", created_at="1970-01-01T00:33:20Z")
    assert batch_times(store, found, 4, 2001.0, is_over=True) == (33, 1.0, 1.0), "every value was there"
    early = reference("grp-a", created_at="1970-01-01T00:16:51Z")  # a clock that is ahead of the store's
    assert batch_times(store, early, 4, 5000.0, is_over=True) == (33, 14.0, 0.0)


def test_inputs_that_began_no_more_are_cancelled(place: Any) -> None:
    def behave(pod: dict[str, Any]) -> PodBehaviour:
        here.tell(pod, wire.DROPPED)
        return behaviours.exits(65)

    here: Place = place(behave)
    whole, _ = here.submit([1, 2])
    wait_for(lambda: snapshot(here.backend, whole, 2) == dict.fromkeys((0, 1), JobStatus.CANCELLED))


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
    wait_for(lambda: snapshot(packed.backend, whole, 3) == {0: SUCCEEDED, 1: RUNNING, 2: FAILED})
    (tmp_path / "go").touch()
    wait_for(lambda: snapshot(packed.backend, whole, 3) == {0: SUCCEEDED, 1: SUCCEEDED, 2: FAILED})
