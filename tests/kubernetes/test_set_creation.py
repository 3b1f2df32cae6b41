"""A slice's Job and its LeaderWorkerSet come both or not at all, once, whatever becomes of the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.backends.base import backend_name
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.job_objects import create_job
from kinetic_core.backends.kubernetes.leader_worker_sets import LeaderWorkerSets, check_set, may_use_sets
from kinetic_core.backends.kubernetes.verdict import observe
from kinetic_core.connections import Connections
from kinetic_core.errors import (
    BackendUnavailable,
    ClusterError,
    ClusterUnreachable,
    ConfigurationError,
    JobConflict,
)
from kinetic_core.job import JobSpec
from kinetic_core.settings import Settings, read_settings
from kinetic_core.testing import FakeCluster, MemoryObjectStore
from tests.kubernetes.manifests import set_of

SETS = "leaderworkersets"


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        yield cluster


@pytest.fixture
def api(fake: FakeCluster, tmp_path: Path) -> ClusterApi:
    return ClusterApi(Target(str(fake.write_kubeconfig(tmp_path / "kubeconfig"))), patience=5.0)


def there(fake: FakeCluster, kind: str) -> list[dict[str, Any]]:
    return list(fake.objects.list(kind, "default")[1])


def test_the_set_belongs_to_the_job_and_a_second_call_finds_both(fake: FakeCluster, api: ClusterApi) -> None:
    manifest, _ = set_of()
    assert create_job(api, manifest)
    assert not create_job(api, manifest)
    (job,), (made,) = there(fake, "Job"), there(fake, "LeaderWorkerSet")
    assert made["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert there(fake, "Pod") == []


def test_the_next_submitter_makes_the_set_of_a_dead_one(fake: FakeCluster, api: ClusterApi) -> None:
    manifest, _ = set_of()
    api.create("Job", "default", manifest)
    assert not create_job(api, manifest)
    assert len(there(fake, "LeaderWorkerSet")) == 1


@pytest.mark.promise("batches: … chosen automatically", "`may_use_sets` says no")
def test_a_cluster_without_sets_is_refused_at_once(fake: FakeCluster, tmp_path: Path) -> None:
    target = Target(str(fake.write_kubeconfig(tmp_path / "other")))
    client = Connections(Settings())
    with pytest.raises(BackendUnavailable, match="backend='gke'"):
        check_set(target, client, JobSpec("f", parse_accelerator("tpu-v5p-8"), "pathways"))
    assert not may_use_sets(target, client, "default")
    assert [request.line.split()[0] for request in fake.faults.requests] == ["GET"]


@pytest.mark.promise('batches: `backend="pathways"` and automatic: LeaderWorkerSet')
def test_a_slice_is_a_set_unless_a_job_is_asked_for(fake: FakeCluster, tmp_path: Path) -> None:
    group = b'{"versions": [{"version": "v1"}]}'
    fake.faults.answer("GET /apis/leaderworkerset.x-k8s.io$", 200, body=group)
    fake.faults.answer("POST .*/selfsubjectaccessreviews", 201, body=b'{"status": {"allowed": true}}')
    kubeconfig = str(fake.write_kubeconfig(tmp_path / "other"))
    client = Connections(replace(read_settings(), kubeconfig=kubeconfig, backend="gke"))
    assert [backend_name(None, 2, client) for _ in range(2)] == ["pathways"] * 2
    assert backend_name("gke", 2, client) == "gke"
    assert backend_name(None, 1, client) == "gke"
    assert fake.faults.unmet == ()


@pytest.mark.parametrize("plural", ["jobs", SETS])
def test_a_lost_answer_is_read_back(fake: FakeCluster, api: ClusterApi, plural: str) -> None:
    fake.faults.lose_reply(f"POST .*/{plural}")
    create_job(api, set_of()[0])
    assert (len(there(fake, "Job")), len(there(fake, "LeaderWorkerSet"))) == (1, 1)
    assert fake.faults.unmet == ()


def test_a_creation_without_an_answer_is_looked_for(fake: FakeCluster, api: ClusterApi) -> None:
    body = {"metadata": {"name": "one"}}
    fake.faults.lose_reply("POST .*/secrets")
    found, is_new = api.create_or_read("Secret", "default", body)
    assert (found["metadata"]["name"], is_new) == ("one", False)
    fake.faults.drop("POST .*/secrets")
    with pytest.raises(ClusterUnreachable):
        api.create_or_read("Secret", "default", {"metadata": {"name": "two"}})


def test_who_may_not_make_sets_leaves_no_job(fake: FakeCluster, api: ClusterApi) -> None:
    fake.faults.answer(f"POST .*/{SETS}", 403, body=b'{"message": "forbidden"}')
    with pytest.raises(ConfigurationError, match="may not create leaderworkersets"):
        create_job(api, set_of()[0])
    assert there(fake, "Job") == []


class Overtaken(ClusterApi):
    """A submitter that may make no sets, and that another one overtakes between the Job and its set."""

    other: ClusterApi

    def create_or_read(
        self, kind: str, namespace: str, manifest: Mapping[str, Any]
    ) -> tuple[dict[str, Any], bool]:
        if kind != "LeaderWorkerSet":
            return super().create_or_read(kind, namespace, manifest)
        assert not create_job(self.other, set_of()[0])
        raise ClusterError("forbidden", 403)


def test_a_job_that_another_submitter_uses_is_left(
    fake: FakeCluster, api: ClusterApi, tmp_path: Path
) -> None:
    overtaken = Overtaken(Target(str(tmp_path / "kubeconfig")), patience=5.0)
    overtaken.other = api
    with pytest.raises(ConfigurationError, match="may not create leaderworkersets"):
        create_job(overtaken, set_of()[0])
    assert (len(there(fake, "Job")), len(there(fake, "LeaderWorkerSet"))) == (1, 1)


def test_another_calls_set_of_the_name_is_left_alone(fake: FakeCluster, api: ClusterApi) -> None:
    _, other = set_of()
    other["metadata"]["annotations"] = dict.fromkeys(other["metadata"]["annotations"], "another")
    api.create("LeaderWorkerSet", "default", other)
    with pytest.raises(JobConflict, match="different call"):
        create_job(api, set_of()[0])
    assert (len(there(fake, "Job")), len(there(fake, "LeaderWorkerSet"))) == (0, 1)


def test_no_set_is_made_for_a_job_that_has_ended(fake: FakeCluster, api: ClusterApi) -> None:
    manifest, _ = set_of()
    api.create("Job", "default", manifest)
    ended = {"conditions": [{"type": "Failed", "status": "True"}]}
    fake.objects.change("Job", "default", manifest["metadata"]["name"], lambda job: job.update(status=ended))
    assert not create_job(api, manifest)
    assert there(fake, "LeaderWorkerSet") == []


def test_a_set_deleted_by_hand_ends_its_job(fake: FakeCluster, api: ClusterApi) -> None:
    manifest, _ = set_of()
    name = manifest["metadata"]["name"]
    create_job(api, manifest)
    sets = LeaderWorkerSets(api, MemoryObjectStore())
    api.delete("LeaderWorkerSet", "default", name)
    (job,) = there(fake, "Job")
    assert not observe(*sets.view(job, [])).is_terminal
    fake.objects.change(
        "Job", "default", name, lambda job: job["metadata"].update(creationTimestamp="2026-01-01T00:00:00Z")
    )
    (job,) = there(fake, "Job")
    ended = {"metadata": {"name": "pod", "uid": "1", "labels": {}}, "status": {"phase": "Failed"}}
    assert observe(*sets.view(job, [ended])).reason == "SetDeleted"
    assert not observe(*sets.view(job, [{**ended, "status": {"phase": "Running"}}])).is_terminal
    create_job(api, manifest)
    assert not observe(*sets.view(job, [])).is_terminal
