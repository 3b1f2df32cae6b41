"""Jobs with several accelerators on a fake cluster: where they run, once, whoever dies when."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import object_names
from kinetic_core.backends.kubernetes.fallbacks import choice_of
from kinetic_core.backends.kubernetes.names import JOB_ID
from kinetic_core.job import JobObservation, JobStatus
from kinetic_core.jobs import cancel
from kinetic_core.jobs.decide import MOVED_ON
from kinetic_core.jobs.fallback import accelerator_now, passed_over
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.jobs.watch import watch_for
from tests.conftest import wait_for
from tests.jobs.choices import ID, LATER, Killed, Mortal, Place, asked_for

TPU, SPOT, GPU = "tpu-v6e-8", "tpu-v5e-8:spot", "gpu-h100-1"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    here = Place(tmp_path)
    yield here
    here.backend.end_watch("default")
    here.fake.close()


def test_the_first_with_capacity_runs_it(place: Place) -> None:
    place.capacity.add(TPU)
    reference = place.submit([TPU, GPU])
    wait_for(lambda: reconcile(place.backend, reference).status is JobStatus.SUCCEEDED)
    assert (place.ran, place.jobs()) == ([TPU], [TPU])
    assert accelerator_now(place.backend, reference) == TPU


@pytest.mark.promise("batches: Ordered fallback with a time limit per choice")
def test_the_next_is_tried_when_the_time_is_up(place: Place) -> None:
    place.capacity.add(GPU)
    reference = place.submit([TPU, SPOT, GPU], capacity_timeout=600)
    place.waits(reference)
    seen = reconcile(place.backend, reference)
    assert seen.created_at is not None
    assert (seen.moves_on_at, place.jobs()) == (seen.created_at + 600, [TPU])
    moved = place.reconcile(reference, 700)
    assert moved.reason == MOVED_ON
    assert moved.message.endswith(f"Insufficient google.com/tpu.; trying {SPOT}")
    assert place.jobs() == [SPOT]
    place.waits(reference)
    place.reconcile(reference, 1400)
    wait_for(lambda: reconcile(place.backend, reference).status is JobStatus.SUCCEEDED)
    assert (place.ran, place.jobs()) == ([GPU], [GPU])
    assert [one.accelerator for one in passed_over(place.backend, reference)] == [TPU, SPOT]
    assert accelerator_now(place.backend, reference) == GPU


def test_who_merely_watches_moves_it_on(place: Place) -> None:
    place.capacity.add(GPU)
    reference = place.submit([TPU, GPU], capacity_timeout=1)
    seen: list[JobObservation] = []
    subscription = watch_for(place.backend, "default").subscribe(reference, seen.append)
    wait_for(lambda: seen and seen[-1].is_terminal)
    subscription.close()
    reasons = [each.reason for each in seen]
    assert reasons.index(MOVED_ON) < reasons.index("Completed")
    wait_for(lambda: "kinetic-watch-default" not in {thread.name for thread in threading.enumerate()})


def test_the_last_is_waited_for(place: Place) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    place.reconcile(reference)
    place.waits(reference)
    assert place.reconcile(reference).reason == "Unschedulable"
    assert place.reconcile(reference).moves_on_at is None
    assert place.jobs() == [GPU]


def test_the_timeout_goes_on_counting(place: Place) -> None:
    reference = place.submit([TPU, GPU], timeout=3600)
    place.waits(reference)
    place.reconcile(reference, 1000)
    (job,) = place.fake.objects.list("Job", "default")[1]
    assert job["spec"]["activeDeadlineSeconds"] == pytest.approx(2600, abs=60)


def test_a_pod_that_starts_at_that_very_moment_keeps_the_job(place: Place) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    assert place.take(0)
    assert place.reconcile(reference).reason == "Unschedulable"
    assert place.jobs() == [TPU]
    assert place.take(0)  # its next attempt, after the node was lost


def test_a_pod_that_starts_a_moment_later_runs_nothing(place: Place) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    place.reconcile(reference)
    assert not place.take(0)
    place.capacity |= {TPU, GPU}
    assert place.take(1)


@pytest.mark.parametrize("step", range(5))
def test_an_observer_killed_at_any_step_is_followed_by_another(place: Place, step: int) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    mortal: Any = Mortal(place.backend, [step])
    place.capacity.add(GPU)
    is_done = True
    try:
        reconcile(mortal, reference, time.time() + LATER)
    except Killed:
        is_done = False
    assert is_done == (step == 4)
    place.reconcile(reference)
    wait_for(lambda: reconcile(place.backend, reference).status is JobStatus.SUCCEEDED)
    assert place.ran == [GPU]


def test_a_late_pod_whose_observer_died_is_no_end(place: Place) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    place.pass_over(0)
    (pod,) = place.fake.objects.list("Pod", "default")[1]
    place.capacity |= {TPU, GPU}
    place.fake.delete("Pod", "default", pod["metadata"]["name"], {})  # its successor finds a node
    wait_for(lambda: reconcile(place.backend, reference).status is JobStatus.SUCCEEDED)
    assert place.ran == [GPU]


def test_the_same_call_again_goes_on_where_the_job_is(place: Place) -> None:
    reference = place.submit([TPU, SPOT, GPU])
    place.waits(reference)
    place.reconcile(reference)
    assert place.submit([TPU, SPOT, GPU]).spec_digest == reference.spec_digest
    assert place.jobs() == [SPOT]
    place.pass_over(1)
    place.submit([TPU, SPOT, GPU])  # whoever passed it over has died
    assert place.jobs() == [GPU]


def test_a_caller_overtaken_by_others_leaves_no_job(place: Place) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    (first,) = place.fake.objects.list("Job", "default")[1]
    place.reconcile(reference)
    place.backend.create(first)  # by who asked how far the job is before that
    assert place.jobs() == [GPU]


@pytest.mark.attack
@pytest.mark.parametrize("forgery", ["unsigned", "another key", "no key id", "no document"])
def test_a_planted_choice_moves_no_job_on(
    place: Place, forgery: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither is it shown why, nor is there a second Job."""
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    if forgery == "another key":
        place.pass_over(0, "of the writer's making", b"another")
    else:
        planted = {"decision": "passed", "at": 1.0, "why": "of the writer's making"}
        told = {**planted, "key_id": place.key()[0]} if forgery == "unsigned" else planted
        content = b"{" if forgery == "no document" else json.dumps(told).encode()
        place.store.create_if_absent(object_names.choice(ID, 0), content)
    assert passed_over(place.backend, reference) == ()
    assert accelerator_now(place.backend, reference) == TPU
    assert place.reconcile(reference).reason == "Unschedulable"
    assert place.jobs() == [TPU]
    assert "choices/0" in caplog.text
    assert "not believed" in caplog.text


