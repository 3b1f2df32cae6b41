"""The Kubernetes Job of one call, as plain data from a pure function.

The local backend runs the same manifest. Field meanings: Kubernetes' batch/v1 reference; indexed Jobs
with per-index retries and pod failure policies need Kubernetes 1.33 or later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kinetic_core._runner import wire
from kinetic_core.cluster.bootstrap import BOOTSTRAP
from kinetic_core.cluster.data_volumes import CACHE_DIR, data_volumes, pod_annotations
from kinetic_core.cluster.names import (
    CONTAINER,
    FAILED_COUNT,
    FLEX_START,
    FUNCTION,
    GROUP_ID,
    HOSTS_SERVICE,
    IGNORED_COUNT,
    JOB_ID,
    LEADER_WORKER_SET,
    ORIGIN,
    OUTCOME_KEY,
    QUEUE,
    RESERVATION,
    SLICE,
    SPEC_DIGEST,
)
from kinetic_core.cluster.slices import set_environment, slice_affinity, slice_environment
from kinetic_core.model.job import JobReference, JobSpec

_QUEUED = "cloud.google.com/gke-queued"
_PUBLISH_SECONDS = 10
"""What the runner has, after user code's grace is over, to store its evidence."""
UNCOLLECTED_SECONDS = 7 * 24 * 3600
"""How long a finished Job stays for somebody to verify and collect its outcome."""

_SPACE = 1 << 30
"""Bytes of disk for what user code writes, if nothing is said about it."""

WORK_DIR = "/kinetic"
"""A volume of the pod's own: workspace, data, home."""
_UNKNOWN_EXIT, _KILLED_EXIT = 255, 137
"""What containerd says of a container whose end it has not seen; what SIGKILL of everything looks like."""
_USER = 1000
"""The user and group of user code: any image works with it, since home and workspace are volumes."""


@dataclass(frozen=True)
class Surroundings:
    """What a backend gives to every pod of a namespace."""

    service_account: str = "kinetic"
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivery:
    """What a container needs to know to run one job. `outcome_key` is 64 hex digits.

    `origin` is for those who look at the Job, "" if there is nothing to say.
    """

    runner_sha256: str
    payload_sha256: str
    outcome_key: str
    surroundings: Surroundings = Surroundings()
    origin: str = ""


def job_manifest(spec: JobSpec, reference: JobReference, delivery: Delivery) -> dict[str, Any]:
    """The batch/v1 Job: one pod per host of the accelerator, each host an index.

    For backend `pathways` it has none: its template is that of the pods of a LeaderWorkerSet, see
    `cluster.pod_sets`.
    """
    hosts = spec.accelerator.hosts
    labels = {**spec.pod.labels, "app": "kinetic", JOB_ID: reference.job_id}
    if spec.group_id is not None:
        labels[GROUP_ID] = spec.group_id
    if _is_slice(spec):
        labels[SLICE] = "true"
    annotations = {SPEC_DIGEST: reference.spec_digest, FUNCTION: reference.func_name}
    job: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": hosts,
        "parallelism": 0 if _is_set(spec) else hosts,
        "backoffLimitPerIndex": spec.retries,
        "maxFailedIndexes": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _failure_rules(spec)},
        "ttlSecondsAfterFinished": UNCOLLECTED_SECONDS,
        "template": {
            "metadata": {"labels": labels, "annotations": {**annotations, **pod_annotations(spec)}},
            "spec": _pod(spec, reference, delivery),
        },
    }
    if _is_set(spec):
        labels = {**labels, LEADER_WORKER_SET: "true"}
        annotations |= {} if spec.pod.queue is None else {QUEUE: spec.pod.queue}
    elif spec.pod.queue is not None:
        labels = {**labels, QUEUE: spec.pod.queue}
        job["suspend"] = True  # Kueue starts it
    if spec.timeout is not None:
        job["activeDeadlineSeconds"] = max(1, round(spec.timeout))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": reference.k8s_name,
            "namespace": reference.namespace,
            "labels": labels,
            "annotations": {**annotations, **({ORIGIN: delivery.origin} if delivery.origin else {})},
        },
        "spec": job,
    }


