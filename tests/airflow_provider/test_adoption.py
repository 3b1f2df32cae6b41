"""A task instance has one job, whoever asks and however often; real jobs on the local backend."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_provider.deployment import UsedPlace
from airflow_provider.job_of_task import (
    Origin,
    Others,
    Started,
    SupersededTry,
    TaskIdentity,
    latest,
    mark_cleared,
    mark_spent,
    start_or_adopt,
)
from kinetic_core import JobStatus
from kinetic_core._runner import codec, object_names, wire
from kinetic_core.backends.base import Backend, backend_of, open_backend
from kinetic_core.connections import default_connections
from kinetic_core.job import JobReference
from kinetic_core.jobs.cancel import cancel, cleanup, drop_payloads
from kinetic_core.jobs.collect import collect
from kinetic_core.jobs.observe import find, observe, wait
from kinetic_core.jobs.submit import Call, prepare
from kinetic_core.options import RunOptions
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("local_jobs")
OPTIONS = RunOptions.checked(accelerator="cpu")


def until_told(folder: str) -> str:
    import time

    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return "done"


def fail() -> None:
    raise ValueError("no luck")


@pytest.fixture
def identity(request: pytest.FixtureRequest) -> TaskIdentity:
    return TaskIdentity("dag", request.node.nodeid, "", "task", -1, 1)


def call_until_told(tmp_path: Path) -> Call:
    return Call(until_told, (str(tmp_path),), {})


def status(reference: Any) -> JobStatus:
    return observe(backend_of(reference, default_connections()), reference).status


def test_a_second_leg_gets_the_job_of_the_first(tmp_path: Path, identity: TaskIdentity) -> None:
    call = call_until_told(tmp_path)
    first = start_or_adopt(call, OPTIONS, default_connections(), identity)
    second = start_or_adopt(call, OPTIONS, default_connections(), identity)
    assert (first.adopted, second.adopted) == (False, True)
    assert second.reference == first.reference == latest(OPTIONS, default_connections(), identity)
    (tmp_path / "go").touch()
    assert (
        wait(backend_of(first.reference, default_connections()), first.reference).status
        is JobStatus.SUCCEEDED
    )


def test_a_place_is_announced_before_its_first_job(tmp_path: Path, identity: TaskIdentity) -> None:
    found: list[tuple[JobReference, JobReference | None]] = []

    def announce(place: JobReference) -> None:
        found.append((place, find(backend_of(place, default_connections()), place.job_id)))

    call = call_until_told(tmp_path)
    started = start_or_adopt(call, OPTIONS, default_connections(), identity, announce=announce)
    ((place, before),) = found
    assert before is None
    assert UsedPlace(place).key == UsedPlace(started.reference).key
    (tmp_path / "go").touch()
    wait(backend_of(started.reference, default_connections()), started.reference)


@pytest.mark.promise("airflow: Key, generation and adoption as the design says")
@pytest.mark.promise("airflow: No lost result")
def test_the_next_try_gets_it_too_even_when_it_has_succeeded(tmp_path: Path, identity: TaskIdentity) -> None:
    call = call_until_told(tmp_path)
    first = start_or_adopt(call, OPTIONS, default_connections(), identity)
    running = start_or_adopt(call, OPTIONS, default_connections(), replace(identity, try_number=2))
    (tmp_path / "go").touch()
    wait(backend_of(first.reference, default_connections()), first.reference)
    ended = start_or_adopt(call, OPTIONS, default_connections(), replace(identity, try_number=3))
    assert running.reference == ended.reference == first.reference
    assert ended.observation.status is JobStatus.SUCCEEDED


def test_a_job_that_failed_is_not_adopted(identity: TaskIdentity) -> None:
    call = Call(fail, (), {})
    first = start_or_adopt(call, OPTIONS, default_connections(), identity)
    assert (
        wait(backend_of(first.reference, default_connections()), first.reference).status is JobStatus.FAILED
    )
    second = start_or_adopt(call, OPTIONS, default_connections(), replace(identity, try_number=2))
    assert not second.adopted
    assert second.reference.job_id != first.reference.job_id
    wait(backend_of(second.reference, default_connections()), second.reference)


def test_a_try_knows_the_jobs_of_the_tries_before(tmp_path: Path, identity: TaskIdentity) -> None:
    first = start_or_adopt(Call(fail, (), {}), OPTIONS, default_connections(), identity)
    wait(backend_of(first.reference, default_connections()), first.reference)
    call = call_until_told(tmp_path)
    second = start_or_adopt(call, OPTIONS, default_connections(), replace(identity, try_number=2))
    third = start_or_adopt(call, OPTIONS, default_connections(), replace(identity, try_number=3))
    cleared = start_or_adopt(
        call, OPTIONS, default_connections(), replace(identity, try_number=4, first_try=4)
    )
    (tmp_path / "go").touch()
    wait(backend_of(cleared.reference, default_connections()), cleared.reference)

    def told(started: Started) -> list[tuple[int, str, JobStatus]]:
        return [(each.try_number, each.job_id, each.observation.status) for each in started.earlier]

    before = (1, first.reference.job_id, JobStatus.FAILED)
    assert told(first) == []
    assert told(second) == [before]
    assert (third.reference, told(third)) == (second.reference, [before])
    assert told(cleared) == [(2, second.reference.job_id, JobStatus.CANCELLED), before]
    assert "no luck" in second.earlier[0].observation.message


def test_an_unreadable_older_job_stops_no_adoption(tmp_path: Path, identity: TaskIdentity) -> None:
    call = call_until_told(tmp_path)
    second = start_or_adopt(call, OPTIONS, default_connections(), replace(identity, try_number=2))
    store = open_backend("local", default_connections()).store
    store.create_if_absent(object_names.handle(identity.job_id()), b"what a later version writes")
    third = start_or_adopt(call, OPTIONS, default_connections(), replace(identity, try_number=3))
    assert (third.reference, third.earlier) == (second.reference, ())
    (tmp_path / "go").touch()
    wait(backend_of(second.reference, default_connections()), second.reference)


@pytest.mark.promise("airflow: Airflow's retries start only after the previous attempt is known dead")
def test_a_changed_call_of_a_try_waits_for_the_first_job(tmp_path: Path, identity: TaskIdentity) -> None:
    first = start_or_adopt(call_until_told(tmp_path), OPTIONS, default_connections(), identity)
    wait_for(lambda: status(first.reference) is JobStatus.RUNNING)
    changed = Call(until_told, (str(tmp_path / "other"),), {})
    second = start_or_adopt(changed, OPTIONS, default_connections(), identity)
    assert status(first.reference) is JobStatus.CANCELLED
    assert not second.adopted
    third = start_or_adopt(changed, OPTIONS, default_connections(), identity)
    assert third.adopted
    assert third.reference == second.reference
    cancel(backend_of(second.reference, default_connections()), second.reference)


@pytest.mark.parametrize("known", ["origin", "record"])
def test_the_latest_job_is_that_of_the_changed_call(
    tmp_path: Path, identity: TaskIdentity, known: str
) -> None:
    """Its id depends on the call: whoever ends the task, or goes on with it, takes no other for it."""
    first = start(call_until_told(tmp_path), identity)
    second = start(Call(until_told, (str(tmp_path / "other"),), {}), identity)
    assert second.reference.job_id not in (first.reference.job_id, identity.job_id())
    told = {
        "origin": {"origin": Origin.of(identity, "ours")},
        "record": {"recorded": second.reference.job_id},
    }[known]
    assert latest(OPTIONS, default_connections(), identity, **told) == second.reference  # type: ignore[arg-type]
    cancel(backend_of(second.reference, default_connections()), second.reference)


def test_the_latest_job_is_not_one_of_an_earlier_run_of_that_id(
    tmp_path: Path, identity: TaskIdentity
) -> None:
    before = start(call_until_told(tmp_path), replace(identity, run_began="2026-01-01T00:00:00+00:00"))
    now = replace(identity, run_began="2026-01-02T00:00:00+00:00")
    assert latest(OPTIONS, default_connections(), now, Origin.of(now, "ours")) is None
    cancel(backend_of(before.reference, default_connections()), before.reference)


@pytest.mark.promise("airflow: *Clear* means run again, never a result that the task has had")
def test_clearing_cancels_the_job_of_the_earlier_generation(tmp_path: Path, identity: TaskIdentity) -> None:
    call = call_until_told(tmp_path)
    first = start_or_adopt(call, OPTIONS, default_connections(), identity)
    second = start_or_adopt(
        call, OPTIONS, default_connections(), replace(identity, try_number=2, first_try=2)
    )
    assert not second.adopted
    assert status(first.reference) is JobStatus.CANCELLED
    (tmp_path / "go").touch()
    assert (
        wait(backend_of(second.reference, default_connections()), second.reference).status
        is JobStatus.SUCCEEDED
    )


class Meanwhile(Mapping[str, str]):
    """No variables for a new job, and something that happens just before it is created."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self._happens = happens

    def __iter__(self) -> Iterator[str]:
        self._happens()
        return iter(())

    def __len__(self) -> int:
        return 1

    def __getitem__(self, name: str) -> str:
        raise KeyError(name)