@pytest.mark.attack
def test_a_choice_is_believed_when_its_job_has_another_key(place: Place) -> None:
    """As of a job that was submitted again when whoever passed over had died."""
    reference = place.submit([TPU, SPOT, GPU])
    place.waits(reference)
    place.reconcile(reference)
    place.pass_over(1)
    before = place.key()
    place.submit([TPU, SPOT, GPU])
    assert place.key() != before
    assert [one.accelerator for one in passed_over(place.backend, reference)] == [TPU, SPOT]


def test_a_cancelled_job_goes_nowhere(place: Place) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    place.store.create_if_absent(object_names.cancel(ID), b"{}")
    assert place.reconcile(reference).reason == "Unschedulable"
    place.backend.delete("default", ID)
    seen = reconcile(place.backend, reference)
    assert seen.failure is not None
    assert (seen.failure.failure_class, place.jobs(), place.ran) == ("cancelled", [TPU], [])


def test_cancelled_while_it_moves_on(place: Place) -> None:
    reference = place.submit([TPU, GPU])
    place.waits(reference)

    def cancel_now(operation: str, name: str) -> None:
        if (operation, name) == ("create", object_names.choice(ID, 0)):
            place.store.fault = lambda _operation, _name: None
            place.store.create_if_absent(object_names.cancel(ID), b"{}")

    place.store.fault = cancel_now
    place.reconcile(reference)
    wait_for(lambda: reconcile(place.backend, reference).is_terminal)
    seen = reconcile(place.backend, reference)
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
    wait_for(lambda: reconcile(place.backend, reference).status is JobStatus.SUCCEEDED)
    assert place.ran == [GPU]
    assert [one.why for one in passed_over(place.backend, reference)] == [
        f"no pool has {TPU}",
        f"no pool has {SPOT}",
    ]


def test_a_possible_choice_is_not_left_for_an_impossible_one(place: Place) -> None:
    place.backend.never_runs = lambda found: "no pool" if asked_for(found) == GPU else None
    reference = place.submit([TPU, GPU])
    place.waits(reference)
    assert place.reconcile(reference).reason == "Unschedulable"
    assert place.jobs() == [TPU]


def test_what_none_of_them_can_run_ends_at_once(place: Place) -> None:
    place.backend.never_runs = lambda _found: "no pool"
    reference = place.submit([TPU, GPU])
    wait_for(lambda: reconcile(place.backend, reference).is_terminal)
    seen = reconcile(place.backend, reference)
    assert seen.failure is not None
    assert (seen.failure.failure_class, seen.failure.message) == ("impossible request", "no pool")


def test_many_choices_take_little_room(place: Place) -> None:
    place.submit([f"tpu-v5e-{chips}{spot}" for chips in (1, 4, 8) for spot in ("", ":spot")])
    (job,) = place.fake.objects.list("Job", "default")[1]
    choice = choice_of(job)
    assert choice is not None
    assert len(choice.later) == 5
    assert len(json.dumps(job["metadata"])) < 7000
    assert job["metadata"]["labels"][JOB_ID] == ID


def test_a_job_with_one_accelerator_pays_nothing(place: Place) -> None:
    place.capacity.add(TPU)
    reference = place.submit([TPU])
    place.store.requests.clear()
    assert passed_over(place.backend, reference) == ()
    assert place.store.requests == []
    assert cancel.index_object(reference)
