"""A job and its manifest, for tests of manifests."""

from __future__ import annotations

from typing import Any

from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.backends.kubernetes.bootstrap import StoredArchive
from kinetic_core.backends.kubernetes.manifest import Delivery, job_manifest
from kinetic_core.backends.kubernetes.set_objects import leader_worker_set
from kinetic_core.job import JobReference, JobSpec

DELIVERY = Delivery(StoredArchive("a" * 64, 1000), b"payload", "c" * 64)


def reference(**changes: Any) -> JobReference:
    values: dict[str, Any] = {
        "job_id": "job-0123456789abcdef",
        "backend": "gke",
        "project": "p",
        "cluster_name": "c",
        "zone": "z",
        "namespace": "default",
        "bucket_name": "b",
        "k8s_name": "kinetic-job-0123456789abcdef",
        "image_uri": "python:3.11",
        "accelerator": "cpu",
        "func_name": "f",
        "display_name": "d",
        "created_at": "2026-01-01T00:00:00Z",
        "store_uri": "gs://bucket",
        "spec_digest": "d" * 64,
    }
    return JobReference(**{**values, **changes})


def manifest(accelerator: str = "cpu", **options: Any) -> dict[str, Any]:
    spec = JobSpec("f", parse_accelerator(accelerator), "gke", **options)
    return job_manifest(spec, reference(accelerator=accelerator), DELIVERY)


def container(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]["containers"][0]
    return found


def set_of(accelerator: str = "tpu-v5p-8", **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Job and the LeaderWorkerSet of a call."""
    spec = JobSpec("f", parse_accelerator(accelerator), "pathways", **options)
    job = job_manifest(spec, reference(accelerator=accelerator, backend="pathways"), DELIVERY)
    return job, leader_worker_set(job, "uid")