def start(call: Call, identity: TaskIdentity, environment: Mapping[str, str] | None = None) -> Started:
    origin = Origin.of(identity, "ours")
    return start_or_adopt(
        call, OPTIONS, default_connections(), identity, environment=environment, origin=origin
    )


def stored(identity: TaskIdentity) -> JobReference | None:
    return find(open_backend("local", default_connections()), identity.job_id())


@pytest.mark.attack
def test_clearing_a_finished_run_ends_the_job_left_of_it(tmp_path: Path, identity: TaskIdentity) -> None:
    """Whose kill found nobody alive. Airflow has written another start of the run since."""
    call = call_until_told(tmp_path)
    first = start(call, replace(identity, run_began="2026-01-01T00:00:00+00:00"))
    began = replace(identity, run_began="2026-01-02T00:00:00+00:00")
    second = start(call, replace(began, try_number=2, first_try=2, clear_number=1))
    assert not second.adopted
    assert status(first.reference) is JobStatus.CANCELLED
    cancel(backend_of(second.reference, default_connections()), second.reference)


@pytest.mark.attack
def test_edited_retries_leave_no_job_of_a_cleared_task(tmp_path: Path, identity: TaskIdentity) -> None:
    call = call_until_told(tmp_path)
    first = start(call, identity)
    second = start(call, replace(identity, try_number=2, first_try=2, clear_number=1))
    assert status(first.reference) is JobStatus.CANCELLED
    third = start(call, replace(identity, try_number=3, first_try=1, clear_number=1))
    assert (third.adopted, third.reference) == (True, second.reference)
    cancel(backend_of(second.reference, default_connections()), second.reference)


