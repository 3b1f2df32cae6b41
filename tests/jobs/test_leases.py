"""When an observer may let a silent node's pod go: only once its lease has certainly run out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kinetic_core._runner import object_names
from kinetic_core._runner.notes import encode_note
from kinetic_core.backends.kubernetes.names import FAILED_COUNT
from kinetic_core.errors import ClusterError
from kinetic_core.job import JobReference
from kinetic_core.jobs.watch import LeaseWatch
from kinetic_core.testing import MemoryObjectStore

KEY = bytes(range(32))
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
    lasts: str = "60"

    def let_go(self, _namespace: str, job_id: str, attempt: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.gone.append((job_id, attempt))

    def get(self, _namespace: str, _job_id: str) -> Any:
        told = {"KINETIC_OUTCOME_KEY": KEY.hex(), "KINETIC_LEASE_SECONDS": self.lasts}
        env = [{"name": name, "value": value} for name, value in told.items()]
        pods = [
            {"metadata": {"uid": f"uid-{count}", "annotations": {FAILED_COUNT: str(count)}}}
            for count in range(2)
        ]
        return {"spec": {"template": {"spec": {"containers": [{"env": env}]}}}}, pods

    def renew(self, count: int, attempt: int = 0, uid: str = "", key: bytes = KEY) -> None:
        name = object_names.lease("job-1", attempt)
        self.write(encode_note(key, name, {"renewed": count, "pod": uid or f"uid-{attempt}"}), attempt)

    def write(self, content: bytes, attempt: int = 0) -> None:
        name = object_names.lease("job-1", attempt)
        self.store.delete(name)
        self.store.create_if_absent(name, content)


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


def test_a_lease_is_not_over_before_its_time_unchanged(
    watch: LeaseWatch, cluster: Cluster, clock: Clock
) -> None:
    cluster.renew(0)
    for clock.now in (1000.0, 1030.0, 1070.0):
        watch.reconcile(REFERENCE, 0)
    assert cluster.gone == []
    clock.now = 1072.0
    watch.reconcile(REFERENCE, 0)
    assert cluster.gone == [("job-1", 0)]


def test_every_renewal_begins_the_time_anew(watch: LeaseWatch, cluster: Cluster, clock: Clock) -> None:
    for count in range(10):
        cluster.renew(count)
        clock.now += 50
        watch.reconcile(REFERENCE, 0)
    assert cluster.gone == []


def test_an_attempt_that_never_took_one_is_left_alone(
    watch: LeaseWatch, cluster: Cluster, clock: Clock
) -> None:
    cluster.renew(0, attempt=0)
    for clock.now in (1000.0, 2000.0, 3000.0):
        watch.reconcile(REFERENCE, 1)
    assert cluster.gone == []


@pytest.mark.attack
def test_a_writer_cannot_hide_that_a_lease_is_renewed(
    watch: LeaseWatch, cluster: Cluster, clock: Clock
) -> None:
    """Who puts an old content back at every turn renews it."""
    cluster.renew(0)
    old = cluster.store.read(object_names.lease("job-1", 0))
    for count in range(1, 10):
        cluster.renew(count)
        cluster.write(old)
        clock.now += 50
        watch.reconcile(REFERENCE, 0)
    assert cluster.gone == []


@pytest.mark.attack
def test_a_planted_lease_replaces_no_pod(watch: LeaseWatch, cluster: Cluster, clock: Clock) -> None:
    """Of an attempt that has taken none, and so may still begin: unsigned, and signed by another pod."""
    name = object_names.lease("job-1", 0)
    for plant in (
        lambda: cluster.write(b'{"seconds": 0.001, "renewed": 0}'),
        lambda: cluster.renew(0, key=b"another"),
        lambda: cluster.renew(0, uid="uid-of-an-earlier-pod"),
        lambda: cluster.write(encode_note(KEY, object_names.lease("job-1", 1), {"pod": "uid-0"})),
    ):
        plant()
        for _ in range(3):
            clock.now += 100
            watch.reconcile(REFERENCE, 0)
    assert cluster.gone == []
    assert cluster.store.find(name) is not None


@pytest.mark.attack
def test_how_long_a_lease_lasts_the_job_says(watch: LeaseWatch, cluster: Cluster, clock: Clock) -> None:
    name = object_names.lease("job-1", 0)
    cluster.write(encode_note(KEY, name, {"seconds": 1e-9, "renewed": 0, "pod": "uid-0"}))
    cluster.lasts = "600"
    for clock.now in (1000.0, 1300.0, 1660.0):
        watch.reconcile(REFERENCE, 0)
    assert cluster.gone == []
    cluster.lasts = ""
    clock.now = 9000.0
    watch.reconcile(REFERENCE, 0)
    assert cluster.gone == []


def test_a_role_that_may_not_is_told_what_it_lacks(
    watch: LeaseWatch, cluster: Cluster, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.refusal = ClusterError("forbidden", status=403)
    cluster.renew(0)
    watch.reconcile(replace(REFERENCE), 0)
    clock.now += 100
    watch.reconcile(REFERENCE, 0)
    assert "'delete' on pods" in caplog.text
