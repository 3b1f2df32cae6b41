"""Manifest of one call: its Kubernetes Job as plain data, from a pure function.

The local backend runs the same manifest. Field meanings: Kubernetes' batch/v1 reference; indexed Jobs
with per-index retries and pod failure policies need Kubernetes 1.33 or later.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kinetic_core._runner import wire
from kinetic_core.backends.kubernetes.bootstrap import BOOTSTRAP, StoredArchive
from kinetic_core.backends.kubernetes.names import (
    CONTAINER,
    FAILED_COUNT,
    FLEX_START,
    FUNCTION,
    GROUP_ID,
    HARDWARE,
    HOSTS_SERVICE,
    IDLE_SECONDS,
    IGNORED_COUNT,
    INSTANCE,
    JOB_ID,
    KEY_ID,
    LEADER_WORKER_SET,
    LEASE_SECONDS,
    ORIGIN,
    ORIGIN_ID,
    OUTCOME_KEY,
    PLAIN_JOB_ID,
    QUEUE,
    RESERVATION,
    REUSE,
    SLICE,
    SPEC_DIGEST,
    WORKER,
)
from kinetic_core.backends.kubernetes.slices import set_environment, slice_affinity, slice_environment
from kinetic_core.job import BucketMount, JobReference, JobSpec
from kinetic_core.settings import log_level

CACHE_DIR = "/kinetic-cache"
"""Mount path of the cache volume, if the job has one."""

_DRIVER = "gcsfuse.csi.storage.gke.io"
_SIDECAR = "gke-gcsfuse/volumes"
"""Annotation by which GKE puts the FUSE sidecar into a pod."""

Volume = tuple[dict[str, Any], dict[str, Any]]
"""Mount of a container, and the pod's volume of the same name."""


def data_volumes(spec: JobSpec) -> list[Volume]:
    """List an emptyDir per copied volume, a CSI volume per mounted bucket, and the claim of the cache."""
    mounted = {bucket.path for bucket in spec.buckets}
    copied = [path for path in spec.mounts if path not in mounted]
    volumes: list[Volume] = [
        ({"name": f"volume-{i}", "mountPath": path}, {"name": f"volume-{i}", "emptyDir": {}})
        for i, path in enumerate(copied)
    ]
    volumes += [_bucket(f"bucket-{i}", bucket) for i, bucket in enumerate(spec.buckets)]
    if spec.pod.cache_volume is not None:
        claim = {"claimName": spec.pod.cache_volume}
        volumes.append((
            {"name": "cache", "mountPath": CACHE_DIR},
            {"name": "cache", "persistentVolumeClaim": claim},
        ))  # fmt: skip
    return volumes


def pod_annotations(spec: JobSpec) -> dict[str, str]:
    """Return the annotations that a pod's mounts need."""
    return {_SIDECAR: "true"} if spec.buckets else {}


def _bucket(name: str, bucket: BucketMount) -> Volume:
    """Build the volume of a bucket; `implicit-dirs` because objects need no directory objects above them."""
    options = ["implicit-dirs", *([f"only-dir={bucket.folder}"] if bucket.folder else [])]
    csi = {
        "driver": _DRIVER,
        "readOnly": True,
        "volumeAttributes": {"bucketName": bucket.bucket, "mountOptions": ",".join(options)},
    }
    return {"name": name, "mountPath": bucket.path, "readOnly": True}, {"name": name, "csi": csi}


_QUEUED = "cloud.google.com/gke-queued"
_PUBLISH_SECONDS = 10
"""Seconds for the runner, after user code's grace is over, to store its evidence."""
UNCOLLECTED_SECONDS = 7 * 24 * 3600
"""Seconds for which a finished Job stays, to verify and collect its outcome."""

_SPACE = 1 << 30
"""Bytes of disk for files of user code, if no option says how many."""

WORK_DIR = "/kinetic"
"""A volume of the pod's own: workspace, data, home."""
_UNKNOWN_EXIT, _KILLED_EXIT = 255, 137
"""Exit code that containerd reports for an end it has not seen, and that of SIGKILL of all processes."""
_USER = 1000
"""User and group of user code: any image works with this id, since home and workspace are volumes."""


@dataclass(frozen=True)
class Surroundings:
    """Settings that a backend gives to every pod of a namespace."""

    service_account: str = "kinetic"
    environment: Mapping[str, str] = field(default_factory=dict)