@pytest.mark.attack
def test_retries_edited_on_the_way_adopt_a_living_job(tmp_path: Path, identity: TaskIdentity) -> None:
    call = call_until_told(tmp_path)
    first = start(call, identity)
    second = start(call, replace(identity, try_number=2, first_try=2))
    assert (second.adopted, second.reference) == (True, first.reference)
    cancel(backend_of(first.reference, default_connections()), first.reference)


@pytest.mark.attack
def test_a_try_that_was_frozen_starts_nothing(tmp_path: Path, identity: TaskIdentity) -> None:
    call = call_until_told(tmp_path)
    second = start(call, replace(identity, try_number=2))
    with pytest.raises(SupersededTry, match="try 2 of task task has job"):
        start(call, identity)
    assert stored(identity) is None
    assert not observe(backend_of(second.reference, default_connections()), second.reference).is_terminal
    cancel(backend_of(second.reference, default_connections()), second.reference)


@pytest.mark.attack
def test_a_try_frozen_while_it_submits_gives_way(tmp_path: Path, identity: TaskIdentity) -> None:
    call, later = call_until_told(tmp_path), replace(identity, try_number=2)
    successors: list[Started] = []
    meanwhile = Meanwhile(lambda: successors.append(start(call, later)))
    with pytest.raises(SupersededTry):
        start(call, identity, meanwhile)
    assert status(stored(identity)) is JobStatus.CANCELLED
    assert not observe(
        backend_of(successors[0].reference, default_connections()), successors[0].reference
    ).is_terminal
    cancel(backend_of(successors[0].reference, default_connections()), successors[0].reference)


