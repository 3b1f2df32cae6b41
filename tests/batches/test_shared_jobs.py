"""Inputs that share a Job, on a fake cluster: what is stored and created, and what is seen of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.backends.kubernetes.chunks import chunk_id, variable
from kinetic_core.backends.kubernetes.names import HOST_INDEX
from kinetic_core.backends.kubernetes.objects import Pod
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.batches.definition import resumption_object
from kinetic_core.batches.handle import BatchHandle
from kinetic_core.batches.indexed import IndexedScheduler, can_share
from kinetic_core.batches.progress import Board
from kinetic_core.batches.rerun import resume
from kinetic_core.errors import ConfigurationError, InvalidRequest, JobConflict, StoreError, WaitTimeout
from kinetic_core.job import Fallback, JobObservation, JobStatus
from kinetic_core.jobs.cancel import index_object
from kinetic_core.jobs.facts import observed
from kinetic_core.jobs.garbage_collection import orphans, reap
from kinetic_core.jobs.inputs import input_reference
from kinetic_core.jobs.listing import index_metadata, summaries
from kinetic_core.jobs.observe import find
from kinetic_core.jobs.prepare import address
from kinetic_core.jobs.signing import key_id_of
from kinetic_core.jobs.submit import submit
from kinetic_core.jobs.watch import watch_for
from kinetic_core.testing import kubelet as behaviours
from kinetic_core.testing.kubelet import PodBehaviour
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.batches.places import PLAN, Place
from tests.conftest import wait_for


@pytest.mark.promise("batches: Inputs stored once, packed, no object per input")
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
        object_names.batch_payload("grp-a", variable(job, "KINETIC_PAYLOAD_SHA256") or ""),
        index_object(whole),
    ]
    child = find(here.backend, "grp-a-3")
    assert child is not None
    assert (child.group_index, child.output_dir) == (3, "gs://bucket/outputs/grp-a-3")
    assert find(here.backend, "grp-a-4") is None
    assert whole.group_id == "grp-a"


def test_a_batch_of_which_nothing_runs_says_why(place: Any) -> None:
    here: Place = place(lambda _: behaviours.cannot_be_scheduled("5 Insufficient google.com/tpu"))
    whole, _ = here.submit([1, 2])
    board = here.watched(2, whole)

    def state() -> tuple[JobStatus, str, str] | None:
        with board.changed:
            seen = board.state()
        return None if seen is None else (seen.status, seen.reason, seen.message)

    wait_for(lambda: state() == (JobStatus.PENDING, "Unschedulable", "5 Insufficient google.com/tpu"))
    board.close()


def test_a_batch_that_waits_for_a_node_says_what_gives_one(place: Any, capsys: Any) -> None:
    here: Place = place(lambda _: behaviours.cannot_be_scheduled("1 node(s) had untolerated taint"))
    whole, _ = here.submit([1, 2])
    labels = {"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-spot": "true"}
    taint = {"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"}
    node = {"metadata": {"name": "one", "labels": labels}, "spec": {"taints": [taint]}}
    here.fake.objects.create("Node", "", {**node, "status": {"allocatable": {"nvidia.com/gpu": "1"}}})
    board = here.watched(2, replace(whole, accelerator="gpu-l4-1"))
    scheduler: Any = SimpleNamespace(backend=here.backend)
    batch = BatchHandle("grp-a", None, {}, board, scheduler)
    told: list[str] = []

    def hints() -> list[str]:
        with pytest.raises(WaitTimeout):
            batch.wait(timeout=1)
        told.extend(line for line in capsys.readouterr().err.splitlines() if "hint" in line)
        return told

    wait_for(hints)
    assert hints() == [
        'kinetic: hint: accelerator="gpu-l4-1:spot": all nodes with gpu-l4-1 are Spot machines'
    ]
    board.close()


def test_an_old_batch_that_waits_is_beside_the_newest(place: Any) -> None:
    here: Place = place(lambda _: behaviours.cannot_be_scheduled("5 Insufficient google.com/tpu"))
    whole, _ = here.submit([1, 2])
    facts = index_metadata(whole)
    for number in range(4):
        here.store.create_if_absent(f"index/000000000000-job-{number}", b"", facts)
    found = summaries(here.backend, "default", 3, and_alive=True)
    assert [job.job_id for job in found[2:]] == ["job-2", "grp-a"]
    assert (found[-1].status, found[-1].inputs) == (JobStatus.PENDING, 2)


def test_a_batch_is_as_what_runs_or_as_the_oldest_that_waits() -> None:
    board = Board(3)
    assert board.state() is None
    young, old = (JobObservation(JobStatus.PENDING, created_at=time) for time in (20.0, 10.0))
    runs = JobObservation(JobStatus.RUNNING, created_at=30.0)
    ended = JobObservation(JobStatus.SUCCEEDED, created_at=30.0)
    found = []
    for number, seen in ((0, young), (1, old), (2, runs), (2, ended), (1, ended), (0, ended)):
        board.note(number, seen)
        found.append(board.state())
    assert found == [young, old, runs, old, young, None]


def test_two_machines_make_one_batch(place: Any) -> None:
    here = place()
    first, _ = here.submit([1, 2])
    second, _ = here.submit([1, 2])
    assert len(here.jobs()) == 1
    assert first.spec_digest == second.spec_digest
    for items, plan in (([1, 3], PLAN), ([1, 2], replace(PLAN, fail_fast=True))):
        with pytest.raises(JobConflict, match="another batch"):
            here.submit(items, plan)


@pytest.mark.promise("batches: Deterministic batch id: a repeated call adopts")
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
            here.store.create_if_absent(found, whole[found])
        here.submit([1, 2])
        (job,) = here.jobs()
        sha256 = variable(job, "KINETIC_PAYLOAD_SHA256") or ""
        assert wire.digest(here.store.read(object_names.batch_payload("grp-a", sha256))) == sha256


def test_nothing_is_left_of_one_that_is_refused(place: Any) -> None:
    here = place()
    here.fake.faults.answer("POST .*/jobs", 403, times=1)
    with pytest.raises(ConfigurationError, match="may not create jobs"):
        here.submit([1], replace(PLAN, is_new=True))
    assert list(here.store.list("batches/")) == []


def test_no_part_is_left_of_one_that_is_refused_later(place: Any) -> None:
    here = place(lambda _: behaviours.runs_until_stopped())
    here.fake.faults.answer("POST .*/jobs", 403, times=1, skip=1)
    with pytest.raises(ConfigurationError, match="may not create jobs"):
        here.submit(list(range(10_001)), replace(PLAN, is_new=True, max_concurrent=2))
    assert here.jobs() == []
    assert [*here.store.list("batches/"), *here.store.list("index/")] == []


def test_nothing_runs_of_one_whose_last_mark_is_refused(place: Any) -> None:
    here: Place = place(lambda _: behaviours.runs_until_stopped())

    def fault(operation: str, name: str) -> None:
        if (operation, name) == ("create", object_names.finished("grp-a")):
            raise StoreError("away")

    here.store.fault = fault
    with pytest.raises(StoreError, match="away"):
        here.submit([1, 2], replace(PLAN, is_new=True))
    assert here.jobs() == []


def test_what_a_chosen_id_has_goes_on_after_a_refusal(place: Any) -> None:
    here: Place = place()
    items, plan = list(range(10_001)), replace(PLAN, max_concurrent=2)
    here.fake.faults.answer("POST .*/jobs", 403, skip=1)
    with pytest.raises(ConfigurationError, match="may not create jobs"):
        here.submit(items, plan)
    (first,) = here.jobs()
    here.submit(items, plan)
    assert [job["metadata"]["uid"] for job in here.jobs()][:1] == [first["metadata"]["uid"]]
    assert len(here.jobs()) == 2


def test_a_refusal_is_told_also_if_its_undoing_fails(place: Any, caplog: Any) -> None:
    here: Place = place()
    here.fake.faults.answer("POST .*/jobs", 403)

    def fault(operation: str, _name: str) -> None:
        if operation == "delete":
            raise StoreError("away")

    here.store.fault = fault
    with pytest.raises(ConfigurationError, match="may not create jobs"):
        here.submit([1], replace(PLAN, is_new=True))
    assert "cannot all be removed: away" in caplog.text


def test_what_cannot_be_removed_stays_to_be_found(place: Any, caplog: Any) -> None:
    here = place(lambda _: behaviours.runs_until_stopped())
    here.fake.faults.answer("POST .*/jobs", 403, times=1, skip=1)
    here.fake.faults.answer("(DELETE|GET) .*/jobs", 403, times=None)
    with pytest.raises(ConfigurationError, match="may not create jobs"):
        here.submit(list(range(10_001)), replace(PLAN, is_new=True, max_concurrent=2))
    assert "`kinetic batch cancel grp-a` stops it" in caplog.text
    assert here.store.find("batches/grp-a/manifest.json") is not None
    here.fake.faults.clear()


@pytest.mark.promise("scale: No client: chunks of Indexed Jobs; it lives when worker or triggerer dies")
@pytest.mark.promise("scale: `max_concurrent` means what it says", "of two chunks together")
@pytest.mark.promise(
    "batches: One Indexed Job per ≤ 10,000 inputs, `parallelism`, `backoffLimitPerIndex`",
    "fake cluster",
)
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


@pytest.mark.promise("batches: Observing by `completedIndexes`/`failedIndexes`")
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


def test_a_cancelled_input_is_told_from_a_failed_one(place: Any) -> None:
    def behave(pod: dict[str, Any]) -> PodBehaviour:
        here.tell(pod, "failed" if pod["metadata"]["labels"][HOST_INDEX] == "0" else wire.CANCELLED)
        return behaviours.exits(65)

    here: Place = place(behave)
    here.store.create_if_absent(object_names.cancel("grp-a-1"), b"{}")
    whole, _ = here.submit([1, 2])
    board = here.watched(2, whole)
    board.wait_for(board.is_over, None, "")
    ends = {index: seen.status for index, seen in board.ended.items()}
    assert ends == {0: JobStatus.FAILED, 1: JobStatus.CANCELLED}


def test_cancelling_leaves_a_mark_for_pods_that_hear_no_signal(place: Any) -> None:
    here: Place = place()
    whole, _ = here.submit([1, 2])
    (job,) = here.jobs()
    IndexedScheduler(here.backend, whole).cancel(Board(2), lambda *_: None)
    assert here.store.find(object_names.chunk_cancel("grp-a", key_id_of(job))) is not None


def test_whoever_watches_one_input_is_told_of_its_end(place: Any) -> None:
    def behave(pod: dict[str, Any]) -> PodBehaviour:
        here.tell(pod)
        return behaviours.succeeds(0.2)

    here: Place = place(behave)
    whole, _ = here.submit([1, 2])
    seen: list[JobStatus] = []
    job_watch = watch_for(here.backend, "default")
    subscription = job_watch.subscribe(input_reference(whole, 1), lambda told: seen.append(told.status))
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
    assert here.store.find(object_names.stop("grp-a")) is not None


def test_an_image_that_nobody_has_ends_the_batch(place: Any) -> None:
    here: Place = place(lambda _: behaviours.cannot_be_pulled())
    whole, _ = here.submit([1, 2])
    board = here.watched(2, whole)
    board.wait_for(board.is_over, None, "")
    assert {seen.status for seen in board.ended.values()} == {JobStatus.FAILED}
    assert here.failure("grp-a-0").failure_class == "image"


def test_one_input_is_stopped_by_its_pod(place: Any) -> None:
    def behave(pod: dict[str, Any]) -> PodBehaviour:
        return behaviours.exits(65) if Pod(pod).attempt else behaviours.runs_until_stopped()

    here: Place = place(behave)
    whole, _ = here.submit([1, 2, 3], replace(PLAN, max_concurrent=2))
    wait_for(lambda: here.backend.parts.running("default", "grp-a") == {0, 1})
    assert observed(here.backend, input_reference(whole, 1)).status is JobStatus.RUNNING
    waiting = observed(here.backend, input_reference(whole, 2))
    assert (waiting.status, waiting.reason) == (JobStatus.PENDING, "WaitingForSlot")
    here.backend.delete("default", "grp-a-1")
    wait_for(lambda: here.backend.parts.running("default", "grp-a") == {0, 2})
    assert observed(here.backend, input_reference(whole, 0)).status is JobStatus.RUNNING


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


class Frozen(MemoryObjectStore):
    """The store of a client that is frozen once it has begun to resume a batch."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def create_if_absent(
        self, name: str, content: bytes | Path, metadata: Mapping[str, str] | None = None
    ) -> bool:
        is_first = super().create_if_absent(name, content, metadata)
        if name == resumption_object("grp-a", 1):
            self.meanwhile()
        return is_first


