"""A task instance has one batch, whoever asks and however often; real jobs on the local backend."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider.batch_of_task import BatchWatch, batch_id, cancel_unless_superseded, living, may_own
from airflow_provider.deployment import UsedPlace
from airflow_provider.job_of_task import Origin, SupersededTry, TaskIdentity
from kinetic_core.backends.base import open_backend
from kinetic_core.batches.definition import manifest_object
from kinetic_core.connections import default_connections
from kinetic_core.errors import JobCancelled
from kinetic_core.job import JobReference, JobStatus
from kinetic_core.jobs.timeline import submitted_at
from tests.airflow_provider.batches import calls, cleared, ended, home, start, until_told
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("local_jobs")


@pytest.fixture
def identity(request: pytest.FixtureRequest) -> TaskIdentity:
    return TaskIdentity("dag", request.node.nodeid, "began", "task", -1, 1)


@pytest.mark.promise("scale: `@task.kinetic_batch`, `KineticBatchOperator`: one task instance, one batch")
def test_all_inputs_of_a_task_are_one_batch(tmp_path: Path, identity: TaskIdentity) -> None:
    first = start(identity, [0, 2, 4], tmp_path)
    second = start(identity, [0, 2, 4], tmp_path)
    assert (first.adopted, second.adopted) == (False, True)
    assert first.reference.job_id == second.reference.job_id == batch_id(identity, 1)
    batch = ended(first)
    assert [batch.outcome(index).value_or_raise() for index in range(3)] == [0, 4, 16]
    assert [calls(tmp_path, number) for number in (0, 2, 4)] == [1, 1, 1]


def test_a_place_is_announced_before_its_first_batch(tmp_path: Path, identity: TaskIdentity) -> None:
    found: list[tuple[JobReference, bool]] = []

    def announce(place: JobReference) -> None:
        is_there = home(place).store.find(manifest_object(place.job_id)) is not None
        found.append((place, is_there))

    started = start(identity, [0, 2], tmp_path, announce=announce)
    ((place, before),) = found
    assert not before
    assert UsedPlace(place).key == UsedPlace(started.reference).key
    ended(started)


@pytest.mark.promise("scale: `@task.kinetic_batch`, `KineticBatchOperator`: one task instance, one batch")
def test_two_workers_at_once_make_one_batch(tmp_path: Path, identity: TaskIdentity) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: start(identity, [0, 2], tmp_path), range(2)))
    assert len({each.reference.job_id for each in found}) == 1
    ended(found[0])
    assert [calls(tmp_path, number) for number in (0, 2)] == [1, 1]


def test_a_batch_that_lives_is_as_old_as_its_jobs(tmp_path: Path, identity: TaskIdentity) -> None:
    """A try that adopts it has not submitted it; one that runs inputs again has."""
    first = start(identity, [0, 1], tmp_path, function=until_told)
    time.sleep(1.1)  # Kubernetes writes whole seconds
    second = start(replace(identity, try_number=2), [0, 1], tmp_path, function=until_told)
    adopted = submitted_at(second.reference) - submitted_at(first.reference)
    assert second.adopted
    assert -1 <= adopted < 0.5
    (tmp_path / "go").touch()
    ended(second)
    again = start(replace(identity, try_number=3), [0, 1], tmp_path, function=until_told)
    assert submitted_at(again.reference) - submitted_at(first.reference) > 1


@pytest.mark.promise("scale: *Clear* runs again only inputs without a value")
@pytest.mark.parametrize("clears", [False, True])
def test_only_inputs_without_a_value_run_again(tmp_path: Path, identity: TaskIdentity, clears: bool) -> None:
    first = start(identity, [0, 1, 2, 3], tmp_path)
    assert ended(first).states() == {0: "succeeded", 1: "failed", 2: "succeeded", 3: "failed"}
    (tmp_path / "go").touch()
    again = cleared(identity, 2) if clears else replace(identity, try_number=2)
    second = start(again, [0, 1, 2, 3], tmp_path)
    batch = ended(second)
    assert second.adopted
    assert second.reference.job_id == first.reference.job_id
    assert [batch.outcome(index).value_or_raise() for index in range(4)] == [0, 1, 4, 9]
    assert [calls(tmp_path, number) for number in range(4)] == [1, 2, 1, 2]


@pytest.mark.promise("scale: … and everything if `rerun` says so")
def test_everything_runs_again_on_request_and_once(tmp_path: Path, identity: TaskIdentity) -> None:
    first = start(identity, [0, 2], tmp_path)
    ended(first)
    asked = cleared(identity, 2)
    second = start(asked, [0, 2], tmp_path, all_again=True)
    third = start(replace(asked, try_number=3), [0, 2], tmp_path, all_again=True)  # its retry
    ended(third)
    assert second.reference.job_id == third.reference.job_id != first.reference.job_id
    assert [calls(tmp_path, number) for number in (0, 2)] == [2, 2]


def test_another_call_is_another_batch(tmp_path: Path, identity: TaskIdentity) -> None:
    first = start(identity, [0, 2], tmp_path)
    ended(first)
    second = start(replace(identity, try_number=2), [0, 2, 4], tmp_path)
    third = start(replace(identity, try_number=3), [0, 2, 4], tmp_path)
    assert second.reference.job_id == third.reference.job_id != first.reference.job_id
    assert may_own(identity, second.reference.job_id, second.reference.spec_digest)
    ended(third)


def test_a_deleted_run_of_the_same_name_has_its_own(tmp_path: Path, identity: TaskIdentity) -> None:
    first = start(identity, [0, 2], tmp_path)
    ended(first)
    second = start(replace(identity, run_began="later"), [0, 2], tmp_path)
    ended(second)
    assert second.reference.job_id != first.reference.job_id
    assert [calls(tmp_path, number) for number in (0, 2)] == [2, 2]


def test_a_cleared_try_ends_before_the_next_begins(tmp_path: Path, identity: TaskIdentity) -> None:
    first = start(identity, [0, 1], tmp_path, function=until_told)
    ours = Origin.of(identity, "ours")
    assert len(list(living(home(first.reference), first.reference.namespace, ours))) == 2
    (tmp_path / "go").touch()
    second = start(cleared(identity, 2), [0, 1], tmp_path, function=until_told)
    batch = ended(second)
    assert second.reference.job_id == first.reference.job_id
    assert [batch.outcome(index).value_or_raise() for index in range(2)] == [0, 1]


def test_a_held_up_try_does_not_start_over_a_newer(tmp_path: Path, identity: TaskIdentity) -> None:
    newer = start(cleared(identity, 2), [0, 1], tmp_path, function=until_told)
    with pytest.raises(SupersededTry, match="try 2 of task task has grp-"):
        start(identity, [0, 1], tmp_path, function=until_told)
    assert not cancel_unless_superseded(home(newer.reference), newer.reference, Origin.of(identity, "ours"))
    (tmp_path / "go").touch()
    assert ended(newer).states() == {0: "succeeded", 1: "succeeded"}


def test_what_was_cancelled_says_so(tmp_path: Path, identity: TaskIdentity) -> None:
    started = start(identity, [0, 1], tmp_path, function=until_told)
    assert cancel_unless_superseded(home(started.reference), started.reference, Origin.of(identity, "ours"))
    errors = ended(started).failures([0, 1])
    assert {type(each) for each in errors.values()} == {JobCancelled}


@pytest.mark.attack
@pytest.mark.parametrize("content", [b"no JSON", b'{"group_id": 1}', b"[]"])
def test_a_planted_manifest_fails_no_task(tmp_path: Path, identity: TaskIdentity, content: bytes) -> None:
    """Whoever knows DAG, run and task knows the id: the batch gets another one."""
    taken = batch_id(identity, 1)
    open_backend("local", default_connections()).store.create_if_absent(manifest_object(taken), content)
    first, second = (start(identity, [0, 2], tmp_path) for _ in range(2))
    assert first.reference.job_id == second.reference.job_id != taken
    assert (first.adopted, second.adopted) == (False, True)
    batch = ended(first)
    assert [batch.outcome(index).value_or_raise() for index in range(2)] == [0, 4]
    assert [calls(tmp_path, number) for number in (0, 2)] == [1, 1]


def test_a_batch_waits_only_while_no_input_runs(
    tmp_path: Path, identity: TaskIdentity, no_slot_is_free: Callable[[], None]
) -> None:
    """And an input that waits after others have run has not waited since the batch began."""
    started = start(identity, [0, 1], tmp_path, function=until_told)
    watch = BatchWatch.open(home(started.reference), started.reference, {})

    def state() -> tuple[JobStatus, str] | None:
        watch.look(lambda _: None)
        return None if watch.state is None else (watch.state.status, watch.state.reason)

    wait_for(lambda: state() == (JobStatus.PENDING, "WaitingForSlot"))  # once its agent has looked for one
    assert watch.state is not None
    assert watch.state.created_at is not None
    no_slot_is_free()
    wait_for(lambda: (state() or ("", ""))[0] is JobStatus.RUNNING)
    assert watch.state.created_at is None
    (tmp_path / "go").touch()
    wait_for(lambda: state() is None)
    watch.close()