@pytest.mark.attack
def test_a_try_ends_one_that_thawed_while_it_submitted(tmp_path: Path, identity: TaskIdentity) -> None:
    call, thawed = call_until_told(tmp_path), list[Started]()
    meanwhile = Meanwhile(lambda: thawed.append(start(call, identity)))
    second = start(call, replace(identity, try_number=2, first_try=2), meanwhile)
    assert status(thawed[0].reference) is JobStatus.CANCELLED
    assert not observe(backend_of(second.reference, default_connections()), second.reference).is_terminal
    cancel(backend_of(second.reference, default_connections()), second.reference)


def cleared(identity: TaskIdentity) -> TaskIdentity:
    """The next try, after somebody has cleared the task of a run that was over."""
    number, clears = identity.try_number + 1, identity.clear_number + 1
    began = f"{identity.run_began}+"
    return replace(identity, run_began=began, try_number=number, first_try=number, clear_number=clears)


@pytest.mark.attack
def test_clear_only_collects_what_nobody_has_collected(tmp_path: Path, identity: TaskIdentity) -> None:
    """The task failed although its job has succeeded: ten hours are not run again."""
    (tmp_path / "go").touch()
    first = start(call_until_told(tmp_path), identity)
    wait(backend_of(first.reference, default_connections()), first.reference)
    second = start(call_until_told(tmp_path), cleared(identity))
    assert (second.adopted, second.reference, second.earlier) == (True, first.reference, ())
    assert second.starter is not None
    assert second.starter.job_id() == first.reference.job_id


@pytest.mark.attack
def test_retries_collect_again_what_a_clear_collected(tmp_path: Path, identity: TaskIdentity) -> None:
    """The worker of the try after the clear died before Airflow had the value. Another clear runs anew."""
    (tmp_path / "go").touch()
    call = call_until_told(tmp_path)
    first = start(call, identity)
    backend = backend_of(first.reference, default_connections())
    wait(backend, first.reference)
    second_try = cleared(identity)
    assert start(call, second_try).reference == first.reference
    mark_spent(backend, first.reference, second_try)
    third_try = replace(second_try, try_number=3)
    third = start(call, third_try)
    assert (third.adopted, third.reference) == (True, first.reference)
    assert third.starter is not None
    assert third.starter.job_id() == first.reference.job_id
    in_a_run_that_goes_on = replace(third_try, try_number=4, first_try=4, clear_number=2)
    for after in (in_a_run_that_goes_on, cleared(third_try)):
        again = start(call, after)
        assert not again.adopted
        wait(backend, again.reference)
        cleanup(backend, again.reference)


@pytest.mark.attack
@pytest.mark.parametrize("name", ["spent", "cleared"])
def test_a_planted_note_makes_a_cleared_task_run_again(
    tmp_path: Path, identity: TaskIdentity, name: str
) -> None:
    (tmp_path / "go").touch()
    first = start(call_until_told(tmp_path), identity)
    backend = backend_of(first.reference, default_connections())
    wait(backend, first.reference)
    backend.store.create_if_absent(f"jobs/{first.reference.job_id}/{name}", b"anything")
    second = start(call_until_told(tmp_path), cleared(identity))
    assert (second.adopted, second.starter) == (False, None)
    wait(backend, second.reference)


@pytest.mark.attack
@pytest.mark.promise("airflow: *Clear* means run again, never a result that the task has had")
@pytest.mark.parametrize("heard", [False, True], ids=["before the old trigger hears of it", "after"])
def test_clear_in_a_run_that_goes_on_runs_again(tmp_path: Path, identity: TaskIdentity, heard: bool) -> None:
    """The job has succeeded, and its task is cleared before anybody has collected the result."""
    (tmp_path / "go").touch()
    call = call_until_told(tmp_path)
    first = start(call, identity)
    backend = backend_of(first.reference, default_connections())
    wait(backend, first.reference)
    if heard:
        mark_spent(backend, first.reference)
    second_try = replace(identity, try_number=2, first_try=2, clear_number=1)
    second = start(call, second_try)
    assert (second.adopted, second.starter) == (False, None)
    assert second.reference != first.reference
    cancel(backend, second.reference)
    third = start(call, cleared(second_try))
    assert not third.adopted
    wait(backend, third.reference)


