"""Jobs whose pods do not end by themselves: the store knows when they have, and who looks ends the pods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.kubernetes.names import JOB_ID, LEADER_WORKER_SET
from kinetic_core.errors import ClusterError
from kinetic_core.job import JobReference, JobStatus
from kinetic_core.jobs.cancel import index_object
from kinetic_core.jobs.garbage_collection import orphans
from kinetic_core.jobs.listing import index_metadata, summaries
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.testing import MemoryObjectStore
from tests.kubernetes.manifests import reference

JOB = reference(backend="pathways", accelerator="tpu-v5p-8")
RUNNING = {"metadata": {"name": "pod"}, "status": {"phase": "Running"}}


SECRET, KEY_ID = bytes(32), f"{JOB.job_id}:{JOB.spec_digest}:0"
KEY = wire.signing_key(SECRET, KEY_ID)


def job(*conditions: dict[str, Any]) -> dict[str, Any]:
    labels = {JOB_ID: JOB.job_id, LEADER_WORKER_SET: "true"}
    env = [{"name": "KINETIC_OUTCOME_KEY", "value": KEY.hex()}]
    template = {"spec": {"containers": [{"env": env}]}}
    return {
        "metadata": {"name": JOB.k8s_name, "labels": labels},
        "spec": {"template": template},
        "status": {"conditions": list(conditions)},
    }


@dataclass
class Cluster:
    """What looking at jobs asks of a backend."""

    found: tuple[dict[str, Any], Sequence[dict[str, Any]]]
    store: MemoryObjectStore = field(default_factory=lambda: MemoryObjectStore(JOB.store_uri))
    released: list[bool] = field(default_factory=list)
    refusal: ClusterError | None = None
    name: str = "gke"
    cluster: None = None
    parts: None = None

    def get(self, _namespace: str, _job_id: str) -> tuple[Any, Any]:
        return self.found

    def all(self, _namespace: str, *, fresh: bool = True) -> dict[str, tuple[Any, Any]]:
        return {JOB.job_id: self.found}

    def states(
        self, namespace: str, _job_ids: object, *, and_alive: bool = False
    ) -> dict[str, tuple[Any, Any]]:
        return self.all(namespace)

    def log(self, *_where: object) -> None:
        return None

    def release(self, _namespace: str, _job_id: str, succeeded: bool) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.released.append(succeeded)

    def commit(self, state: str = "succeeded", key: bytes = KEY) -> None:
        header: dict[str, object] = {"protocol": wire.PROTOCOL, "state": state, "codec": "none"}
        frame = wire.encode_frame({**header, "job_id": JOB.job_id, "key_id": KEY_ID}, {}, key)
        sealed = wire.sealed_state(JOB.job_id, state, KEY_ID, key)
        self.store.create_if_absent(object_names.result(JOB.job_id), frame, {wire.STATE: sealed})

    def signing_secret(self, _namespace: str) -> bytes:
        return SECRET

    def submit(self) -> None:
        self.store.create_if_absent(object_names.handle(JOB.job_id), json.dumps(JOB.to_dict()).encode())
        self.store.create_if_absent(index_object(JOB), b"", index_metadata(JOB))

    def reconcile(self) -> JobStatus:
        backend: Any = self
        return reconcile(backend, JobReference.from_dict(JOB.to_dict())).status


def test_before_the_end_nothing_is_given_back() -> None:
    cluster = Cluster((job(), [RUNNING]))
    assert cluster.reconcile() is JobStatus.PENDING
    assert cluster.released == []


@pytest.mark.parametrize(
    ("state", "status"), [("succeeded", JobStatus.SUCCEEDED), ("failed", JobStatus.FAILED)]
)
def test_what_is_committed_is_the_end_although_the_pods_run(state: str, status: JobStatus) -> None:
    cluster = Cluster((job(), [RUNNING]))
    cluster.commit(state)
    assert cluster.reconcile() is status
    assert cluster.released == [state == "succeeded"]


def test_an_outcome_that_somebody_else_wrote_is_no_success() -> None:
    cluster = Cluster((job(), [RUNNING]))
    cluster.commit(key=b"0" * 32)
    assert cluster.reconcile() is JobStatus.PENDING
    assert cluster.released == []


def test_a_job_that_has_given_all_back_is_left_alone() -> None:
    cluster = Cluster((job({"type": "Complete", "status": "True"}), []))
    assert cluster.reconcile() is JobStatus.SUCCEEDED
    assert cluster.released == []


def test_past_its_deadline_it_is_settled_and_its_pods_go() -> None:
    cluster = Cluster((job({"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}), [RUNNING]))
    assert cluster.reconcile() is JobStatus.FAILED
    assert cluster.released == [False]
    assert cluster.store.find(object_names.result(JOB.job_id)) is not None


def test_who_may_not_give_it_back_is_told_the_end_all_the_same() -> None:
    cluster = Cluster((job(), [RUNNING]), refusal=ClusterError("forbidden", 403))
    cluster.commit()
    assert cluster.reconcile() is JobStatus.SUCCEEDED


def test_lists_and_the_reaper_see_that_it_has_ended() -> None:
    cluster = Cluster((job(), [RUNNING]))
    cluster.submit()
    cluster.commit()
    backend: Any = cluster
    (summary,) = summaries(backend, JOB.namespace)
    assert summary.status is JobStatus.SUCCEEDED
    assert "its pods are left" in {
        orphan.why.partition(", and ")[2] for orphan in orphans(backend, JOB.namespace)
    }
