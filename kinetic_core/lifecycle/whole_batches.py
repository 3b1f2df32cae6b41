"""Batches whose inputs share Jobs, each as one thing: in lists, and when it is removed."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kinetic_core._runner import wire
from kinetic_core._runner.indexes import parse_indexes
from kinetic_core.cluster.names import JOB_ID
from kinetic_core.cluster.parts import child_of
from kinetic_core.cluster.verdict import observe as verdict
from kinetic_core.errors import KineticError
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.children import MANIFEST, child_reference
from kinetic_core.model.job import JobReference
from kinetic_core.model.states import JobStatus
from kinetic_core.storage.protocol import ObjectInfo, ObjectStore

INPUTS = "inputs"
"""Metadata of an index entry: of how many inputs it is the batch."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far a batch is. `reason` is empty for one that has ended."""

    status: JobStatus
    reason: str
    succeeded: int
    failed: int


def progress(inputs: int, ended: Mapping[str, int], parts: Sequence[Mapping[str, Any]]) -> Progress:
    """From how many inputs ended in which state, as outcomes tell, and the batch's Jobs if they are there."""
    told = [part.get("status") or {} for part in parts]
    # Kubernetes knows failures of which no outcome tells yet.
    failed = max(
        sum(ended.values()) - ended.get("succeeded", 0),
        sum(len(parse_indexes(each.get("failedIndexes") or "")) for each in told),
    )
    succeeded = ended.get("succeeded", 0)
    if any(not verdict(part, ()).is_terminal for part in parts):
        runs = any(each.get("ready") for each in told)
        reason = f"{succeeded} of {inputs} succeeded" + (f", {failed} failed" if failed else "")
        return Progress(JobStatus.RUNNING if runs else JobStatus.PENDING, reason, succeeded, failed)
    if succeeded >= inputs:
        return Progress(JobStatus.SUCCEEDED, "", succeeded, failed)
    over = JobStatus.FAILED if parts or succeeded or failed else JobStatus.NOT_FOUND
    return Progress(over, "", succeeded, failed)


def ended_of(states: Mapping[str, str]) -> dict[str, Counter[str]]:
    """How many inputs of which batch ended how, from the states of jobs by their ids."""
    found: dict[str, Counter[str]] = {}
    for job_id, state in states.items():
        if child := child_of(job_id):
            found.setdefault(child[0], Counter())[state] += 1
    return found


def children(backend: Backend, group_id: str) -> Iterator[JobReference]:
    """The inputs of a batch, as jobs; one that cannot be read has none, with a warning."""
    try:
        manifest = json.loads(backend.store.read(wire.batch_object(group_id, MANIFEST)))
        whole, size = JobReference.from_dict(manifest["reference"]), int(manifest["total_expected"])
    except (KineticError, ValueError, TypeError, KeyError) as exc:
        _LOG.warning("leaving %s out of the list: %s", group_id, exc)
        return
    yield from (child_reference(whole, index) for index in range(size))


def stored_of(store: ObjectStore, group_id: str, pattern: str = "") -> Iterator[tuple[int, ObjectInfo]]:
    """What is stored of inputs, without those of a batch whose id begins like this one's."""
    for info in store.list(f"jobs/{group_id}-", pattern):
        child = child_of(info.name.split("/")[1])
        if child is not None and child[0] == group_id:
            yield child[1], info


def is_stored(store: ObjectStore, group_id: str) -> bool:
    """Whether the store knows the batch."""
    return store.find(wire.batch_object(group_id, MANIFEST)) is not None


def end_parts(backend: Backend, namespace: str, parts: Sequence[Mapping[str, Any]]) -> None:
    """End and remove a batch's Jobs. Idempotent."""
    names = [str(part["metadata"]["labels"][JOB_ID]) for part in parts]
    for name, part in zip(names, parts, strict=True):
        if not verdict(part, ()).is_terminal:
            backend.delete(namespace, name)
    backend.remove(namespace, *names)


def forget(store: ObjectStore, group_id: str) -> None:
    """Remove all that is stored of a batch but outputs; last the entry by which it is found again."""
    store.delete_many([info.name for _, info in stored_of(store, group_id)])
    store.delete_all(wire.batch_object(group_id, ""))
    entries = [info.name for info in store.list("index/", f"index/*-{group_id}")]
    store.delete_many([name for name in entries if indexed_id(name) == group_id])


def indexed_id(name: str) -> str:
    """The id of the job or batch that an index entry is of."""
    return name.partition("/")[2].partition("-")[2]
