"""The phases of a job follow each other without a gap, from its submission to its end, however it ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

import kinetic_core
from kinetic_core._runner import object_names, wire
from kinetic_core._runner.notes import encode_note
from kinetic_core.backends.kubernetes.names import CANCELLED, CHUNK, CONTAINER, FAILED_COUNT
from kinetic_core.backends.kubernetes.pods import gone_pods, made_pods
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.backends.local.layout import Layout
from kinetic_core.job import JobStatus
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.phases import Phase
from kinetic_core.jobs.signing import outcome_key
from kinetic_core.jobs.timeline import current_phase, explain, phases
from kinetic_core.testing import kubelet as behaviours
from kinetic_core.testing.fake_cluster import FakeCluster
from tests.conftest import wait_for
from tests.jobs.test_settling import Place

Object = dict[str, Any]
FATES = (
    "returned",
    "raised",
    "retried",
    "timed out",
    "cancelled while running",
    "cancelled in the queue",
    "killed, its pod kept",
    "killed, events kept",
    "killed, nothing kept",
    "killed, an observer saw it start",
    "removed with its Job, nothing kept",
    "removed with its Job, events kept",
    "its node replaced",
    "its second attempt timed out",
)


def stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


@dataclass
class Story:
    """What is left of a job whose clock `now` is. `true` has the seconds of its phases that are known."""

    random: Random
    fate: str
    submitted: float = 0.0
    job: Object = field(default_factory=dict)
    pods: list[Object] = field(default_factory=list)
    events: list[Object] = field(default_factory=list)
    outcome: Object = field(default_factory=dict)
    noted: dict[int, dict[str, float]] = field(default_factory=dict)
    true: dict[tuple[str, int], float] = field(default_factory=dict)
    ended: float = 0.0

    def __post_init__(self) -> None:
        self.now = self.submitted = 1000.0 + self.random.random()
        self.passes(0.05, 0.3, 4.0)  # the payload is stored
        self.job = {"metadata": {"name": "mine", "creationTimestamp": stamp(self.now)}, "status": {}}
        self.job["status"]["startTime"] = stamp(self.now)
        if self.fate != "cancelled in the queue":
            lost = "killed" in self.fate
            attempts = self.random.randint(2, 3) if self.fate in SEVERAL else 1
            for number in range(attempts):
                is_last = number == attempts - 1
                self.attempt(number, is_last=is_last, has_times=not (lost and is_last))
        self.passes(0.4, 3.0, 40.0)
        self.ended = float(int(self.now))
        self.end()

    def passes(self, *seconds: float) -> float:
        self.now += self.random.choice(seconds)
        return self.now

    def attempt(self, number: int, *, is_last: bool, has_times: bool) -> None:
        name = f"mine-0-abc{number}"
        created, scheduled = self.passes(0.01, 0.2, 70.0), self.passes(0.01, 0.5, 300.0)
        started = self.passes(0.02, 0.9, 45.0)
        times = {"started": self.passes(0.01, 0.6), "user_started": self.passes(0.03, 0.4, 20.0)}
        times["user_finished"], times["finished"] = self.passes(0.01, 0.19, 600.0), self.passes(0.01, 0.3)
        ended = {"startedAt": stamp(started), "finishedAt": stamp(self.now)}
        ready = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(scheduled)}
        about = {
            "name": name,
            "creationTimestamp": stamp(created),
            "annotations": {FAILED_COUNT: str(number)},
        }
        state = {"name": CONTAINER, "state": {"terminated": ended}}
        pod = {"metadata": about, "status": {"conditions": [ready], "containerStatuses": [state]}}
        is_gone = is_last and self.fate in GONE
        self.pods += [] if is_gone or self.fate == "its node replaced" else [pod]
        at = datetime.fromtimestamp(scheduled, UTC).isoformat()
        told: list[Object] = [{"reason": "SuccessfulCreate", "message": f"Created pod: {name}"}]
        told += [{"reason": "Scheduled", "eventTime": at}, {"reason": "Started"}]
        for each, when in zip(told, (created, scheduled, started), strict=True):
            each["involvedObject"] = {"name": "mine" if each["reason"] == "SuccessfulCreate" else name}
            each.setdefault("firstTimestamp", stamp(when))
        self.events += told if "nothing" not in self.fate and "observer" not in self.fate else []
        if has_times:
            self.true["function", number] = times["user_finished"] - times["user_started"]
            self.true["result", number] = times["finished"] - times["user_finished"]
            self.noted[number] = times
        if is_last:
            self.last(number, times)

    def last(self, number: int, times: dict[str, float]) -> None:
        if self.fate in RUNNER_SAYS:
            self.noted.pop(number)
            self.outcome = {"attempt": number, "times": times}
        else:
            self.outcome = {"attempt": 0, "author": "observer"}
        if "observer" in self.fate:
            self.outcome |= {"started_at": times["started"]}

    def end(self) -> None:
        if self.fate in REMOVED:
            self.ended, self.job, self.pods = self.outcome["times"]["finished"], {}, []
            return
        kind = "Complete" if self.fate == "returned" else "Failed"
        ended = {"type": kind, "status": "True", "lastTransitionTime": stamp(self.ended)}
        self.job["status"] |= {"conditions": [ended], "failed": int("killed" in self.fate)}

    def phases(self) -> list[Phase]:
        names = [each["metadata"]["name"] for each in self.pods]
        shown = [*self.pods, *gone_pods(self.events, names, 0)]
        told = (self.submitted, self.job, shown, self.events, self.outcome, 99999.0, None, self.noted)
        return list(phases(*told))


SEVERAL = ("retried", "its node replaced", "its second attempt timed out")
GONE = (
    "timed out",
    "cancelled while running",
    "killed, events kept",
    "killed, nothing kept",
    "killed, an observer saw it start",
    "its second attempt timed out",
)
REMOVED = ("removed with its Job, nothing kept", "removed with its Job, events kept")
RUNNER_SAYS = ("returned", "raised", "retried", *REMOVED, "its node replaced")


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("fate", FATES)
def test_the_phases_of_any_fate_add_up(fate: str, seed: int) -> None:
    story = Story(Random(seed), fate)
    found = story.phases()
    if not found:  # it ended in the second, as Kubernetes tells it, in which it was submitted
        assert (fate, story.ended) == ("cancelled in the queue", int(story.submitted))
        return
    assert found[0].began == story.submitted
    assert [phase.began for phase in found[1:]] == pytest.approx(
        [phase.end for phase in found[:-1]], abs=1e-6
    )
    assert found[-1].end == pytest.approx(max(story.ended, story.submitted), abs=0.999)
    assert found[-1].end >= story.ended
    whole = found[-1].end - story.submitted
    assert sum(phase.seconds for phase in found) == pytest.approx(whole, abs=1e-6)
    assert all(phase.seconds > 0 for phase in found)
    for (name, attempt), lasted in story.true.items():
        own = [phase.seconds for phase in found if (phase.name, phase.attempt) == (name, attempt)]
        assert sum(own) == pytest.approx(lasted, abs=1.0 if story.ended == found[-1].end else 1e-6)


def names_of(fate: str) -> set[str]:
    return {phase.name for seed in range(10) for phase in Story(Random(seed), fate).phases()}


def test_what_is_told_of_pods_that_are_gone() -> None:
    assert names_of("cancelled in the queue") == {"upload", "queue"}
    for fate in ("timed out", "cancelled while running", "its second attempt timed out"):
        assert {"scheduling", "container", "start", "function", "result", "termination"} <= names_of(fate), (
            fate
        )
    assert {"scheduling", "container", "running"} <= names_of("killed, events kept")
    assert "function" in names_of("killed, an observer saw it start")
    assert "unknown" in names_of("killed, nothing kept")
    removed = {"upload", "scheduling", "container", "start", "function", "result"}
    assert names_of("removed with its Job, events kept") == removed
    assert names_of("removed with its Job, nothing kept") == {"unknown", "start", "function", "result"}
    assert "unknown" not in {name for fate in FATES if "nothing" not in fate for name in names_of(fate)}


def test_a_removed_job_waited_for_its_queue_if_an_event_says_so() -> None:
    stories = (Story(Random(seed), "removed with its Job, events kept") for seed in range(99))
    story = next(each for each in stories if each.phases()[0].seconds > 60)
    held = {"reason": "Suspended", "firstTimestamp": stamp(story.submitted + 5), "involvedObject": {}}
    story.events.append(held)
    upload, queue, scheduling = story.phases()[:3]
    assert (upload.name, queue.name, scheduling.name) == ("upload", "queue", "scheduling")
    assert 4 <= upload.seconds <= 5
    assert queue.seconds > 50


def test_an_attempt_before_the_last_has_a_start_of_its_own() -> None:
    """Its pod is there, and so is what its runner noted: what it took to start was not its function."""
    found = {
        (each.name, each.attempt) for seed in range(9) for each in Story(Random(seed), "retried").phases()
    }
    assert {("start", 0), ("function", 0), ("result", 0), ("replacement", 0), ("start", 1)} <= found
    assert ("termination", 0) not in found


def test_an_input_of_a_batch_that_does_not_say_when_it_ended() -> None:
    """One Job runs it and others: it tells neither when one of them ended nor how many pods one had."""
    about = {"creationTimestamp": stamp(1001), "labels": {CHUNK: "0"}}
    job = {"metadata": about, "status": {"conditions": [{"type": "Failed", "status": "True"}], "failed": 7}}
    times = {"started": 1010.0, "user_started": 1011.0, "user_finished": 1015.0, "finished": 1016.0}
    found = list(phases(1000.0, job, [], [], {"attempt": 0, "times": times}, 5000.0))
    assert [(each.name, each.seconds) for each in found][-3:] == [
        ("start", 1),
        ("function", 4),
        ("result", 1),
    ]
    assert sum(each.seconds for each in found) == 16
    assert "unknown" not in {each.name for each in phases(1000.0, job, [], [], {}, 5000.0)}


@pytest.mark.parametrize("ahead", [-20.0, 20.0])
def test_a_clock_that_is_a_little_wrong_leaves_no_gap(ahead: float) -> None:
    """Seconds are moved between neighbours then, but none is lost or counted twice."""
    story = Story(Random(1), "raised")
    story.outcome["times"] = {name: at + ahead for name, at in story.outcome["times"].items()}
    (pod,) = story.pods
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    began = datetime.fromisoformat(ended["startedAt"]).timestamp()
    ended["startedAt"] = stamp(began + ahead)
    found = story.phases()
    assert found[-1].end == story.ended
    assert sum(each.seconds for each in found) == pytest.approx(story.ended - story.submitted)
    assert "function" in {each.name for each in found}


def test_times_that_are_none_are_not_believed() -> None:
    """A job's own code can write what its runner notes."""
    times = {"started": float("nan"), "user_started": 1005.0, "finished": float("inf")}
    found = list(phases(1000.0, {}, [], [], {"attempt": 0, "times": times}, 1010.0))
    assert sum(each.seconds for each in found) == 5