@pytest.mark.attack
def test_a_result_that_was_cleared_is_not_for_a_later_clear(tmp_path: Path, identity: TaskIdentity) -> None:
    """The try after the clear left no job, since its job could not be created; then its run has ended."""
    (tmp_path / "go").touch()
    call = call_until_told(tmp_path)
    first = start(call, identity)
    backend = backend_of(first.reference, default_connections())
    wait(backend, first.reference)
    second_try = replace(identity, try_number=2, first_try=2, clear_number=1)
    with pytest.raises(OSError, match="no node"):
        start(call, second_try, Meanwhile(refuse))
    third = start(call, cleared(second_try))
    assert not third.adopted
    wait(backend, third.reference)


def refuse() -> None:
    raise OSError("no node")


@pytest.mark.attack
def test_a_retry_does_not_adopt_what_a_worker_has_heard_cleared(
    tmp_path: Path, identity: TaskIdentity
) -> None:
    """Its worker was killed after that, so Airflow takes the next try for a retry."""
    (tmp_path / "go").touch()
    call = call_until_told(tmp_path)
    first = start(call, identity)
    backend = backend_of(first.reference, default_connections())
    wait(backend, first.reference)
    mark_cleared(backend, first.reference)
    second = start(call, replace(identity, try_number=2, clear_number=1))
    assert (second.adopted, second.reference == first.reference) == (False, False)
    wait(backend, second.reference)


@pytest.mark.attack
@pytest.mark.parametrize(
    "ending", ["it is spent", "its Job is gone", "another call", "a run of the same name"]
)
def test_clear_runs_again_what_was_collected(tmp_path: Path, identity: TaskIdentity, ending: str) -> None:
    (tmp_path / "go").touch()
    call, after = call_until_told(tmp_path), cleared(identity)
    first = start(call, identity)
    wait(backend_of(first.reference, default_connections()), first.reference)
    if ending == "it is spent":
        mark_spent(backend_of(first.reference, default_connections()), first.reference)
        mark_spent(backend_of(first.reference, default_connections()), first.reference)
    elif ending == "its Job is gone":
        cleanup(backend_of(first.reference, default_connections()), first.reference, gcs=False)
    elif ending == "another call":
        call = Call(fail, (), {})
    else:
        after = replace(identity, run_began="later")
    second = start(call, after)
    assert not second.adopted
    wait(backend_of(second.reference, default_connections()), second.reference)


@pytest.mark.attack
def test_clear_after_a_failed_rerun_returns_no_old_result(tmp_path: Path, identity: TaskIdentity) -> None:
    (tmp_path / "go").touch()
    call = call_until_told(tmp_path)
    first = start(call, identity)
    wait(backend_of(first.reference, default_connections()), first.reference)
    mark_spent(backend_of(first.reference, default_connections()), first.reference)
    (tmp_path / "go").unlink()
    second = start(call, cleared(identity))
    cancel(backend_of(second.reference, default_connections()), second.reference)
    (tmp_path / "go").touch()
    third = start(call, cleared(cleared(identity)))
    assert not third.adopted
    wait(backend_of(third.reference, default_connections()), third.reference)


@pytest.mark.attack
def test_a_planted_success_is_not_adopted(tmp_path: Path, identity: TaskIdentity) -> None:
    """By somebody who knows the task's names, and the digest of its call."""
    call, backend = call_until_told(tmp_path), open_backend("local", default_connections())
    planned = prepare(call, OPTIONS, default_connections(), job_id=identity.job_id()).reference
    header = {"protocol": wire.PROTOCOL, "job_id": planned.job_id, "state": "succeeded", "codec": "typed"}
    backend.store.create_if_absent(
        object_names.handle(planned.job_id), json.dumps(planned.to_dict()).encode()
    )
    backend.store.create_if_absent(
        object_names.result(planned.job_id), wire.encode_frame(header, codec.encode("owned"))
    )
    started = start(call, identity)
    assert (started.adopted, started.reference.job_id == planned.job_id) == (False, False)
    second_leg = start(call, identity)
    assert (second_leg.adopted, second_leg.reference) == (True, started.reference)
    (tmp_path / "go").touch()
    wait(backend_of(started.reference, default_connections()), started.reference)
    assert (
        collect(backend_of(started.reference, default_connections()), started.reference).value_or_raise()
        == "done"
    )