def verbosity() -> dict[str, str]:
    """Return the variable with which a log keeps the runner's frames, if `KINETIC_LOG_LEVEL` is DEBUG."""
    return {"KINETIC_LOG_LEVEL": "DEBUG"} if log_level() <= logging.DEBUG else {}


@dataclass(frozen=True)
class Delivery:
    """What a container needs to know to run one job. `outcome_key` is 64 hex digits, `key_id` names the key.

    `origin` is for people who look at the Job, "" for none. `worker` is the id of the job on which this one
    is a call, "" for none; `idle` is for how many seconds this job, a worker, waits for calls, None if it is
    none.
    """

    runner: StoredArchive
    payload: bytes
    outcome_key: str
    surroundings: Surroundings = Surroundings()
    origin: str = ""
    key_id: str = ""
    worker: str = ""
    idle: float | None = None


def job_manifest(spec: JobSpec, reference: JobReference, delivery: Delivery) -> dict[str, Any]:
    """Build the batch/v1 Job: one pod per host of the accelerator, each host an index.

    For backend `pathways` the Job has no pods: its template is that of a LeaderWorkerSet, see `set_objects`.
    A call on a worker has none unless the worker cannot run it.
    """
    hosts = spec.accelerator.hosts
    labels, annotations = _metadata(spec, reference)
    own_labels, own_annotations = _own_metadata(spec, delivery)
    job: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": hosts,
        "parallelism": 0 if _is_set(spec) or delivery.worker else hosts,
        "backoffLimitPerIndex": spec.retries,
        "maxFailedIndexes": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _failure_rules(spec) if delivery.idle is None else _WORKER_RULES},
        "ttlSecondsAfterFinished": UNCOLLECTED_SECONDS,
        "template": {
            "metadata": {"labels": labels, "annotations": {**annotations, **pod_annotations(spec)}},
            "spec": _pod(spec, reference, delivery),
        },
    }
    if spec.pod.queue is not None and not _is_set(spec):
        job["suspend"] = True  # Kueue starts it
    if spec.timeout is not None:
        job["activeDeadlineSeconds"] = max(1, round(spec.timeout))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": reference.k8s_name,
            "namespace": reference.namespace,
            "labels": labels | own_labels,
            "annotations": annotations | own_annotations,
        },
        "spec": job,
    }


def _metadata(spec: JobSpec, reference: JobReference) -> tuple[dict[str, str], dict[str, str]]:
    """Return labels and annotations of both the Job and its pods."""
    labels = {**spec.pod.labels, "app": "kinetic", JOB_ID: reference.job_id, PLAIN_JOB_ID: reference.job_id}
    if spec.group_id is not None:
        labels[GROUP_ID] = spec.group_id
    if _is_slice(spec):
        labels[SLICE] = "true"
    annotations = {SPEC_DIGEST: reference.spec_digest, FUNCTION: reference.func_name}
    if spec.accelerator.others:
        annotations[HARDWARE] = spec.accelerator.describe()
    return labels, annotations


def _own_metadata(spec: JobSpec, delivery: Delivery) -> tuple[dict[str, str], dict[str, str]]:
    """Return labels and annotations that the Job has and its pods have not."""
    labels, annotations = dict[str, str](), dict[str, str]()
    if _is_set(spec):
        labels[LEADER_WORKER_SET] = "true"
    if spec.pod.queue is not None:  # Kueue must leave alone the Job of a set, which has no pods
        (annotations if _is_set(spec) else labels)[QUEUE] = spec.pod.queue
    if delivery.worker:
        labels[WORKER] = delivery.worker
    if origin_id := _origin_id(delivery.origin):
        labels[ORIGIN_ID] = origin_id
    if delivery.origin:
        annotations[ORIGIN] = delivery.origin
    return labels, annotations


def _origin_id(origin: str) -> str:
    """Return the `id` of an origin, if it is a valid label, else ""."""
    told = json.loads(origin or "{}")
    found = str(told.get("id", "")) if isinstance(told, dict) else ""
    return found if re.fullmatch("[0-9a-f]{1,63}", found) else ""


