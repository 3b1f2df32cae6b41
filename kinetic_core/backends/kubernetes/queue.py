"""Digest of a client-driven batch's queue, kept in the cluster.

Whoever continues a batch creates the Jobs that its queue describes, with his own rights; a writer of the
bucket must not choose them. So the queue's digest is kept where only accounts that may create Jobs can write:
on a Job without pods, which Kubernetes removes when it is no longer needed (ADR 0040).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.job_objects import create_object
from kinetic_core.backends.kubernetes.names import (
    KEY_ID,
    OUTCOME_KEY,
    QUEUE_DIGEST,
    QUEUE_DIGEST_NAME,
    SPEC_DIGEST,
)

KEPT_SECONDS = 90 * 24 * 3600
"""Seconds after its creation for which a queue may be continued."""


def line_job(namespace: str, group_id: str, line: str, spec_digest: str) -> dict[str, Any]:
    """Build the Job that keeps `line`, a SHA-256 in hex and a size; lists of jobs leave this Job out."""
    container = {"name": "none", "image": "none", "securityContext": {"allowPrivilegeEscalation": False}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": QUEUE_DIGEST_NAME.format(group_id),
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "kinetic"},
            "annotations": {QUEUE_DIGEST: line, SPEC_DIGEST: spec_digest},
        },
        "spec": {
            "completions": 0,
            "parallelism": 0,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def line_of(job: Mapping[str, Any]) -> str:
    """Return the digest that such a Job keeps."""
    return str(job["metadata"]["annotations"][QUEUE_DIGEST])


def with_key(manifest: Mapping[str, Any], outcome_key: str, key_id: str) -> dict[str, Any]:
    """Return the Job of a delivery with its key, which is never stored with the delivery."""
    template = manifest["spec"]["template"]
    values = {OUTCOME_KEY: outcome_key, KEY_ID: key_id}
    containers = [
        {**each, "env": [_with_value(one, values) for one in each["env"]]}
        for each in template["spec"]["containers"]
    ]
    pod = {**template, "spec": {**template["spec"], "containers": containers}}
    return {**manifest, "spec": {**manifest["spec"], "template": pod}}


def _with_value(variable: Mapping[str, Any], values: Mapping[str, str]) -> Mapping[str, Any]:
    name = variable["name"]
    return {"name": name, "value": values[name]} if name in values else variable


class BatchQueues:
    """Jobs without pods, one for each batch whose inputs have Jobs of their own."""

    def __init__(self, api: ClusterApi) -> None:
        self._api = api

    def keep(self, namespace: str, group_id: str, line: str, spec_digest: str) -> str:
        """Keep a digest; return the one that counts: this one, or that of an equal submission before.

        Raises JobConflict if the digest belongs to another batch, ConfigurationError or ClusterError.
        """
        job, _ = create_object(self._api, line_job(namespace, group_id, line, spec_digest))
        return line_of(job)

    def find(self, namespace: str, group_id: str) -> str | None:
        """Return the digest that counts; None if none is kept."""
        job = self._api.get("Job", namespace, QUEUE_DIGEST_NAME.format(group_id))
        return None if job is None else line_of(job)

    def remove(self, namespace: str, group_id: str) -> None:
        """Remove the digest, so that nobody continues the batch. Idempotent."""
        self._api.delete("Job", namespace, QUEUE_DIGEST_NAME.format(group_id))