def test_events_name_the_pods_that_a_job_has_had() -> None:
    def made(name: str, at: int) -> Object:
        return {"reason": "SuccessfulCreate", "message": f"Created pod: {name}", "firstTimestamp": stamp(at)}

    events = [made("mine-0-b", 1020), made("mine-0-a", 1010), made("mine-1-a", 1010)]
    events.append({"reason": "SuccessfulDelete", "message": "Deleted pod: mine-0-a"})
    assert made_pods(events) == ["mine-0-a", "mine-1-a", "mine-0-b"]
    found = list(gone_pods(events, ["mine-0-a"], 0))
    assert [(each["metadata"]["name"], each["metadata"]["annotations"]) for each in found] == [
        ("mine-0-b", {FAILED_COUNT: "1"})
    ]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with FakeCluster(lambda _: behaviours.runs_until_stopped()) as fake:
        yield (made := Place(fake, tmp_path))
        made.backend.end_watch("default")


@pytest.mark.promise("gke: `explain()`: each second, its cause, what would shorten it")
def test_a_job_cancelled_while_it_ran_did_not_only_wait(place: Place) -> None:
    """Its pod is deleted with its end: its runner's last words are what is left of it."""
    wait_for(lambda: place.reconcile().status is JobStatus.RUNNING)
    there = place.backend.get("default", place.reference.job_id)
    assert there is not None
    now = time.time()
    name = object_names.attempt_outcome(place.reference.job_id, 0)
    header = {
        "job_id": place.reference.job_id,
        "state": "failed",
        "codec": "none",
        "object": name,
        "attempt": 0,
    }
    header |= {"times": {"started": now - 3, "user_started": now - 2, "finished": now}}
    frame = wire.encode_frame({"protocol": wire.PROTOCOL, **header}, {}, outcome_key(there[0]))
    place.store.create_if_absent(name, frame)
    cancel(place.backend, place.reference)
    told = explain(place.backend, place.reference)
    assert told.observation.status is JobStatus.CANCELLED
    assert "function" in {each.name for each in told.phases}
    assert sum(each.seconds for each in told.phases) == pytest.approx(told.seconds)
    began, ended = told.observation.created_at, told.observation.finished_at
    assert (began, ended) == (told.phases[0].began, told.phases[-1].end)
    assert CANCELLED in (place.backend.get("default", place.reference.job_id) or ({"metadata": {}},))[0][
        "metadata"
    ].get("annotations", {})


