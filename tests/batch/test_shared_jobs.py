"""Inputs that share a Job, on a fake cluster: what is stored and created, and what is seen of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import codec, wire
from kinetic_core._runner.indexes import parse_indexes
from kinetic_core.batch.board import Board
from kinetic_core.batch.part_watching import PartWatch
from kinetic_core.batch.plan import Plan
from kinetic_core.batch.shared_jobs import can_share, submit_batch
from kinetic_core.cluster.connecting import Target
from kinetic_core.cluster.names import HOST_INDEX, JOB_ID
from kinetic_core.cluster.parts import variable
from kinetic_core.cluster.pods import attempt_of
from kinetic_core.cluster.verdict import observe
from kinetic_core.configuration import read_settings
from kinetic_core.errors import ConfigurationError, InvalidRequest, JobConflict, StoreError
from kinetic_core.gke.backend import GkeBackend
from kinetic_core.lifecycle.children import child_reference
from kinetic_core.lifecycle.ending import index_object
from kinetic_core.lifecycle.handle import JobHandle
from kinetic_core.lifecycle.hub import hub_for
from kinetic_core.lifecycle.observing import find
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.packing import Packed, pack
from kinetic_core.lifecycle.reaping import orphans, reap
from kinetic_core.lifecycle.settling import look
from kinetic_core.lifecycle.summaries import summaries
from kinetic_core.lifecycle.whole_batches import children, forget
from kinetic_core.local.backend import LocalBackend
from kinetic_core.model.accelerators import parse_accelerator
from kinetic_core.model.job import Fallback, JobReference
from kinetic_core.model.states import JobStatus
from kinetic_core.testing import pod_behaviour as behaviours
from kinetic_core.testing.fake_cluster import FakeCluster
from kinetic_core.testing.memory_store import MemoryObjectStore
from kinetic_core.testing.pod_behaviour import Behave, PodBehaviour
from tests.conftest import wait_for

PLAN = Plan("grp-a", False, "auto", 64, False, False, "a", {})


def square(x: int) -> int:
    return x * x


class Place:
    """A cluster, a store, and a function packed for them."""

    def __init__(self, folder: Path, behave: Behave, **options: Any) -> None:
        self.fake = FakeCluster(behave)
        self.folder = folder
        self.backend = GkeBackend(
            Target(str(self.fake.write_kubeconfig(folder / "kubeconfig"))), "bucket", read_settings()
        )
        self.store = MemoryObjectStore("gs://bucket")
        self.backend.store = self.store  # type: ignore[assignment]  # Cloud Storage is for cluster tests
        self.options = options

    def packed(self) -> Packed:
        asked = RunOptions.checked("cpu", container_image="python:3.11", **self.options)
        settings = replace(
            read_settings(), cache=self.folder / "cache", package_root=str(Path(__file__).parent)
        )
        return pack(square, asked, settings, backend=self.backend)

    def submit(self, items: list[Any], plan: Plan = PLAN) -> tuple[JobReference, dict[int, Exception]]:
        return submit_batch(self.packed(), items, plan)

    def watched(self, size: int, whole: JobReference, plan: Plan = PLAN) -> Board:
        board = Board(size)
        board.fill([JobHandle.of(child_reference(whole, index)) for index in range(size)])
        parts = self.backend.parts.parts("default", whole.job_id)
        PartWatch(self.backend, whole, board, plan.fail_fast).start(parts)
        return board

    def failure(self, child: str) -> wire.Failure:
        """How Kubernetes' objects say that an input failed."""
        found = self.backend.get("default", child)
        assert found is not None
        failure = observe(*found).failure
        assert failure is not None
        return failure

    def jobs(self) -> list[dict[str, Any]]:
        return self.fake.objects.list("Job", "default")[1]

    def close(self) -> None:
        """Let nobody watch any more what is about to go."""
        for part in {job["metadata"]["labels"][JOB_ID] for job in self.jobs()}:
            self.backend.remove("default", part)
        wait_for(lambda: "kinetic-hub-default" not in {thread.name for thread in threading.enumerate()})
        self.backend.close("default")
        self.fake.close()

    def tell(self, pod: dict[str, Any], state: str = "succeeded") -> None:
        """What a pod's runner stores, in the least form."""
        spec = {"spec": {"template": pod}}
        indexes = parse_indexes(variable(spec, "KINETIC_INDEXES") or "")
        index = indexes[int(pod["metadata"]["labels"][HOST_INDEX])]
        child = wire.child_id(variable(spec, "KINETIC_GROUP_ID") or "", index)
        key = wire.child_key(bytes.fromhex(variable(spec, "KINETIC_OUTCOME_KEY") or ""), index)
        header = {"protocol": 1, "job_id": child, "attempt": 0, "state": state, "codec": "typed"}
        if state != wire.DROPPED:
            self.store.create(wire.claim_object(child, 0), b"{}")
        frame = wire.encode_frame(header, codec.encode(index), key)
        self.store.create(wire.result_object(child), frame, {wire.STATE: state})


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Any]:
    opened: list[Place] = []

    def make(behave: Behave = lambda _: behaviours.stays_pending(), **options: Any) -> Place:
        opened.append(Place(tmp_path, behave, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_everything_is_stored_once(place: Any) -> None:
    here = place(retries=2)
    whole, failures = here.submit([1, 2, threading.Lock(), 4], replace(PLAN, max_concurrent=2, is_new=True))
    assert list(failures) == [2]
    (job,) = here.jobs()
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimitPerIndex"]) == (3, 2, 2)
    assert "maxFailedIndexes" not in spec
    assert variable(job, "KINETIC_INDEXES") == "0,1,3"
    names = sorted(name for name in (info.name for info in here.store.list("")) if "grp-a" in name)
    inputs = next(name for name in names if "/inputs-" in name)
    assert names == [
        "batches/grp-a/failures/000002.json",
        "batches/grp-a/finished.json",
        inputs,
        "batches/grp-a/manifest.json",
        "batches/grp-a/payload",
        index_object(whole),
    ]
    child = find(here.backend, "grp-a-3")
    assert child is not None
    assert (child.group_index, child.output_dir) == (3, "gs://bucket/outputs/grp-a-3")
    assert find(here.backend, "grp-a-4") is None
    assert whole.group_id == "grp-a"


def test_two_machines_make_one_batch(place: Any) -> None:
    here = place()
    first, _ = here.submit([1, 2])
    second, _ = here.submit([1, 2])
    assert len(here.jobs()) == 1
    assert first.spec_digest == second.spec_digest
    for items, plan in (([1, 3], PLAN), ([1, 2], replace(PLAN, fail_fast=True))):
        with pytest.raises(JobConflict, match="another batch"):
            here.submit(items, plan)


def test_a_submission_goes_on_where_another_was_killed(place: Any) -> None:
    here = place()
    here.submit([1, 2])
    stored = [info.name for info in here.store.list("batches/grp-a/")]
    whole = {name: here.store.read(name) for name in stored}
    (job,) = here.jobs()
    for kept in range(len(stored)):
        here.fake.objects.remove("Job", "default", job["metadata"]["name"])
        here.store.delete_all("batches/grp-a/")
        for name in ("inputs", "payload", "manifest")[:kept]:
            found = next(each for each in stored if name in each)
            here.store.create(found, whole[found])
        here.submit([1, 2])
        (job,) = here.jobs()
        payload = wire.digest(here.store.read(wire.batch_payload_object("grp-a")))
        assert variable(job, "KINETIC_PAYLOAD_SHA256") == payload


def test_nothing_is_left_of_one_that_is_refused(place: Any) -> None:
    here = place()
    here.fake.faults.answer("POST .*/jobs", 403, times=1)
    with pytest.raises(ConfigurationError, match="may not create jobs"):
        here.submit([1], replace(PLAN, is_new=True))
    assert list(here.store.list("batches/")) == []


def test_a_list_has_it_as_one_thing(place: Any) -> None:
    def behave(pod: dict[str, Any]) -> PodBehaviour:
        index = int(pod["metadata"]["labels"][HOST_INDEX])
        if index == 2:
            return behaviours.runs_until_stopped()
        here.tell(pod, "failed" if index == 1 else "succeeded")
        return behaviours.exits(65) if index == 1 else behaviours.succeeds()

    here: Place = place(behave)
    here.submit([1, 2, 3])
    here.submit([1, 2, 3])
    wait_for(lambda: [each.status for each in summaries(here.backend)] == [JobStatus.RUNNING])
    wait_for(lambda: summaries(here.backend)[0].failed == 1)
    here.store.requests.clear()
    (whole,) = summaries(here.backend, "default")
    assert here.store.requests == [("list", "index/"), ("list", "jobs/")]
    assert (whole.job_id, whole.func_name, whole.inputs) == ("grp-a", "square", 3)
    assert whole.reason == "1 of 3 succeeded, 1 failed"
    here.backend.delete("default", "grp-a-p0")
    (whole,) = summaries(here.backend)
    assert (whole.status, whole.succeeded, whole.reason) == (JobStatus.FAILED, 1, "")


def test_it_is_reaped_as_one_thing(place: Any) -> None:
    here: Place = place(lambda pod: [here.tell(pod), behaviours.succeeds()][1])
    here.submit([1, 2])
    here.submit([1, 2], replace(PLAN, group_id="grp-a-2"))  # no input of the other
    wait_for(lambda: all(each.status is JobStatus.SUCCEEDED for each in summaries(here.backend)))
    assert orphans(here.backend, "default") == []
    kept = {orphan.job_id: orphan for orphan in orphans(here.backend, "default", retention=0)}
    assert set(kept) == {"grp-a", "grp-a-2"}
    reap(here.backend, kept["grp-a"])
    assert [each.job_id for each in summaries(here.backend)] == ["grp-a-2"]
    left = {info.name for info in here.store.list("")}
    assert not [name for name in left if name.startswith(("batches/grp-a/", "jobs/grp-a-0/"))]
    assert "jobs/grp-a-2-1/result" in left
    assert [job["metadata"]["labels"][JOB_ID] for job in here.jobs()] == ["grp-a-2-p0"]
    reap(here.backend, kept["grp-a"])  # nobody minds a second time


def test_jobs_of_a_batch_that_the_store_forgot_are_found(place: Any) -> None:
    here: Place = place()
    here.submit([1, 2])
    forget(here.store, "grp-a")
    (orphan,) = orphans(here.backend, "default")
    assert (orphan.job_id, orphan.stored, orphan.is_batch) == ("grp-a", False, True)
    reap(here.backend, orphan)
    assert here.jobs() == []


def test_its_inputs_are_jobs_by_their_references(place: Any) -> None:
    here: Place = place()
    here.submit([1, 2, 3])
    assert [one.job_id for one in children(here.backend, "grp-a")] == ["grp-a-0", "grp-a-1", "grp-a-2"]
    here.store.delete("batches/grp-a/manifest.json")
    assert list(children(here.backend, "grp-a")) == []


def test_ten_thousand_inputs_are_a_part(place: Any) -> None:
    here = place()
    with pytest.raises(InvalidRequest, match="max_concurrent=1"):
        here.submit(list(range(10_001)), replace(PLAN, max_concurrent=1))
    assert here.jobs() == []
    here.submit(list(range(10_001)), replace(PLAN, max_concurrent=3))
    first, second = here.backend.parts.parts("default", "grp-a")
    assert [job["spec"]["completions"] for job in (first, second)] == [10_000, 1]
    assert [job["spec"]["parallelism"] for job in (first, second)] == [2, 1]
    assert variable(second, "KINETIC_INDEXES") == "10000"


def test_who_needs_a_job_of_its_own_does_not_share(place: Any) -> None:
    packed = place().packed()
    assert can_share(packed)
    fallbacks = (Fallback(parse_accelerator("gpu-l4"), "python:3.11", "python:3.11"),)
    assert not can_share(replace(packed, spec=replace(packed.spec, fallbacks=fallbacks)))
    assert not can_share(replace(place().packed(), backend=LocalBackend(place().folder)))


def test_a_timeout_is_each_inputs_own(place: Any) -> None:
    here = place(timeout=10)
    here.submit([1, 2])
    (job,) = here.jobs()
    assert "activeDeadlineSeconds" not in job["spec"]
    assert variable(job, "KINETIC_TIMEOUT") == "10"


def test_ends_are_read_from_the_job(place: Any) -> None:
    def behave(pod: dict[str, Any]) -> PodBehaviour:
        index = int(pod["metadata"]["labels"][HOST_INDEX])
        if index == 1:
            return behaviours.runs_out_of_memory()
        here.tell(pod)
        return behaviours.succeeds()

    here: Place = place(behave)
    whole, _ = here.submit([1, 2, 3])
    board = here.watched(3, whole)
    board.wait_for(board.is_over, None, "")
    ends = {index: seen.status for index, seen in board.ended.items()}
    assert ends == {0: JobStatus.SUCCEEDED, 1: JobStatus.FAILED, 2: JobStatus.SUCCEEDED}
    assert here.failure("grp-a-1").failure_class == "out of memory"


def test_whoever_watches_one_input_is_told_of_its_end(place: Any) -> None:
    def behave(pod: dict[str, Any]) -> PodBehaviour:
        here.tell(pod)
        return behaviours.succeeds(0.2)

    here: Place = place(behave)
    whole, _ = here.submit([1, 2])
    seen: list[JobStatus] = []
    hub = hub_for(here.backend, "default")
    subscription = hub.subscribe(child_reference(whole, 1), lambda told: seen.append(told.status))
    wait_for(lambda: JobStatus.SUCCEEDED in seen)
    subscription.close()


def test_a_store_that_is_away_is_asked_again(place: Any) -> None:
    away = [True]

    def fault(operation: str, _name: str) -> None:
        if operation == "list" and away:
            away.pop()
            raise StoreError("away")

    here: Place = place(lambda _: behaviours.exits(65))
    here.store = here.backend.store = MemoryObjectStore("gs://bucket", fault)  # type: ignore[assignment]
    plan = replace(PLAN, fail_fast=True)
    whole, _ = here.submit([1, 2], plan)
    board = here.watched(2, whole, plan)
    board.wait_for(board.is_over, None, "")
    assert (away, board.failed()) == ([], [0, 1])


def test_after_a_failure_what_was_not_started_is_dropped(place: Any) -> None:
    def behave(pod: dict[str, Any]) -> PodBehaviour:
        first = pod["metadata"]["labels"][HOST_INDEX] == "0"
        here.tell(pod, "failed" if first else wire.DROPPED)
        return behaviours.exits(65)

    plan = replace(PLAN, max_concurrent=1, fail_fast=True)
    here: Place = place(behave)
    whole, _ = here.submit([1, 2, 3], plan)
    board = here.watched(3, whole, plan)
    board.wait_for(board.is_over, None, "")
    assert (list(board.ended), board.dropped) == ([0], {1, 2})
    assert here.store.find(wire.stop_object("grp-a")) is not None


def test_an_image_that_nobody_has_ends_the_batch(place: Any) -> None:
    here: Place = place(lambda _: behaviours.cannot_be_pulled())
    whole, _ = here.submit([1, 2])
    board = here.watched(2, whole)
    board.wait_for(board.is_over, None, "")
    assert {seen.status for seen in board.ended.values()} == {JobStatus.FAILED}
    assert here.failure("grp-a-0").failure_class == "image"


def test_one_input_is_stopped_by_its_pod(place: Any) -> None:
    def behave(pod: dict[str, Any]) -> PodBehaviour:
        return behaviours.exits(65) if attempt_of(pod) else behaviours.runs_until_stopped()

    here: Place = place(behave)
    whole, _ = here.submit([1, 2, 3], replace(PLAN, max_concurrent=2))
    wait_for(lambda: here.backend.parts.running("default", "grp-a") == {0, 1})
    assert look(here.backend, child_reference(whole, 1)).status is JobStatus.RUNNING
    waiting = look(here.backend, child_reference(whole, 2))
    assert (waiting.status, waiting.reason) == (JobStatus.PENDING, "WaitingForSlot")
    here.backend.delete("default", "grp-a-1")
    wait_for(lambda: here.backend.parts.running("default", "grp-a") == {0, 2})
    assert look(here.backend, child_reference(whole, 0)).status is JobStatus.RUNNING


def test_a_batch_of_which_no_job_is_left_is_read_from_the_store(place: Any) -> None:
    here: Place = place()
    whole, _ = here.submit([1, 2, 3])
    (job,) = here.jobs()
    pod = {**job["spec"]["template"], "metadata": {"labels": {HOST_INDEX: "1"}}}
    here.tell(pod)
    here.fake.objects.remove("Job", "default", job["metadata"]["name"])
    board = here.watched(3, whole)
    board.wait_for(board.is_over, None, "")
    assert [board.ended[1].status] == [JobStatus.SUCCEEDED]
    assert board.unavailable == {0: "grp-a-0", 2: "grp-a-2"}
    assert json.loads(here.store.read("batches/grp-a/manifest.json"))["total_expected"] == 3


def test_what_has_no_value_is_run_again(place: Any) -> None:
    healed: list[bool] = []

    def behave(pod: dict[str, Any]) -> PodBehaviour:
        own = int(pod["metadata"]["labels"][HOST_INDEX])
        bad = own == 1 and not healed
        here.tell(pod, "failed" if bad else "succeeded")
        return behaviours.exits(1 if bad else 0)

    plan = replace(PLAN, skip_done=True)
    here: Place = place(behave)
    whole, _ = here.submit([1, 2, 3], plan)
    board = here.watched(3, whole)
    board.wait_for(board.is_over, None, "")
    assert board.failed() == [1]
    healed.append(True)
    here.submit([1, 2, 3], plan)
    first, second = here.backend.parts.parts("default", "grp-a")
    assert [variable(job, "KINETIC_INDEXES") for job in (first, second)] == ["0-2", "1"]
    board = here.watched(3, whole)
    board.wait_for(board.is_over, None, "")
    assert {seen.status for seen in board.ended.values()} == {JobStatus.SUCCEEDED}
    here.submit([1, 2, 3], plan)
    assert len(here.jobs()) == 2, "everything has a value"
