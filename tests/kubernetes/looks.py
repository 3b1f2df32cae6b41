"""Jobs and pods as Kubernetes shows them."""

from __future__ import annotations

from typing import Any

from kinetic_core.backends.kubernetes.names import CONTAINER, FAILED_COUNT, IGNORED_COUNT

AT = "2026-01-01T00:00:00Z"


def job(*conditions: tuple[str, str, str]) -> dict[str, Any]:
    described = [
        {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": AT}
        for kind, reason, message in conditions
    ]
    return {"metadata": {"name": "j", "creationTimestamp": AT}, "status": {"conditions": described}}


def pod(
    state: dict[str, Any] | None = None, failed: int = 0, ignored: int = 0, **status: Any
) -> dict[str, Any]:
    annotations = {FAILED_COUNT: str(failed), IGNORED_COUNT: str(ignored)}
    containers = [{"name": "sidecar", "state": {"running": {}}}]
    if state is not None:
        containers.append({"name": CONTAINER, "state": state})
    return {
        "metadata": {"annotations": annotations, "creationTimestamp": AT},
        "status": {"containerStatuses": containers, **status},
    }


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": AT, "finishedAt": AT}}


FAILED = ("Failed", "FailedIndexes", "Job has failed indexes")