@pytest.mark.attack
def test_a_client_that_thaws_deletes_no_new_outcome(place: Any) -> None:
    """It was taken to be dead; another has resumed the batch, and the inputs have run again."""

    def behave(pod: dict[str, Any]) -> PodBehaviour:
        here.tell(pod, "failed")
        return behaviours.exits(1)

    here: Place = place(behave)
    here.backend.store = here.store = store = Frozen("gs://bucket")  # type: ignore[assignment]
    whole, _ = here.submit([1, 2])
    board = here.watched(2, whole)
    board.wait_for(board.is_over, None, "")
    results = [object_names.result(object_names.input_id("grp-a", index)) for index in range(2)]

    def others() -> None:
        store.delete_many(results)
        for name in results:
            store.create_if_absent(name, b"the new part's", {wire.STATE: "succeeded"})
        store.create_if_absent(object_names.stop("grp-a"), b"")

    store.meanwhile = others
    made: list[int] = []
    resume(here.backend, whole, [0, 1], lambda number, rest: made.append(number))
    assert [store.read(name) for name in results] == [b"the new part's"] * 2
    assert store.present([object_names.stop("grp-a")])
    assert made == [1], "creating what is there already changes nothing"


@pytest.mark.attack
@pytest.mark.slow
def test_a_planted_resumption_delays_and_stops_nobody(place: Any) -> None:
    """The client waits for half a minute for whoever seems to resume the batch, and then does it itself."""

    def behave(pod: dict[str, Any]) -> PodBehaviour:
        here.tell(pod, "failed")
        return behaviours.exits(1)

    here: Place = place(behave)
    whole, _ = here.submit([1, 2])
    board = here.watched(2, whole)
    board.wait_for(board.is_over, None, "")
    here.store.create_if_absent(resumption_object("grp-a", 1), b"anything")
    made: list[tuple[int, list[int]]] = []
    begun = time.monotonic()
    resume(here.backend, whole, [0, 1], lambda number, rest: made.append((number, list(rest))))
    assert made == [(1, [0, 1])]
    assert time.monotonic() - begun >= 30