@pytest.mark.attack
def test_a_success_is_adopted_after_its_job_is_removed(tmp_path: Path, identity: TaskIdentity) -> None:
    (tmp_path / "go").touch()
    call = call_until_told(tmp_path)
    first = start(call, identity)
    wait(backend_of(first.reference, default_connections()), first.reference)
    drop_payloads(default_connections(), [first.reference])
    retried = start(call, replace(identity, try_number=2))
    assert (retried.adopted, retried.reference) == (True, first.reference)
    outcome = collect(
        backend_of(retried.reference, default_connections()), retried.reference, allow_pickle=False
    )
    assert (outcome.verified, outcome.value_or_raise()) == (True, "done")


@pytest.mark.parametrize("named", [True, False], ids=["named Airflow", "unnamed"])
def test_a_try_after_one_that_adopted_does_so_too(
    tmp_path: Path, identity: TaskIdentity, named: bool
) -> None:
    """Try 2 has adopted the success of try 1, whose Job is removed, and dies before it gives the value."""
    (tmp_path / "go").touch()
    call = call_until_told(tmp_path)
    begin = start if named else partial(start_or_adopt, options=OPTIONS, connections=default_connections())
    first = begin(call, identity=identity)
    wait(backend_of(first.reference, default_connections()), first.reference)
    drop_payloads(default_connections(), [first.reference])
    for number in (2, 3, 4):
        again = begin(call, identity=replace(identity, try_number=number))
        assert (again.adopted, again.reference) == (True, first.reference)
    cleared = begin(call, identity=replace(identity, try_number=5, first_try=5))
    assert not cleared.adopted
    wait(backend_of(cleared.reference, default_connections()), cleared.reference)


@pytest.mark.attack
def test_a_retry_adopts_no_removed_job_that_was_cleared(tmp_path: Path, identity: TaskIdentity) -> None:
    (tmp_path / "go").touch()
    call = call_until_told(tmp_path)
    first = start(call, identity)
    backend = backend_of(first.reference, default_connections())
    wait(backend, first.reference)
    mark_cleared(backend, first.reference)
    drop_payloads(default_connections(), [first.reference])
    second = start(call, replace(identity, try_number=2, clear_number=1))
    assert not second.adopted
    wait(backend, second.reference)


def test_all_tries_are_looked_for_with_one_request(identity: TaskIdentity) -> None:
    """Also where the list of a named Airflow has no job of them."""
    backend = Counting(open_backend("local", default_connections()))
    last = replace(identity, try_number=20)
    for origin in (Origin.of(last, "ours"), None):
        backend.store_reads.clear()
        others = Others(cast("Backend", backend), "default", origin)
        assert others.adopted(last, "digest") == (None, [])
        assert backend.store_reads == ["present"]


@pytest.mark.attack
def test_clear_returns_no_result_of_a_deleted_run(tmp_path: Path, identity: TaskIdentity) -> None:
    """A run was deleted and made anew; its own job is collected and removed when it is cleared."""
    (tmp_path / "go").touch()
    call = call_until_told(tmp_path)
    deleted = start(call, identity)
    wait(backend_of(deleted.reference, default_connections()), deleted.reference)
    remade = replace(identity, run_began="later")
    own = start(call, remade)
    assert not own.adopted
    wait(backend_of(own.reference, default_connections()), own.reference)
    drop_payloads(default_connections(), [own.reference])
    after = start(call, cleared(remade))
    assert not after.adopted
    wait(backend_of(after.reference, default_connections()), after.reference)


def test_a_job_somebody_removed_is_no_job(tmp_path: Path, identity: TaskIdentity) -> None:
    (tmp_path / "go").touch()
    first = start_or_adopt(call_until_told(tmp_path), OPTIONS, default_connections(), identity)
    wait(backend_of(first.reference, default_connections()), first.reference)
    cleanup(backend_of(first.reference, default_connections()), first.reference)
    assert latest(OPTIONS, default_connections(), identity) is None
    again = start_or_adopt(call_until_told(tmp_path), OPTIONS, default_connections(), identity)
    assert not again.adopted
    wait(backend_of(again.reference, default_connections()), again.reference)


