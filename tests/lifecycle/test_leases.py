"""When an observer may let a silent node's pod go: only once its lease has certainly run out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kinetic_core._runner import wire
from kinetic_core.errors import ClusterError
from kinetic_core.lifecycle.leases import LeaseWatch
from kinetic_core.model.job import JobReference
from kinetic_core.testing import MemoryObjectStore

REFERENCE = JobReference(
    **dict.fromkeys(
        (
            *("backend", "project", "cluster_name", "zone", "namespace", "bucket_name", "k8s_name"),
            *("image_uri", "accelerator", "func_name", "display_name", "created_at"),
        ),
        "",
    ),
    job_id="job-1",
)


@dataclass
class Cluster:
    """What `LeaseWatch` asks of a backend."""

    store: MemoryObjectStore = field(default_factory=MemoryObjectStore)
    gone: list[tuple[str, int]] = field(default_factory=list)
    refusal: ClusterError | None = None

    def let_go(self, _namespace: str, job_id: str, attempt: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.gone.append((job_id, attempt))

    def renew(self, count: int, attempt: int = 0) -> None:
        name = wire.lease_object("job-1", attempt)
        self.store.delete(name)
        self.store.create(name, json.dumps({"seconds": 60, "renewed": count}).encode())


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(cluster: Any, clock: Clock) -> LeaseWatch:
    return LeaseWatch(cluster, clock)


def test_not_before_it_has_been_the_same_for_longer_than_it_lasts(
    watch: LeaseWatch, cluster: Cluster, clock: Clock
) -> None:
    cluster.renew(0)
    for clock.now in (1000.0, 1030.0, 1070.0):
        watch.look(REFERENCE, 0)
    assert cluster.gone == []
    clock.now = 1072.0
    watch.look(REFERENCE, 0)
    assert cluster.gone == [("job-1", 0)]


def test_every_renewal_begins_the_time_anew(watch: LeaseWatch, cluster: Cluster, clock: Clock) -> None:
    for count in range(10):
        cluster.renew(count)
        clock.now += 50
        watch.look(REFERENCE, 0)
    assert cluster.gone == []


def test_an_attempt_that_never_took_one_is_left_alone(
    watch: LeaseWatch, cluster: Cluster, clock: Clock
) -> None:
    cluster.renew(0, attempt=0)
    for clock.now in (1000.0, 2000.0, 3000.0):
        watch.look(REFERENCE, 1)
    assert cluster.gone == []


def test_a_role_that_may_not_is_told_what_it_lacks(
    watch: LeaseWatch, cluster: Cluster, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.refusal = ClusterError("forbidden", status=403)
    cluster.renew(0)
    watch.look(replace(REFERENCE), 0)
    clock.now += 100
    watch.look(REFERENCE, 0)
    assert "'delete' on pods" in caplog.text