def test_nothing_is_run_again_while_an_input_still_runs(place: Any) -> None:
    here: Place = place(lambda _: behaviours.runs_until_stopped())
    here.submit([1, 2])
    stored = {info.name for info in here.store.list("")}
    here.submit([1, 2], replace(PLAN, skip_done=True))
    assert len(here.jobs()) == 1
    assert {info.name for info in here.store.list("")} == stored


@pytest.mark.promise("batches: `skip_done=True` resumes a half-failed sweep")
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


@pytest.mark.attack
@pytest.mark.parametrize("planted", [False, True])
def test_a_planted_claim_starts_no_input(place: Any, planted: bool) -> None:
    """Of a batch that ends early, an input that no pod has begun was dropped."""
    here = place(lambda _: behaviours.runs_until_stopped())
    whole, _ = here.submit([1, 2, 3], replace(PLAN, max_concurrent=1))
    board = here.watched(3, whole)
    wait_for(lambda: here.backend.parts.running("default", "grp-a") == {0})
    if planted:
        here.store.create_if_absent(object_names.claim("grp-a-2", 0), b"planted")
    here.backend.abandon("default", chunk_id("grp-a", 0))
    board.wait_for(board.is_over, None, "")
    assert 2 in board.dropped


@pytest.mark.attack
def test_a_planted_index_entry_means_no_other_job(place: Any) -> None:
    """Its id would be a selector of several jobs."""
    here = place(lambda _: behaviours.runs_until_stopped())
    victim = submit(address(here.packed(), (2,), job_id=f"job-{10:016x}"))
    facts = index_metadata(victim) | {"created_at": "2020-01-01T00:00:00+00:00"}
    for name in (f"x,{victim.job_id}", "x) or (y", "../x", "X", "-"):
        here.store.create_if_absent(f"index/000000000000-{name}", b"", facts)
        here.store.create_if_absent(f"index/000000000001-{name}", b"")
    for each in orphans(here.backend, "default"):
        reap(here.backend, each)
    assert len(here.jobs()) == 1
    told = [each.problem for each in summaries(here.backend) if each.problem]
    assert len(told) == 10
    assert all("is no id of a job or batch" in each for each in told)
