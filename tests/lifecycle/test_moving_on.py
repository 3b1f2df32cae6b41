"""Jobs with several accelerators on a fake cluster: where they run, once, whoever dies when."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import wire
from kinetic_core.cluster.choices import choice_of
from kinetic_core.cluster.names import JOB_ID
from kinetic_core.lifecycle import ending
from kinetic_core.lifecycle.hub import hub_for
from kinetic_core.lifecycle.moving_on import MOVED_ON, accelerator_now, moved_on, passed_over
from kinetic_core.lifecycle.settling import look
from kinetic_core.model.job import JobObservation
from kinetic_core.model.states import JobStatus
from tests.conftest import wait_for
from tests.lifecycle.choices import ID, LATER, Killed, Mortal, Place, asked_for

TPU, SPOT, GPU = "tpu-v6e-8", "tpu-v5e-8:spot", "gpu-h100-1"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    here = Place(tmp_path)
    yield here
    here.backend.close("default")
    here.fake.close()


def test_the_first_with_capacity_runs_it(place: Place) -> None:
    place.capacity.add(TPU)
    reference = place.submit([TPU, GPU])
    wait_for(lambda: look(place.backend, reference).status is JobStatus.SUCCEEDED)
    assert (place.ran, place.jobs()) == ([TPU], [TPU])
    assert accelerator_now(place.store, reference) == TPU


def test_the_next_is_tried_when_the_time_is_up(place: Place) -> None:
    place.capacity.add(GPU)
    reference = place.submit([TPU, SPOT, GPU], capacity_timeout=600)
    place.waits(reference)
    seen = look(place.backend, reference)
    assert seen.created_at is not None
    assert (seen.moves_on_at, place.jobs()) == (seen.created_at + 600, [TPU])
    moved = place.look(reference, 700)
    assert moved.reason == MOVED_ON
    assert moved.message.endswith(f"Insufficient google.com/tpu.; trying {SPOT}")
    assert place.jobs() == [SPOT]
    place.waits(reference)
    place.look(reference, 1400)
    wait_for(lambda: look(place.backend, reference).status is JobStatus.SUCCEEDED)
    assert (place.ran, place.jobs()) == ([GPU], [GPU])
    assert [one.accelerator for one in passed_over(place.store, reference)] == [TPU, SPOT]
    assert accelerator_now(place.store, reference) == GPU


def test_who_merely_watches_moves_it_on(place: Place) -> None:
    place.capacity.add(GPU)
    reference = place.submit([TPU, GPU], capacity_timeout=1)
    seen: list[JobObservation] = []
    subscription = hub_for(place.backend, "default").subscribe(reference, seen.append)
    wait_for(lambda: seen and seen[-1].is_terminal)
    subscription.close()
    reasons = [each.reason for each in seen]
    assert reasons.index(MOVED_ON) < reasons.index("Completed")
    wait_for(lambda: "kinetic-hub-default" not in {thread.name for thread in threading.enumerate()})


def test_the_last_is_waited_for(place: Place) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    place.look(reference)
    place.waits(reference)
    assert place.look(reference).reason == "Unschedulable"
    assert place.look(reference).moves_on_at is None
    assert place.jobs() == [GPU]


def test_the_timeout_goes_on_counting(place: Place) -> None:
    reference = place.submit([TPU, GPU], timeout=3600)
    place.waits(reference)
    place.look(reference, 1000)
    (job,) = place.fake.objects.list("Job", "default")[1]
    assert job["spec"]["activeDeadlineSeconds"] == pytest.approx(2600, abs=5)


def test_a_pod_that_starts_at_that_very_moment_keeps_the_job(place: Place) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    assert place.take(0)
    assert place.look(reference).reason == "Unschedulable"
    assert place.jobs() == [TPU]
    assert place.take(0)  # its next attempt, after the node was lost


def test_a_pod_that_starts_a_moment_later_runs_nothing(place: Place) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    place.look(reference)
    assert not place.take(0)
    place.capacity |= {TPU, GPU}
    assert place.take(1)


@pytest.mark.parametrize("step", range(5))
def test_an_observer_killed_at_any_step_is_followed_by_another(place: Place, step: int) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    mortal: Any = Mortal(place.backend, [step])
    found = place.backend.get("default", ID)
    seen = look(place.backend, reference)
    place.capacity.add(GPU)
    is_done = True
    try:
        moved_on(mortal, reference, found, seen, lambda: time.time() + LATER)
    except Killed:
        is_done = False
    assert is_done == (step == 4)
    place.look(reference)
    wait_for(lambda: look(place.backend, reference).status is JobStatus.SUCCEEDED)
    assert place.ran == [GPU]


def test_a_late_pod_whose_observer_died_is_no_end(place: Place) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    place.store.create(wire.choice_object(ID, 0), b'{"decision": "passed", "at": 1.0, "why": "none"}')
    (pod,) = place.fake.objects.list("Pod", "default")[1]
    place.capacity |= {TPU, GPU}
    place.fake._delete("Pod", "default", pod["metadata"]["name"], {})  # its successor finds a node
    wait_for(lambda: look(place.backend, reference).status is JobStatus.SUCCEEDED)
    assert place.ran == [GPU]


def test_the_same_call_again_goes_on_where_the_job_is(place: Place) -> None:
    reference = place.submit([TPU, SPOT, GPU])
    place.waits(reference)
    place.look(reference)
    assert place.submit([TPU, SPOT, GPU]).spec_digest == reference.spec_digest
    assert place.jobs() == [SPOT]
    place.store.create(wire.choice_object(ID, 1), b'{"decision": "passed", "at": 1.0, "why": "none"}')
    place.submit([TPU, SPOT, GPU])  # whoever passed it over has died
    assert place.jobs() == [GPU]


def test_a_caller_that_others_have_overtaken_leaves_no_job_behind(place: Place) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    (first,) = place.fake.objects.list("Job", "default")[1]
    place.look(reference)
    place.backend.create(first)  # by who asked how far the job is before that
    assert place.jobs() == [GPU]


def test_a_cancelled_job_goes_nowhere(place: Place) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    place.store.create(wire.cancel_object(ID), b"{}")
    assert place.look(reference).reason == "Unschedulable"
    place.backend.delete("default", ID)
    seen = look(place.backend, reference)
    assert seen.failure is not None
    assert (seen.failure.failure_class, place.jobs(), place.ran) == ("cancelled", [TPU], [])


def test_cancelled_while_it_moves_on(place: Place) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)

    def cancel_now(operation: str, name: str) -> None:
        if (operation, name) == ("create", wire.choice_object(ID, 0)):
            place.store._fault = lambda _operation, _name: None
            place.store.create(wire.cancel_object(ID), b"{}")

    place.store._fault = cancel_now
    place.look(reference)
    wait_for(lambda: look(place.backend, reference).is_terminal)
    seen = look(place.backend, reference)
    assert seen.failure is not None
    assert (seen.failure.failure_class, place.ran) == ("cancelled", [])


def test_what_can_never_run_is_skipped_at_once(place: Place) -> None:
    impossible = {TPU, SPOT}

    def never_runs(found: Any) -> str | None:
        name = asked_for(found)
        return f"no pool has {name}" if name in impossible else None

    place.backend.never_runs = never_runs
    place.capacity.add(GPU)
    reference = place.submit([TPU, SPOT, GPU])
    wait_for(lambda: look(place.backend, reference).status is JobStatus.SUCCEEDED)
    assert place.ran == [GPU]
    assert [one.why for one in passed_over(place.store, reference)] == [
        f"no pool has {TPU}",
        f"no pool has {SPOT}",
    ]


def test_a_choice_that_may_come_is_not_left_for_one_that_never_can(place: Place) -> None:
    place.backend.never_runs = lambda found: "no pool" if asked_for(found) == GPU else None
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    assert place.look(reference).reason == "Unschedulable"
    assert place.jobs() == [TPU]


def test_what_none_of_them_can_run_ends_at_once(place: Place) -> None:
    place.backend.never_runs = lambda _found: "no pool"
    reference = place.submit([TPU, GPU])
    wait_for(lambda: look(place.backend, reference).is_terminal)
    seen = look(place.backend, reference)
    assert seen.failure is not None
    assert (seen.failure.failure_class, seen.failure.message) == ("impossible request", "no pool")


def test_many_choices_take_little_room(place: Place) -> None:
    place.submit([f"tpu-v5e-{chips}{spot}" for chips in (1, 4, 8) for spot in ("", ":spot")])
    (job,) = place.fake.objects.list("Job", "default")[1]
    choice = choice_of(job)
    assert choice is not None
    assert len(choice.later) == 5
    assert len(json.dumps(job["metadata"])) < 6000
    assert job["metadata"]["labels"][JOB_ID] == ID


def test_a_job_with_one_accelerator_pays_nothing(place: Place) -> None:
    place.capacity.add(TPU)
    reference = place.submit([TPU])
    place.store.requests.clear()
    assert passed_over(place.store, reference) == ()
    assert place.store.requests == []
    assert ending.index_object(reference)