def tell_times(place: Place, times: dict[str, float], sequence: int, key: bytes | None = None) -> None:
    """Store when phases of the job's first attempt began, as its runner does, or as somebody with a `key`."""
    name = object_names.times(place.reference.job_id, 0, sequence)
    there = place.backend.get("default", place.reference.job_id)
    assert there is not None
    place.store.create_if_absent(
        name, encode_note(key or outcome_key(there[0]) or b"", name, {"times": times})
    )


def test_a_running_attempt_is_told_apart(place: Place) -> None:
    wait_for(lambda: place.reconcile().status is JobStatus.RUNNING)
    assert current_phase(place.backend, place.reference, 0) == ""
    assert explain(place.backend, place.reference).phases[-1].name == "running"
    times = {"started": time.time() - 0.001, "data": time.time()}  # two clock reads can give one number
    tell_times(place, times, 0)
    assert current_phase(place.backend, place.reference, 0) == "data"
    assert explain(place.backend, place.reference).phases[-1].name == "data"
    tell_times(place, {**times, "user_started": time.time()}, 1)
    assert current_phase(place.backend, place.reference, 0) == "function"
    told = explain(place.backend, place.reference).phases
    assert told[-1].name == "function"
    assert "running" not in {each.name for each in told}


@pytest.mark.attack
def test_times_that_another_has_stored_are_not_believed(place: Place) -> None:
    wait_for(lambda: place.reconcile().status is JobStatus.RUNNING)
    now = time.time()
    tell_times(place, {"started": now - 2, "data": now - 1}, 0)
    tell_times(place, {"started": now - 2, "user_started": now - 2}, 1, b"another's key")
    assert current_phase(place.backend, place.reference, 0) == "data"


