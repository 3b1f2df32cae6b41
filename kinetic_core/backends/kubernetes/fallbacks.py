"""Jobs with several accelerators: one Kubernetes Job at a time, which carries those that may follow it.

The later Jobs are kept in the cluster, where only accounts that may create Jobs can write: an observer that
moves a job on creates the Job it finds there (ADR 0033).
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kinetic_core.backends.kubernetes.manifest import Delivery, job_manifest
from kinetic_core.backends.kubernetes.names import (
    CAPACITY_TIMEOUT,
    CHOICE,
    CHOICE_SUFFIX,
    CONTAINER,
    LATER_CHOICES,
)
from kinetic_core.backends.kubernetes.set_objects import runs_in_set
from kinetic_core.job import JobReference, JobSpec

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Choice:
    """Number of the accelerator a job waits for or runs on. `later` are the Jobs for later accelerators."""

    number: int
    accelerator: str
    capacity_timeout: float
    later: tuple[dict[str, Any], ...]


def every_manifest(spec: JobSpec, reference: JobReference, delivery: Delivery) -> list[dict[str, Any]]:
    """Build the Job of a job, or one for each of its accelerators."""
    if not spec.fallbacks:
        return [job_manifest(spec, reference, delivery)]
    return [_manifest(spec, reference, delivery, each) for each in range(len(spec.fallbacks) + 1)]


def first_of(every: Sequence[dict[str, Any]], number: int = 0) -> dict[str, Any]:
    """Return the Job to create: for the accelerator, or for fallback `number` if that has been reached."""
    return every[0] if len(every) == 1 else carrying(every[number], every[number + 1 :])


def carrying(manifest: Object, later: Sequence[Object]) -> dict[str, Any]:
    """Return the Job with its successors in an annotation; as they are alike, they compress well."""
    packed = base64.b64encode(zlib.compress(json.dumps(list(later)).encode(), 9)).decode()
    about = manifest["metadata"]
    annotations = {**about["annotations"], LATER_CHOICES: packed}
    return {**manifest, "metadata": {**about, "annotations": annotations}}


def choice_of(job: Object) -> Choice | None:
    """Return the choice that a Job carries; None for the Job of a job with one accelerator."""
    about = job["metadata"]
    annotations = about.get("annotations") or {}
    if LATER_CHOICES not in annotations:
        return None
    later = json.loads(zlib.decompress(base64.b64decode(annotations[LATER_CHOICES])))
    return Choice(
        choice_number(job),
        accelerator_of(job),
        float(annotations[CAPACITY_TIMEOUT]),
        tuple(later),
    )


def choice_number(job: Object) -> int:
    """Return the number of the accelerator a Job is for; 0 where there is one."""
    return int((job["metadata"].get("labels") or {}).get(CHOICE) or 0)


def accelerator_of(job: Object) -> str:
    """Return the name of the accelerator that a Job's pods are for."""
    containers = job["spec"]["template"]["spec"]["containers"]
    environment = next(each["env"] for each in containers if each["name"] == CONTAINER)
    return next(str(each["value"]) for each in environment if each["name"] == "KINETIC_ACCELERATOR")


def current(
    jobs: Sequence[dict[str, Any]], pods: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """Return the one of a job's Jobs that counts, with its pods; None if there is none.

    A job has two Jobs only while it moves to another accelerator.
    """
    if not jobs:
        return None
    job = max(jobs, key=choice_number)
    return job, [pod for pod in pods if _is_of(pod, job)]


def _is_of(pod: Object, job: Object) -> bool:
    """Return whether the pod is this Job's, and not of an earlier Job of the same name: pods outlive Jobs.

    Pods of a LeaderWorkerSet do not name the Job; they are younger than it.
    """
    facts, about = pod["metadata"], job["metadata"]
    if runs_in_set(job):
        return str(facts.get("creationTimestamp") or "") >= str(about.get("creationTimestamp") or "")
    return any(owner["uid"] == about["uid"] for owner in facts.get("ownerReferences") or ())


def _manifest(spec: JobSpec, reference: JobReference, delivery: Delivery, number: int) -> dict[str, Any]:
    if number:
        fallback = spec.fallbacks[number - 1]
        spec = replace(spec, accelerator=fallback.accelerator)
        name = reference.k8s_name + CHOICE_SUFFIX.format(number)
        reference = replace(reference, k8s_name=name, image_uri=fallback.image_uri)
    manifest = job_manifest(spec, reference, delivery)
    about = manifest["metadata"]
    about["labels"] = {**about["labels"], CHOICE: str(number)}
    about["annotations"] = {**about["annotations"], CAPACITY_TIMEOUT: f"{spec.capacity_timeout:g}"}
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [*container["env"], {"name": "KINETIC_CHOICE", "value": str(number)}]
    return manifest
