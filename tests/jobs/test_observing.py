"""A question changes nothing: every observing function, on a cluster and in a store that refuse writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetic_core import JobHandle, attach, attach_batch, list_jobs
from kinetic_core.backends.base import backend_of
from kinetic_core.connections import default_connections
from kinetic_core.errors import KineticError
from kinetic_core.jobs.cost import usage_of
from kinetic_core.jobs.fallback import accelerator_now, passed_over
from kinetic_core.jobs.garbage_collection import orphans
from kinetic_core.jobs.listing import summaries
from tests.conftest import Kinetic
from tests.jobs.recorded import GROUP, ID, STATES, Recorded

Record = Callable[[str], Recorded]

QUESTIONS: dict[str, Callable[[JobHandle], object]] = {
    "status": JobHandle.status,
    "observe": JobHandle.observe,
    "logs": JobHandle.logs,
    "tail": JobHandle.tail,
    "explain": JobHandle.explain,
    "outputs": lambda job: list(job.outputs()),
    "repr": repr,
    "usage_of": lambda job: usage_of(job.place, job),
    "passed_over": lambda job: passed_over(backend_of(job, default_connections()), job),
    "accelerator_now": lambda job: accelerator_now(backend_of(job, default_connections()), job),
    "attach": lambda _: attach(ID),
    "list_jobs": lambda _: list_jobs(),
    "summaries": lambda job: summaries(backend_of(job, default_connections())),
    "orphans": lambda job: orphans(backend_of(job, default_connections()), "default", 0.0, 0.0),
}
VERBS = (
    ("jobs", "list"),
    ("jobs", "status", ID),
    ("jobs", "logs", ID),
    ("jobs", "explain", ID),
    ("jobs", "outputs", ID),
    ("cost", ID),
)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Record]:
    made: list[Recorded] = []

    def make(state: str) -> Recorded:
        made.append(Recorded(tmp_path, monkeypatch, state))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("state", STATES)
def test_no_question_about_a_job_changes_anything(record: Record, state: str) -> None:
    recorded = record(state)
    handle = JobHandle.of(recorded.job())
    changed = {}
    for name, ask in QUESTIONS.items():
        before = len(recorded.refused)
        try:
            ask(handle)
        except KineticError as exc:
            changed[name] = [f"{type(exc).__name__}: {exc}"]
        if len(recorded.refused) > before:
            changed[name] = recorded.refused[before:]
    assert changed == {}


@pytest.mark.parametrize("state", STATES)
def test_no_observing_verb_changes_anything(record: Record, kinetic: Kinetic, state: str) -> None:
    recorded = record(state)
    recorded.job()
    changed = {}
    for words in VERBS:
        before = len(recorded.refused)
        done = kinetic(*words)
        if done.code or len(recorded.refused) > before:
            changed[words] = (done.code, done.err, recorded.refused[before:])
    assert changed == {}


@pytest.mark.parametrize("state", ["pending", "running", "never_pulled", "failed_input", "suspended"])
def test_no_question_about_a_batch_changes_anything(record: Record, kinetic: Kinetic, state: str) -> None:
    recorded = record(state)
    recorded.batch(fail_fast=True)
    handle = attach_batch(GROUP)
    asked = recorded.fake.faults.count("GET .*/jobs")
    handle.statuses()
    handle.status_counts()
    assert len(handle.jobs) == 2
    handle.failures()
    repr(handle)
    assert handle.submission_failures == {}
    assert handle.unavailable_children == {}
    for words in (
        ("batch", "list"),
        ("batch", "status", GROUP),
        ("jobs", "list"),
        ("cost", "--batch", GROUP),
    ):
        assert kinetic(*words).code == 0, words
    deadline = time.monotonic() + 3  # what it has attached to is looked at in the background
    while time.monotonic() < deadline and not recorded.refused:
        time.sleep(0.1)
    handle.close()
    assert recorded.fake.faults.count("GET .*/jobs") > asked
    assert recorded.refused == []