_WORKER_RULES = [
    {"action": "FailIndex", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
]
"""A worker that ends for any reason is not replaced: its calls go on in pods of their own."""


def _failure_rules(spec: JobSpec) -> list[dict[str, Any]]:
    """Return the rules by which a pod's end counts; an end without a rule counts against the index's retries.

    A container of a machine that died and came back has ended with 255 or 137, depending on what of the
    machine went on; so has a container that was killed for its memory, see the runner's memory.py. The hosts
    of a slice judge by themselves. Nobody watches each input of a batch in shared Jobs: there 137 counts, as
    it does on this machine.
    """
    ignored = [wire.EXIT_UNPUBLISHED, wire.EXIT_REGROUP, wire.EXIT_UNSURE, wire.EXIT_INTERRUPTED]
    ignored.append(_UNKNOWN_EXIT)
    shares_job = spec.group_id is not None and spec.group_index is None
    if spec.backend != "local" and spec.accelerator.hosts == 1 and not shares_job:
        ignored.append(_KILLED_EXIT)

    def exits(action: str, codes: list[int]) -> dict[str, Any]:
        return {
            "action": action,
            "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": sorted(codes)},
        }

    return [
        exits("FailIndex", [wire.EXIT_NEVER_RETRY, wire.EXIT_FENCED, wire.EXIT_NO_RUNNER]),
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        exits("Ignore", ignored),
    ]


def _pod(spec: JobSpec, reference: JobReference, delivery: Delivery) -> dict[str, Any]:
    accelerator = spec.accelerator
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "serviceAccountName": spec.pod.service_account or delivery.surroundings.service_account,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": round(spec.grace) + _PUBLISH_SECONDS,
        "securityContext": _security(spec),
        "containers": [
            {
                "name": CONTAINER,
                "image": reference.image_uri,
                "command": ["python3", "-u", "-c", BOOTSTRAP],
                "env": _environment(spec, reference, delivery),
                "resources": _resources(spec),
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    **spec.pod.security_context,
                },
                "volumeMounts": [
                    {"name": "work", "mountPath": WORK_DIR},
                    {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  the path frameworks expect
                    *(mount for mount, _ in data_volumes(spec)),
                ],
            }
        ],
        "volumes": [
            {"name": "work", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            *(volume for _, volume in data_volumes(spec)),
        ],
    }
    selector = {**accelerator.node_selector(), **spec.pod.node_selector}
    if spec.pod.reservation is not None:
        selector[RESERVATION] = spec.pod.reservation
    if spec.pod.flex_start:
        selector[FLEX_START] = "true"
    if selector:
        pod["nodeSelector"] = selector
    if tolerations := [*accelerator.tolerations(), *_flex_start(spec), *map(dict, spec.pod.tolerations)]:
        pod["tolerations"] = tolerations
    if spec.pod.priority_class is not None:
        pod["priorityClassName"] = spec.pod.priority_class
    if _is_slice(spec):
        pod["affinity"] = slice_affinity(reference.job_id)
        if not _is_set(spec):
            pod["subdomain"] = HOSTS_SERVICE
    return pod


def _is_set(spec: JobSpec) -> bool:
    """Return whether the pods are those of a LeaderWorkerSet."""
    return spec.backend == "pathways"


def _flex_start(spec: JobSpec) -> list[dict[str, Any]]:
    """Tolerate the taints of flex-start nodes; those of a pool with queued provisioning are for queued jobs.

    https://cloud.google.com/kubernetes-engine/docs/how-to/provisioningrequest
    """
    if not spec.pod.flex_start:
        return []
    keys = (FLEX_START, _QUEUED) if spec.pod.queue is not None else (FLEX_START,)
    return [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]


def _is_slice(spec: JobSpec) -> bool:
    """Return whether several hosts run the job together; the local backend runs every job as one process."""
    return spec.accelerator.hosts > 1 and spec.backend != "local"


