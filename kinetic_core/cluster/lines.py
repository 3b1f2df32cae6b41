"""What says in a cluster which stored line is a batch's: the inputs that wait, each for a Job of its own.

Whoever goes on with a batch creates the Jobs that its line describes, with his own rights; a bucket's writer
must not choose them. So the line's digest is kept where only those who may create Jobs can write: on a Job
that wants no pods, which Kubernetes removes when nobody will need it any more (ADR 0040).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinetic_core.cluster.names import LINE, LINE_NAME, OUTCOME_KEY, SPEC_DIGEST

KEPT_SECONDS = 90 * 24 * 3600
"""How long after it was made a line may be gone on with."""


def line_job(namespace: str, group_id: str, line: str, spec_digest: str) -> dict[str, Any]:
    """The Job that keeps `line`, a SHA-256 in hex. It is no job of ours: no list of those has it."""
    container = {"name": "none", "image": "none", "securityContext": {"allowPrivilegeEscalation": False}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": LINE_NAME.format(group_id),
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "kinetic"},
            "annotations": {LINE: line, SPEC_DIGEST: spec_digest},
        },
        "spec": {
            "completions": 0,
            "parallelism": 0,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def line_of(job: Mapping[str, Any]) -> str:
    """The digest that such a Job keeps."""
    return str(job["metadata"]["annotations"][LINE])


def with_key(manifest: Mapping[str, Any], outcome_key: str) -> dict[str, Any]:
    """The Job of a delivery that lacked its key, which is never stored, with one."""
    template = manifest["spec"]["template"]
    key = {"name": OUTCOME_KEY, "value": outcome_key}
    containers = [
        {**each, "env": [key if one["name"] == OUTCOME_KEY else one for one in each["env"]]}
        for each in template["spec"]["containers"]
    ]
    pod = {**template, "spec": {**template["spec"], "containers": containers}}
    return {**manifest, "spec": {**manifest["spec"], "template": pod}}
