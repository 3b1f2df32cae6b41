"""One watch for everybody: each observer gets every change, and nobody's trouble is another's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core.backends.local.layout import Layout
from kinetic_core.errors import ClusterError, KineticError, StoreError, StoreRefused
from kinetic_core.job import JobObservation, JobReference
from kinetic_core.jobs.observe import watch
from kinetic_core.jobs.watch import JobWatch, Kind, watch_for
from kinetic_core.settings import read_settings
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("local_jobs")


@kinetic_core.run(accelerator="cpu")
def until_told(folder: str) -> None:
    import time

    while not Path(folder, "go").exists():
        time.sleep(0.01)


class Observer:
    """Remembers what it was told."""

    def __init__(self, handle: kinetic_core.JobHandle) -> None:
        self.seen: list[JobObservation] = []
        self.subscription = watch(handle.place, handle, self.seen.append)

    @property
    def ended(self) -> bool:
        return bool(self.seen) and self.seen[-1].is_terminal

    @property
    def states(self) -> list[JobStatus]:
        return list(dict.fromkeys(observation.status for observation in self.seen))


def watch_threads(besides: Collection[threading.Thread]) -> list[str]:
    """The names of the threads that watch, but for those there were before: of other tests' clients."""
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith("kinetic-watch") and thread not in besides
    ]


@pytest.mark.promise("gke: One list+watch a kind for every observer, sync and async")
@pytest.mark.promise("airflow: One hub per (cluster, namespace) per triggerer")
def test_many_observers_share_one_thread_which_ends_with_them(tmp_path: Path) -> None:
    handle = until_told.run_async(str(tmp_path))
    before = threading.enumerate()
    observers = [Observer(handle) for _ in range(50)]
    wait_for(lambda: all(observer.seen for observer in observers))
    assert watch_threads(before) == ["kinetic-watch-default"]
    (tmp_path / "go").touch()
    wait_for(lambda: all(observer.ended for observer in observers))
    for observer in observers:
        assert observer.states[-1] is JobStatus.SUCCEEDED
        observer.subscription.close()
    wait_for(lambda: not watch_threads(before))
    handle.result()


def test_an_observation_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    handle = until_told.run_async(str(tmp_path))
    observer = Observer(handle)
    wait_for(lambda: observer.ended)
    assert all(first != second for first, second in zip(observer.seen, observer.seen[1:], strict=False))
    observer.subscription.close()
    handle.result()


@pytest.mark.promise("gke: A failed read never fails or restarts a job")
def test_a_job_that_cannot_be_looked_at_keeps_nobody_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "go").touch()
    broken, fine = (until_told.run_async(str(tmp_path)) for _ in range(2))
    broken.result(cleanup=False)
    record = Path(Layout(str(read_settings().local_store)).record("default", broken.job_id))
    kept = record.read_text()
    record.write_text("{")
    with caplog.at_level(logging.WARNING):
        troubled, healthy = Observer(broken), Observer(fine)
        wait_for(lambda: healthy.ended)
    assert broken.job_id in caplog.text
    assert not troubled.seen
    record.write_text(kept)
    wait_for(lambda: troubled.ended)
    for observer in (troubled, healthy):
        observer.subscription.close()
    broken.cleanup()
    fine.result()


@dataclass
class Asked:
    """A backend that remembers which single job it was asked for at each look."""

    whole: Any
    jobs: list[str | None] = field(default_factory=list)

    def changes(
        self, namespace: str, since: object | None, only: JobReference | None = None
    ) -> tuple[object, set[str] | None]:
        self.jobs.append(only.job_id if only else None)
        found: tuple[object, set[str] | None] = self.whole.changes(namespace, since, only)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)