def _security(spec: JobSpec) -> dict[str, Any]:
    seccomp = {"seccompProfile": {"type": "RuntimeDefault"}}
    if spec.pod.run_as_root:
        return {"runAsUser": 0, "runAsGroup": 0, **seccomp}
    user = {"runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER}
    return {"runAsNonRoot": True, **user, **seccomp}


def _resources(spec: JobSpec) -> dict[str, Any]:
    """Return devices, cores and memory; a CPU job requests a core, so that the autoscaler sees it."""
    requests: dict[str, Any] = {key: str(value) for key, value in spec.accelerator.device_resources().items()}
    limits = dict(requests)
    if spec.accelerator.kind == "cpu":
        requests["cpu"] = str(spec.accelerator.cpu_count or 1)
    if spec.memory is not None:
        requests["memory"] = limits["memory"] = str(spec.memory)
    elif spec.accelerator.kind == "cpu":
        requests["memory"] = "1Gi"
    if spec.pod.cpu is not None:
        requests["cpu"] = f"{spec.pod.cpu:g}"
    if spec.pod.disk is not None:
        requests["ephemeral-storage"] = limits["ephemeral-storage"] = str(spec.pod.disk)
    else:
        requests["ephemeral-storage"] = str(_SPACE + 2 * spec.shipped)  # packs, and what is in them
    return {"requests": requests, "limits": limits}


def _environment(spec: JobSpec, reference: JobReference, delivery: Delivery) -> list[dict[str, Any]]:
    """Return the variables of the pod's container."""
    values = _always(spec, reference, delivery) | _for_options(spec, reference, delivery)
    fields = {"KINETIC_POD_UID": "metadata.uid"}
    if delivery.idle is not None:
        fields["KINETIC_POD_NAME"] = "metadata.name"
    if _is_set(spec):
        hosts = set_environment(reference.k8s_name, spec.accelerator.hosts)
    else:
        hosts = slice_environment(reference.k8s_name, spec.accelerator.hosts) if _is_slice(spec) else []
        fields["KINETIC_FAILED_COUNT"] = f"metadata.annotations['{FAILED_COUNT}']"
        fields["KINETIC_IGNORED_COUNT"] = f"metadata.annotations['{IGNORED_COUNT}']"
    plain: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in values.items()]
    downward: list[dict[str, Any]] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]
    secrets = [
        {
            "name": name,
            "valueFrom": {"secretKeyRef": dict(zip(("name", "key"), place.split("/"), strict=True))},
        }
        for name, place in spec.pod.cluster_secrets.items()
    ]
    return plain + downward + hosts + secrets


def _always(spec: JobSpec, reference: JobReference, delivery: Delivery) -> dict[str, str]:
    """Return the variables that every pod has."""
    return {
        "KINETIC_PROTOCOL": str(wire.PROTOCOL),
        "KINETIC_STORE": reference.store_uri,
        "KINETIC_JOB_ID": reference.job_id,
        "JOB_ID": reference.job_id,
        "KINETIC_RUNNER_SHA256": delivery.runner.sha256,
        "KINETIC_RUNNER_BYTES": str(delivery.runner.size),
        "KINETIC_PAYLOAD_SHA256": wire.digest(delivery.payload),
        "KINETIC_PAYLOAD_BYTES": str(len(delivery.payload)),
        OUTCOME_KEY: delivery.outcome_key,
        KEY_ID: delivery.key_id,
        "KINETIC_RETRIES": str(spec.retries),
        "KINETIC_INFRASTRUCTURE_RETRIES": str(spec.infrastructure_retries),
        "KINETIC_WORK_DIR": WORK_DIR,
        "KINETIC_ACCELERATOR": str(spec.accelerator),
        "KINETIC_GRACE_SECONDS": f"{spec.grace:g}",
        "KINETIC_BACKEND": reference.backend,
        **delivery.surroundings.environment,
    }


def _for_options(spec: JobSpec, reference: JobReference, delivery: Delivery) -> dict[str, str]:
    """Return the variables that stand for options of the call."""
    values: dict[str, str] = {}
    if reference.store_uri.startswith("gs://"):
        values["GCS_BUCKET"] = reference.store_uri.removeprefix("gs://").partition("/")[0]
    if spec.pod.lease is not None:
        values[LEASE_SECONDS] = f"{spec.pod.lease:g}"
    if spec.debug_wait is not None:
        values["KINETIC_DEBUG_WAIT_TIMEOUT"] = f"{spec.debug_wait:g}"
    if spec.pod.hang_after is not None:
        values["KINETIC_HANG_SECONDS"] = f"{spec.pod.hang_after:g}"
    if (budget := spec.budget) is not None:
        hourly = budget.hourly[str(spec.accelerator)]
        values["KINETIC_BUDGET"] = f"{budget.amount!r} {hourly!r} {budget.currency}"
    if spec.pod.cache_volume is not None:
        values["KINETIC_CACHE_DIR"] = CACHE_DIR
    if delivery.idle is not None:
        values[IDLE_SECONDS] = f"{delivery.idle:g}"
        shared = {REUSE: spec.reuse, INSTANCE: spec.instance}
        values |= {name: value for name, value in shared.items() if value}
    if _is_set(spec):
        values["KINETIC_SET"] = reference.k8s_name
    if spec.timeout is not None and (delivery.worker or _is_set(spec)):  # their Job's deadline ends no pod
        values["KINETIC_TIMEOUT"] = f"{spec.timeout:g}"
    return values
