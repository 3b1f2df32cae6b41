"""One input of a part of a batch, as if it had a Job of its own: a pure function.

Whatever reads jobs, from the verdict to the log, reads such a view like any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kinetic_core._runner import wire
from kinetic_core._runner.indexes import parse_indexes
from kinetic_core.cluster.names import (
    CANCELLED,
    GIVEN_UP,
    HOST_INDEX,
    JOB_ID,
    OUTCOME_KEY,
    WAITING_FOR_SLOT,
)
from kinetic_core.cluster.parts import variable
from kinetic_core.cluster.pods import conditions

Object = Mapping[str, Any]


def index_view(
    job: Object, pods: Sequence[Object], child: tuple[str, int], own: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The Job and the pods of input `child` (batch, index), which is index `own` of the part's Job.

    `pods` are those of this index. The key of its outcome stands where a Job has that of its job.
    """
    facts, status = job["metadata"], job.get("status") or {}
    annotations = dict(facts.get("annotations") or {})
    told = _ended(job, own, annotations)
    if told is None and not pods:
        message = "its turn has not come: the batch runs as many inputs at once as max_concurrent says"
        told = {"type": WAITING_FOR_SLOT, "status": "True", "message": message}
    if GIVEN_UP in annotations:
        annotations.pop(CANCELLED, None)  # it was how the Job was ended, not why
    view = {
        **job,
        "metadata": {
            **facts,
            "labels": {**facts["labels"], JOB_ID: wire.child_id(*child)},
            "annotations": annotations,
        },
        "spec": {**job["spec"], "completions": 1, "template": _with_key(job, child[1])},
        "status": {**status, "conditions": [] if told is None else [told]},
    }
    return view, [_as_only_host(pod) for pod in pods]


def _ended(job: Object, own: int, annotations: Mapping[str, str]) -> dict[str, Any] | None:
    """The condition of an index that has ended."""
    if own in _indexes(job.get("status") or {}, "completedIndexes"):
        return {"type": "Complete", "status": "True"}
    failed: Object = {"type": "Failed", "status": "True", "message": "it failed, and has no retries left"}
    whole = conditions(job).get("Failed") or {}
    if own not in _indexes(job.get("status") or {}, "failedIndexes"):
        if whole.get("status") != "True":
            return None
        failed = whole
    if GIVEN_UP in annotations:
        return {**failed, "reason": "NeverRan", "failure": json.loads(annotations[GIVEN_UP])}
    if failed is not whole:
        return dict(failed)
    if whole.get("reason") == "MaxFailedIndexesExceeded":
        text = "it was stopped: another input had failed, and cancel_running_on_fail was asked for"
        return {**whole, "reason": "Cancelled", "message": text}
    return dict(whole)


def _indexes(status: Object, name: str) -> set[int]:
    return set(parse_indexes(status.get(name) or ""))


def _with_key(job: Object, index: int) -> dict[str, Any]:
    template = job["spec"]["template"]
    container = template["spec"]["containers"][0]
    whole = variable(job, OUTCOME_KEY)
    assert whole is not None  # noqa: S101  every manifest of ours has it
    key = wire.child_key(bytes.fromhex(whole), index).hex()
    env = [{**each, "value": key} if each["name"] == OUTCOME_KEY else each for each in container["env"]]
    return {**template, "spec": {**template["spec"], "containers": [{**container, "env": env}]}}


def _as_only_host(pod: Object) -> dict[str, Any]:
    """The pod's index is which input it runs, not which host of a slice it is."""
    facts = pod["metadata"]
    kept = {key: value for key, value in (facts.get("annotations") or {}).items() if key != HOST_INDEX}
    return {**pod, "metadata": {**facts, "annotations": kept}}