def test_the_only_job_that_is_observed_is_named(tmp_path: Path) -> None:
    """Its cluster then lists no other. An input of a batch is never the only one for long."""
    (tmp_path / "go").touch()
    one, other = (until_told.run_async(str(tmp_path)) for _ in range(2))
    asked: Any = Asked(one.place)
    jobs = JobWatch(asked, one.namespace)
    subscriptions = [jobs.subscribe(one, lambda _: None) for _ in range(2)]
    wait_for(lambda: asked.jobs[-2:] == [one.job_id, one.job_id])
    assert set(asked.jobs) == {one.job_id}
    subscriptions.append(jobs.subscribe(other, lambda _: None))
    wait_for(lambda: asked.jobs[-1] is None)
    for each in subscriptions:
        each.close()
    wait_for(lambda: not jobs.watched())
    with jobs.held():
        wait_for(lambda: asked.jobs[-1] is None)
    alone = JobWatch(asked, one.namespace)
    asked.jobs.clear()
    subscription = alone.subscribe(replace(one, group_id="grp-a"), lambda _: None)
    wait_for(lambda: asked.jobs)
    assert set(asked.jobs) == {None}
    subscription.close()
    for handle in (one, other):
        handle.result()


class Clock:
    """A clock that goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.mark.parametrize("refusal", [StoreRefused("not permitted"), ClusterError("not permitted", 403)])
def test_whoever_asked_is_told_of_what_goes_on_being_refused(refusal: Exception, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    handle = until_told.run_async(str(tmp_path))
    handle.result(cleanup=False)
    seen: list[JobObservation | KineticError] = []
    refusals: list[Exception] = []

    def refusing(*_: object) -> JobObservation:
        if seen:
            return JobObservation(JobStatus.RUNNING)
        refusals.append(refusal)
        raise refusal

    jobs = JobWatch(handle.place, handle.namespace, Clock())
    subscription = jobs.subscribe(handle, seen.append, Kind(refusing, refusing), refused=seen.append)
    wait_for(lambda: len(seen) == 2)
    subscription.close()
    assert seen == [refusal, JobObservation(JobStatus.RUNNING)]
    assert len(refusals) > 1  # one refusal may be over with the next request
    handle.cleanup()


class Unseen:
    """A backend whose changes nobody may see, as where an account may not list Jobs."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole

    def changes(self, *_: object) -> Any:
        raise ClusterError("jobs is forbidden", 403)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


def test_whoever_waits_is_told_that_no_change_may_be_seen(tmp_path: Path) -> None:
    handle = until_told.run_async(str(tmp_path))
    unseen: Any = Unseen(handle.place)
    jobs = JobWatch(unseen, handle.namespace, Clock())
    told: list[object] = []
    subscription = jobs.subscribe(handle, told.append, refused=told.append)

    def looked_again() -> list[object]:
        jobs.observe_now(handle.job_id)  # sooner than in two seconds
        return told

    wait_for(looked_again)
    subscription.close()
    assert isinstance(told[0], ClusterError)
    (tmp_path / "go").touch()
    handle.result()


def test_an_outage_that_many_jobs_meet_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handle = until_told.run_async(str(tmp_path))
    asked: list[str] = []

    def away(_: object, reference: JobReference) -> JobObservation:
        asked.append(reference.job_id)
        raise StoreError("no answer")

    jobs = JobWatch(handle.place, handle.namespace)
    each = [replace(handle, job_id=f"job-{number}") for number in range(50)]
    subscriptions = [jobs.subscribe(one, lambda _: None, Kind(away, away)) for one in each]
    wait_for(lambda: len(set(asked)) == 50)
    for subscription in subscriptions:
        subscription.close()
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    (tmp_path / "go").touch()
    handle.result()


def test_an_observer_that_fails_blinds_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "go").touch()
    handle = until_told.run_async(str(tmp_path))

    def fail(_: JobObservation) -> None:
        raise ValueError("a mistake of the observer")

    first = watch(handle.place, handle, fail)
    second = Observer(handle)
    wait_for(lambda: second.ended)
    assert "a mistake of the observer" in caplog.text
    first.close()
    second.subscription.close()
    handle.result()


def test_a_closed_subscription_hears_nothing_more(tmp_path: Path) -> None:
    handle = until_told.run_async(str(tmp_path))
    closed, open_ = Observer(handle), Observer(handle)
    wait_for(lambda: closed.seen and open_.seen)
    closed.subscription.close()
    heard = len(closed.seen)
    (tmp_path / "go").touch()
    wait_for(lambda: open_.ended)
    assert len(closed.seen) == heard
    open_.subscription.close()
    assert watch_for(handle.place, "default") is closed.subscription.watch
    handle.result()