def trace_parent() -> str | None:
    import os

    return os.environ.get("TRACEPARENT")


@pytest.mark.promise("page: The trace context reaches the pod")
def test_a_trace_reaches_the_job_and_is_no_part_of_its_call(
    identity: TaskIdentity,
) -> None:
    call = Call(trace_parent, (), {})
    first = start_or_adopt(
        call, OPTIONS, default_connections(), identity, environment={"TRACEPARENT": "00-abc-def-01"}
    )
    wait(backend_of(first.reference, default_connections()), first.reference)
    assert (
        collect(backend_of(first.reference, default_connections()), first.reference).value_or_raise()
        == "00-abc-def-01"
    )
    second = start_or_adopt(
        call, OPTIONS, default_connections(), identity, environment={"TRACEPARENT": "00-xyz-def-01"}
    )
    assert (second.adopted, second.reference) == (True, first.reference)


class CountingStore:
    """A store that notes its name for each use of it."""

    def __init__(self, store: Any, uses: list[str]) -> None:
        self._store, self._uses = store, uses

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if callable(found):
            self._uses.append(name)
        return found


class Counting:
    """A backend of which it is counted how often a test's code reads it or its store."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self.reads = backend, list[str]()
        self.store_reads: list[str] = []
        self.store = CountingStore(backend.store, self.store_reads)

    def __getattr__(self, name: str) -> Any:
        if name in ("of_origin", "get", "all"):
            self.reads.append(name)
        return getattr(self._backend, name)


@pytest.mark.promise("scale: Adoption in at most three reads, however many tries")
@pytest.mark.parametrize("tries", [2, 6])
def test_adoption_reads_the_newest_job_alone(tmp_path: Path, identity: TaskIdentity, tries: int) -> None:
    """Of the cluster one list and one observation, of the store the newest job's objects, however many tries
    there were; each earlier one is still known.
    """
    failing = Call(fail, (), {})
    for number in range(1, tries):
        started = start(failing, replace(identity, try_number=number))
        wait(backend_of(started.reference, default_connections()), started.reference)
    call = call_until_told(tmp_path)
    living = start(call, replace(identity, try_number=tries))
    last = replace(identity, try_number=tries + 1)
    backend = Counting(open_backend("local", default_connections()))
    others = Others(cast("Backend", backend), living.reference.namespace, Origin.of(last, "ours"))
    others.end_superseded(last)
    adopted, earlier = others.newest(last, living.reference.spec_digest)
    assert adopted is not None
    assert adopted.reference == living.reference
    assert backend.reads == ["of_origin", "get"]
    assert 1 <= len(backend.store_reads) <= 3
    assert [each.try_number for each in earlier] == list(range(tries, 0, -1))
    assert {each.observation.status for each in earlier[1:]} == {JobStatus.FAILED}
    cancel(backend_of(living.reference, default_connections()), living.reference)


def test_a_new_job_is_not_asked_for_a_second_time(tmp_path: Path, identity: TaskIdentity) -> None:
    """The list with which its try looks for others, after creating it, has it too."""
    living = start(call_until_told(tmp_path), identity)
    backend = Counting(open_backend("local", default_connections()))
    others = Others(cast("Backend", backend), living.reference.namespace, Origin.of(identity, "ours"))
    others.end_superseded(identity, living.reference)
    assert not others.observation_of(living.reference).is_terminal
    assert backend.reads == ["of_origin"]
    cancel(backend_of(living.reference, default_connections()), living.reference)


def test_a_new_job_that_has_ended_is_read_whole(identity: TaskIdentity) -> None:
    ended = start(Call(fail, (), {}), identity)
    wait(backend_of(ended.reference, default_connections()), ended.reference)
    backend = Counting(open_backend("local", default_connections()))
    others = Others(cast("Backend", backend), ended.reference.namespace, Origin.of(identity, "ours"))
    others.end_superseded(identity, ended.reference)
    assert others.observation_of(ended.reference).status is JobStatus.FAILED
    assert backend.reads == ["of_origin", "get"]
