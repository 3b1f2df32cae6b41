"""A batch task with `warm=` has one map, whoever asks and however often; real workers of this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.access import ENVIRONMENT
from airflow_provider.batch_of_task import (
    BatchWatch,
    StartedBatch,
    batch_id,
    cancel_unless_superseded,
    is_over,
    living_batches,
)
from airflow_provider.batch_record import BatchRecord, record_of_cancelled
from airflow_provider.batch_values import BatchValues
from airflow_provider.job_of_task import Origin, SupersededTry, TaskIdentity
from airflow_provider.options import check_workers
from airflow_provider.orphans import batch_of
from airflow_provider.ui.board import Failures, board, input_detail
from airflow_provider.xcom import Signatures, with_references
from kinetic_core._runner import object_names
from kinetic_core.backends.base import Backend
from kinetic_core.batches.snapshot import batch_times, state
from kinetic_core.connections import default_connections
from kinetic_core.errors import InvalidRequest, JobCancelled, JobNotFound
from kinetic_core.job import JobStatus
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.lanes import lane_id, last_round
from kinetic_core.jobs.observe import find
from kinetic_core.jobs.warm import workers
from tests.airflow_provider.batches import PLAN, WARM, calls, cleared, ended, home, square, start, until_told
from tests.airflow_provider.test_batch_values import arrived, boxed
from tests.airflow_provider.test_signatures import Kept
from tests.airflow_provider.ui.test_board import instance
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("local_jobs")
ON_WORKERS = replace(PLAN, max_concurrent=2)


@pytest.fixture
def identity(request: pytest.FixtureRequest) -> Iterator[TaskIdentity]:
    yield TaskIdentity("dag", request.node.nodeid, "began", "task", -1, 1)
    from kinetic_core.backends.base import open_backend

    backend = open_backend("local", default_connections())
    for each in list(workers(backend, "default")):
        if (found := find(backend, each.job_id)) is not None:
            cancel(backend, found)


def begin(identity: TaskIdentity, numbers: Any, folder: Path, **asked: Any) -> StartedBatch:
    return start(identity, numbers, folder, options=WARM, **{"plan": ON_WORKERS, **asked})


def round_of(started: StartedBatch) -> int:
    return last_round(home(started.reference), started.reference)


def test_a_task_has_one_map_and_a_next_try_adopts_it(tmp_path: Path, identity: TaskIdentity) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: begin(identity, [0, 2, 4], tmp_path), range(2)))
    third = begin(replace(identity, try_number=2), [0, 2, 4], tmp_path)
    assert {each.reference.job_id for each in (*found, third)} == {batch_id(identity, 1)}
    assert third.adopted
    batch = ended(third)
    assert [batch.outcome(index).value_or_raise() for index in range(3)] == [0, 4, 16]
    assert [calls(tmp_path, number) for number in (0, 2, 4)] == [1, 1, 1]
    assert len(list(workers(home(third.reference), "default"))) == 2
    assert is_over(home(third.reference), third.reference)


@pytest.mark.parametrize("clears", [False, True])
def test_inputs_without_a_value_run_in_another_round(
    tmp_path: Path, identity: TaskIdentity, clears: bool
) -> None:
    first = begin(identity, range(5), tmp_path)
    assert {index for index, told in ended(first).states().items() if told == "failed"} == {1, 3}
    (tmp_path / "go").touch()
    second = begin(cleared(identity, 2) if clears else replace(identity, try_number=2), range(5), tmp_path)
    batch = ended(second)
    assert second.reference.job_id == first.reference.job_id
    assert [batch.outcome(index).value_or_raise() for index in range(5)] == [0, 1, 4, 9, 16]
    assert [calls(tmp_path, number) for number in range(5)] == [1, 2, 1, 2, 1]
    assert round_of(second) == 1
    latest = cleared(identity, 3) if clears else replace(identity, try_number=3)
    third = begin(latest, range(5), tmp_path)
    assert round_of(third) == 1, "all have a value"


def test_everything_runs_again_in_a_map_of_its_own(tmp_path: Path, identity: TaskIdentity) -> None:
    first = begin(identity, [0, 2], tmp_path)
    ended(first)
    second = begin(cleared(identity, 2), [0, 2], tmp_path, all_again=True)
    ended(second)
    assert second.reference.job_id != first.reference.job_id
    assert [calls(tmp_path, number) for number in (0, 2)] == [2, 2]


def test_a_cleared_try_ends_before_the_next_begins(tmp_path: Path, identity: TaskIdentity) -> None:
    first = begin(identity, [0, 1], tmp_path, function=until_told)
    ours = Origin.of(identity, "ours")
    backend = home(first.reference)
    assert living_batches(backend, "default", ours) == {first.reference.job_id}
    wait_for(lambda: (found := state(backend, first.reference)) and found.status is JobStatus.RUNNING)
    (tmp_path / "go").touch()
    second = begin(cleared(identity, 2), [0, 1], tmp_path, function=until_told)
    batch = ended(second)
    assert second.reference.job_id == first.reference.job_id
    assert [batch.outcome(index).value_or_raise() for index in range(2)] == [0, 1]


def test_a_held_up_try_does_not_start_over_a_newer(tmp_path: Path, identity: TaskIdentity) -> None:
    newer = begin(cleared(identity, 2), [0, 1], tmp_path, function=until_told)
    with pytest.raises(SupersededTry, match="try 2 of task task has grp-"):
        begin(identity, [0, 1], tmp_path, function=until_told)
    ours = Origin.of(identity, "ours")
    assert not cancel_unless_superseded(home(newer.reference), newer.reference, ours)
    (tmp_path / "go").touch()
    assert ended(newer).states() == {0: "succeeded", 1: "succeeded"}


def test_what_was_cancelled_says_so_and_is_recorded(tmp_path: Path, identity: TaskIdentity) -> None:
    started = begin(identity, [0, 1, 2], tmp_path, function=until_told)
    backend, whole = home(started.reference), started.reference
    wait_for(lambda: (found := state(backend, whole)) and found.status is JobStatus.RUNNING)
    assert cancel_unless_superseded(backend, whole, Origin.of(identity, "ours"))
    errors = ended(started).failures([0, 1, 2])
    assert {type(each) for each in errors.values()} == {JobCancelled}
    told = BatchRecord(whole, 3, "began", 1, 1)
    record = record_of_cancelled(told.to_dict(), backend, whole, 1, "somebody")
    assert record is not None
    assert (record.failed, record.missing) == (3, "0-2")


@pytest.mark.parametrize("most", [0, 1])
def test_nothing_starts_once_too_many_have_failed(tmp_path: Path, identity: TaskIdentity, most: int) -> None:
    """Lanes see the first failure themselves, with `max_failures` the trigger does."""
    plan = replace(ON_WORKERS, max_concurrent=1, fail_fast=most == 0)
    started = begin(identity, range(1, 400), tmp_path, plan=plan, function=slow_square)
    said: list[str] = []
    watch = BatchWatch.open(home(started.reference), started.reference, {"max_failures": most})
    wait_for(lambda: watch.look(said.append), seconds=60)
    watch.close()
    states = ended(started).states()
    assert len(states) < 399
    errors = ended(started).failures([398])
    assert type(errors[398]) is JobCancelled
    assert any("without a value" in line for line in said)


def slow_square(number: int, folder: str) -> int:
    time.sleep(0.05)
    return square(number, folder)


def test_values_and_references_are_those_of_segments(tmp_path: Path, identity: TaskIdentity) -> None:
    started = begin(identity, [0, 1, 2], tmp_path, function=boxed)
    ended(started)
    signatures = Signatures(Kept())
    got = arrived(BatchValues.of(started.reference, 3, [], ENVIRONMENT, signatures), signatures)
    assert (len(got), got[0]) == (3, "plain")
    reference = signatures.verified(got[2], "op_args")
    assert reference.type_name == "complex"
    assert "/outcomes/" in reference.object_name
    assert reference.load(trust_store=True) == 2
    (references,) = with_references([got], "op_args", signatures.verified)
    following = replace(identity, task_id="following")
    second = begin(following, references, tmp_path, function=real_part)
    assert [ended(second).outcome(index).value_or_raise() for index in (1, 2)] == [1, 2]


def real_part(number: Any, folder: str) -> int:
    del folder
    return 0 if number == "plain" else int(number.real)


@pytest.mark.attack
def test_a_segment_of_somebody_elses_gives_no_value(tmp_path: Path, identity: TaskIdentity) -> None:
    started = begin(identity, [0, 2], tmp_path)
    backend = home(started.reference)
    ended(started)
    group_id = started.reference.job_id
    (name, *_) = [info.name for info in backend.store.list(object_names.segments(group_id))]
    content = backend.store.read(name)
    backend.store.delete_all(object_names.segments(group_id))
    backend.store.create_if_absent(name, content[:-1] + b"x")
    signatures = Signatures(Kept())
    got = arrived(BatchValues.of(started.reference, 2, [], ENVIRONMENT, signatures), signatures)
    with pytest.raises(JobNotFound):
        got[0]
    assert ended(started).states() == {}


@pytest.mark.promise("page: A batch's inputs, each with state, reason, attempts and log")
def test_the_page_shows_the_inputs_of_a_map(tmp_path: Path, identity: TaskIdentity) -> None:
    plan = replace(ON_WORKERS, max_concurrent=1)
    started = begin(identity, range(3), tmp_path, plan=plan, function=odd_or_held)
    backend, told = home(started.reference), BatchRecord(started.reference, 3, "began", 1, 1)
    wait_for(lambda: board(instance(told), told, backend, 0, Failures())["squares"] == "sfr", seconds=20)
    shown = board(instance(told), told, backend, 0, Failures())
    assert (shown["counts"], shown["troubles"]) == ({"s": 1, "f": 1, "r": 1}, [])
    (cause,) = shown["causes"]
    assert (cause["text"], cause["inputs"]) == ("ValueError: odd", [1])
    failed = input_detail(told, 1, backend)
    assert (failed["status"], failed["reason"], failed["attempts"]) == ("FAILED", "user error", 1)
    assert failed["traceback"].endswith("ValueError: odd\n")
    assert failed["log"] == ["an odd one"]
    assert input_detail(told, 2, backend)["status"] == "RUNNING"
    (tmp_path / "go").touch()
    ended(started)
    times = batch_times(backend.store, started.reference, 3, time.time(), is_over=True)
    assert 0 < times.run_seconds <= times.seconds + 1
    assert board(instance(told), told, backend, 0, Failures())["squares"] == "sfs"


def odd_or_held(number: int, folder: str) -> int:
    if number == 2:
        return until_told(number, folder)
    if number % 2:
        print("an odd one")
        raise ValueError("odd")
    return number


def test_a_board_of_many_inputs_reads_few_objects(tmp_path: Path, identity: TaskIdentity) -> None:
    """Where listings have metadata, none is read (tests/warm/test_rounds.py); here each segment, once."""
    started = begin(identity, range(0, 1200, 2), tmp_path, function=real_part)
    ended(started)
    backend, told = home(started.reference), BatchRecord(started.reference, 600, "began", 1, 1)
    counted = Counted(backend.store)
    shown = board(instance(told), told, with_store(backend, counted), 0, Failures())
    assert shown["counts"] == {"s": 600}
    segments = list(backend.store.list(object_names.segments(started.reference.job_id)))
    assert counted.requests <= 2 * len(segments) + 10


class Counted:
    """A store that counts what is asked of it."""

    def __init__(self, store: Any) -> None:
        self._store, self.requests = store, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if callable(found):
            self.requests += 1
        return found


def with_store(backend: Backend, store: Any) -> Any:
    class Counting:
        def __getattr__(self, name: str) -> Any:
            return store if name == "store" else getattr(backend, name)

    return Counting()


def test_ids_of_lanes_name_their_map() -> None:
    assert [batch_of(lane_id("grp-a", 3, number)) for number in (0, 2)] == ["grp-a", "grp-a"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "warm= needs max_concurrent= in a batch"),
        ({"max_concurrent": 1001}, "at most 1000 workers"),
        ({"max_concurrent": 2, "budget": 1.0}, "a batch with warm= does not go with budget="),
        ({"max_concurrent": 2, "hang_after": 600}, "does not go with hang_after="),
        ({"max_concurrent": 2, "reuse": "fork"}, "does not go with reuse="),
        ({"max_concurrent": 2, "accelerator": "tpu-v5litepod-16"}, "which has several hosts"),
        ({"max_concurrent": 2, "fail_fast": True, "cancel_running_on_fail": True}, "cancel_running_on_fail="),
    ],
)
def test_what_workers_have_not_is_refused_in_the_dag(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        check_workers({"warm": "5m"} | asked, asked)
    check_workers(asked, asked)
    check_workers({"warm": "{{ params.warm }}"} | asked, asked)


def test_what_a_template_will_say_is_not_refused() -> None:
    check_workers({"warm": "5m", "budget": "{{ 1 }}"}, {"max_concurrent": "{{ 2 }}"})