def _failure_rules(spec: JobSpec) -> list[dict[str, Any]]:
    """Whose budget a pod's end spends; what no rule matches counts against the index's retries.

    A container of a machine that died and came back has ended with 255 or 137, depending on what of the
    machine went on. One that was killed for its memory has, too: see the runner's exhaustion.py. The hosts
    of a slice judge by themselves, and what becomes of each input of a batch in shared Jobs nobody watches:
    there 137 counts, as it does on this machine.
    """
    ignored = [wire.EXIT_UNPUBLISHED, wire.EXIT_REGROUP, wire.EXIT_INTERRUPTED, _UNKNOWN_EXIT]
    shares_job = spec.group_id is not None and spec.group_index is None
    if spec.backend != "local" and spec.accelerator.hosts == 1 and not shares_job:
        ignored.append(_KILLED_EXIT)

    def exits(action: str, codes: list[int]) -> dict[str, Any]:
        return {
            "action": action,
            "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": sorted(codes)},
        }

    return [
        exits("FailIndex", [wire.EXIT_NEVER_RETRY, wire.EXIT_FENCED]),
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
    """Whether the pods are those of a LeaderWorkerSet."""
    return spec.backend == "pathways"


def _flex_start(spec: JobSpec) -> list[dict[str, Any]]:
    """Taints that flex-start nodes may have; those of a pool with queued provisioning are for queued jobs.

    https://cloud.google.com/kubernetes-engine/docs/how-to/provisioningrequest
    """
    if not spec.pod.flex_start:
        return []
    keys = (FLEX_START, _QUEUED) if spec.pod.queue is not None else (FLEX_START,)
    return [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]


def _is_slice(spec: JobSpec) -> bool:
    """Whether several hosts run it together; the local backend runs everything as one process."""
    return spec.accelerator.hosts > 1 and spec.backend != "local"


def _security(spec: JobSpec) -> dict[str, Any]:
    seccomp = {"seccompProfile": {"type": "RuntimeDefault"}}
    if spec.pod.run_as_root:
        return {"runAsUser": 0, "runAsGroup": 0, **seccomp}
    user = {"runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER}
    return {"runAsNonRoot": True, **user, **seccomp}


def _resources(spec: JobSpec) -> dict[str, Any]:
    """Devices, cores and memory; a CPU job asks for at least a core, so that the autoscaler sees it."""
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
    values = {
        "KINETIC_PROTOCOL": str(wire.PROTOCOL),
        "KINETIC_STORE": reference.store_uri,
        "KINETIC_JOB_ID": reference.job_id,
        "KINETIC_RUNNER_SHA256": delivery.runner_sha256,
        "KINETIC_PAYLOAD_SHA256": delivery.payload_sha256,
        OUTCOME_KEY: delivery.outcome_key,
        "KINETIC_RETRIES": str(spec.retries),
        "KINETIC_INFRASTRUCTURE_RETRIES": str(spec.infrastructure_retries),
        "KINETIC_WORK_DIR": WORK_DIR,
        "KINETIC_ACCELERATOR": str(spec.accelerator),
        "KINETIC_GRACE_SECONDS": f"{spec.grace:g}",
        "KINETIC_BACKEND": reference.backend,
        **delivery.surroundings.environment,
    }
    if spec.pod.lease is not None:
        values["KINETIC_LEASE_SECONDS"] = f"{spec.pod.lease:g}"
    if spec.debug_wait is not None:
        values["KINETIC_DEBUG_WAIT_TIMEOUT"] = f"{spec.debug_wait:g}"
    if spec.pod.hang_after is not None:
        values["KINETIC_HANG_SECONDS"] = f"{spec.pod.hang_after:g}"
    if (budget := spec.budget) is not None:
        hourly = budget.hourly[str(spec.accelerator)]
        values["KINETIC_BUDGET"] = f"{budget.amount!r} {hourly!r} {budget.currency}"
    if spec.pod.cache_volume is not None:
        values["KINETIC_CACHE_DIR"] = CACHE_DIR
        values |= {"UV_CACHE_DIR": f"{CACHE_DIR}/uv", "UV_LINK_MODE": "copy"}  # another file system
    fields = {"KINETIC_POD_UID": "metadata.uid"}
    if _is_set(spec):
        hosts = set_environment(reference.k8s_name, spec.accelerator.hosts)
        values["KINETIC_SET"] = reference.k8s_name
        if spec.timeout is not None:
            values["KINETIC_TIMEOUT"] = f"{spec.timeout:g}"
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