@pytest.mark.usefixtures("local_jobs")
def test_the_preparation_of_a_call_is_explained() -> None:
    handle = kinetic_core.run(accelerator="cpu")(end).run_async("returns")
    assert [step for step, _ in handle.steps] == ["pack", "upload"]
    called = datetime.fromisoformat(handle.created_at).timestamp() - handle.preparation_seconds
    told = kinetic_core.attach(handle.job_id).explain()
    assert told.phases[0].name == "packing"
    assert told.phases[0].began == pytest.approx(called, abs=1e-4)
    assert told.observation.created_at == pytest.approx(called + handle.preparation_seconds, abs=1e-4)


def end(kind: str) -> object:
    """What a job does, on this machine."""
    if kind == "raises":
        raise ValueError(kind)
    time.sleep(0.1 if kind == "returns" else 600)
    return kind


@pytest.mark.usefixtures("local_jobs")
@pytest.mark.parametrize("kind", ["returns", "raises", "is cancelled"])
def test_the_phases_of_a_job_on_this_machine_add_up(kind: str) -> None:
    handle = kinetic_core.run(accelerator="cpu")(end).run_async(kind)
    if kind == "is cancelled":
        wait_for(lambda: handle.status() is JobStatus.RUNNING)
        handle.cancel()
    wait_for(lambda: handle.status().is_terminal)
    told, seen = handle.explain(), handle.observe()
    called = datetime.fromisoformat(handle.created_at).timestamp() - handle.preparation_seconds
    assert seen.finished_at is not None
    assert told.phases[0].began == pytest.approx(called, abs=1e-4)
    assert sum(each.seconds for each in told.phases) == pytest.approx(seen.finished_at - called, abs=1e-4)


@pytest.mark.usefixtures("local_jobs")
def test_a_collected_job_of_this_machine_keeps_its_times() -> None:
    handle = kinetic_core.run(accelerator="cpu")(end).run_async("returns")
    assert handle.result() == "returns"
    told = handle.explain()
    assert [each.name for each in told.phases[:3]] == ["packing", "upload", "queue"]
    assert "unknown" not in {each.name for each in told.phases}


@pytest.mark.usefixtures("local_jobs")
def test_times_of_removed_jobs_go_after_an_hour(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path))
    old = Path(layout.removed(int(time.time() // 3600) - 2), "default")
    old.mkdir(parents=True)
    (old / "job-old.json").touch()
    LocalBackend(tmp_path).remove("default")
    assert not old.parent.exists()
