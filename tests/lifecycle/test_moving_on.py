"""Jobs with several accelerators on a fake cluster: where they run, once, whoever dies when."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import codec, wire
from kinetic_core._runner.choice import is_taken
from kinetic_core._runner.job import take_job
from kinetic_core.cluster.choices import accelerator_of, choice_of
from kinetic_core.cluster.connecting import Target
from kinetic_core.cluster.names import JOB_ID
from kinetic_core.configuration import read_settings
from kinetic_core.errors import ObjectExists
from kinetic_core.gke.backend import GkeBackend
from kinetic_core.lifecycle import ending
from kinetic_core.lifecycle.hub import hub_for
from kinetic_core.lifecycle.moving_on import MOVED_ON, accelerator_now, moved_on, passed_over
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.packing import pack
from kinetic_core.lifecycle.preparing import address
from kinetic_core.lifecycle.settling import look
from kinetic_core.lifecycle.submission import submit
from kinetic_core.model.job import JobObservation, JobReference
from kinetic_core.model.states import JobStatus
from kinetic_core.testing import pod_behaviour as behaviours
from kinetic_core.testing.fake_cluster import FakeCluster
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.conftest import wait_for

TPU, SPOT, GPU = "tpu-v6e-8", "tpu-v5e-8:spot", "gpu-h100-1"
ID = "job-00000000000000aa"
LATER = 10_000.0
"""Seconds by which every time is up."""


def answer() -> int:
    return 42


@dataclass
class RunnersStore:
    """The same store as a pod has it."""

    store: MemoryObjectStore

    def create(self, name: str, content: bytes, state: str = "") -> bool:
        try:
            self.store.create(name, content, {wire.STATE: state} if state else None)
        except ObjectExists:
            return False
        return True

    def read(self, name: str) -> bytes:
        return self.store.read(name)


@dataclass
class Place:
    """A cluster whose accelerators have `capacity` or none, and the pods that ran user code there."""

    folder: Path
    capacity: set[str] = field(default_factory=set)
    ran: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fake = FakeCluster(self._behave)
        self.store = MemoryObjectStore("gs://bucket")
        self.backend: Any = GkeBackend(
            Target(str(self.fake.write_kubeconfig(self.folder / "kubeconfig"))), "bucket", read_settings()
        )
        self.backend.store = self.store

    def submit(self, choices: list[str], **options: Any) -> JobReference:
        asked = RunOptions.checked(choices, container_image="python:3.11", **options)
        root = str(Path(__file__).parent)
        settings = replace(read_settings(), cache=self.folder / "cache", package_root=root)
        packed = pack(answer, asked, settings, backend=self.backend)
        return submit(address(packed, job_id=ID))

    def look(self, reference: JobReference, later: float = LATER, backend: Any = None) -> JobObservation:
        """As `settling.look`, that much later."""
        backend = backend or self.backend
        seen = look(backend, reference)
        found = backend.get("default", ID)
        if seen.is_terminal or found is None:
            return seen
        return moved_on(backend, reference, found, seen, lambda: time.time() + later)

    def jobs(self) -> list[str]:
        """The accelerators that Jobs are there for."""
        return [accelerator_of(job) for job in self.fake.objects.list("Job", "default")[1]]

    def take(self, number: int) -> bool:
        """What the runner of a pod for this accelerator does before anything else."""
        environment = {
            "KINETIC_STORE": "gs://bucket",
            "KINETIC_JOB_ID": ID,
            "KINETIC_PAYLOAD_SHA256": "",
            "KINETIC_OUTCOME_KEY": "00",
            "KINETIC_WORK_DIR": "",
            "KINETIC_CHOICE": str(number),
        }
        runner: Any = RunnersStore(self.store)
        return is_taken(take_job(environment), runner)

    def waits(self, reference: JobReference) -> None:
        """Until the scheduler has said no."""
        wait_for(lambda: look(self.backend, reference).reason == "Unschedulable")

    def _behave(self, pod: dict[str, Any]) -> behaviours.PodBehaviour:
        job = {"metadata": pod["metadata"], "spec": {"template": pod}}
        if accelerator_of(job) not in self.capacity:
            return behaviours.cannot_be_scheduled()
        environment = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
        if "KINETIC_CHOICE" in environment and not self.take(int(environment["KINETIC_CHOICE"])):
            return behaviours.exits(wire.EXIT_FENCED)
        self.ran.append(accelerator_of(job))
        header = {"protocol": 1, "job_id": ID, "attempt": 0, "state": "succeeded", "codec": "typed"}
        frame = wire.encode_frame(header, codec.encode(42), bytes.fromhex(environment["KINETIC_OUTCOME_KEY"]))
        self.store.create(wire.result_object(ID), frame, {wire.STATE: "succeeded"})
        return behaviours.succeeds()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    here = Place(tmp_path)
    yield here
    here.backend.close("default")
    here.fake.close()


class Killed(BaseException):
    """The observer's process is gone."""


@dataclass
class Mortal:
    """A backend, or its store, whose observer dies before its n-th use of either."""

    whole: Any
    left: list[int]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.whole, name)
        if name == "store":
            return Mortal(found, self.left)
        if not callable(found) or name in ("get", "never_runs"):
            return found
        return self._counted(found)

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            if self.left[0] == 0:
                raise Killed
            self.left[0] -= 1
            return call(*args)

        return counted


def _accelerator(found: Any) -> str:
    """What the newest pod of a Job is for."""
    return accelerator_of({"spec": {"template": found[1][-1]}})


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
        name = _accelerator(found)
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
    place.backend.never_runs = lambda found: "no pool" if _accelerator(found) == GPU else None
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
