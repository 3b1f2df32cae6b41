"""Inputs of a batch that share Jobs, each with the identity of a job of its own."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.indexes import parse_indexes
from kinetic_core.backends.base import Backend, Found, Parts
from kinetic_core.backends.kubernetes.chunks import chunk_id, indexes_of, input_of
from kinetic_core.backends.kubernetes.names import GIVEN_UP, JOB_ID, JOB_NAME, UNSCHEDULABLE
from kinetic_core.backends.kubernetes.objects import Pod
from kinetic_core.backends.kubernetes.pods import cannot_start, why_waiting
from kinetic_core.backends.kubernetes.verdict import observe as verdict
from kinetic_core.errors import KineticError, ObjectNotFound, OtherCluster
from kinetic_core.job import ChunkObservation, JobObservation, JobReference, JobStatus
from kinetic_core.jobs.references import check_label, checked_reference
from kinetic_core.store.documents import malformed, read_document
from kinetic_core.store.protocol import ObjectInfo, ObjectStore

MANIFEST = "manifest.json"
INDEXED, SUPERVISED, CLIENT_DRIVEN, ON_LANES = "indexed", "supervised", "client_driven", "lanes"
"""Values of a manifest's field `scheduler`: what starts the inputs of the batch."""
LANES, BLOCKS = "lanes", "blocks"
"""Fields of a manifest of scheduler `lanes`: how many lanes there are, and the digest of its blocks."""
MOST_INPUTS = 10_000_000
"""Inputs of a batch at most: a manifest that claims more would fill its reader's memory."""


def read_manifest(store: ObjectStore, group_id: str) -> dict[str, Any]:
    """Read a batch's stored fields of `Plan.manifest`. Raises MalformedObject, ObjectNotFound.

    A manifest of scheduler `indexed` or `lanes` has a `reference`, one of another has a `namespace` and,
    unless it is of a batch that cannot be asked for again, a `spec_digest`.
    """
    name = object_names.batch(group_id, MANIFEST)
    types = {"group_id": str, "submit_fn_name": str, "scheduler": str, "total_expected": int}
    manifest = read_document(store, name, **types, created_at=float)
    if manifest["group_id"] != group_id or not 0 <= manifest["total_expected"] <= MOST_INPUTS:
        raise malformed(store, name, "it is of another batch, or of more inputs than there can be")
    try:
        manifest = {"group_name": None, "tags": {}, **manifest}
        wire.optional(manifest, "group_name", str)
        wire.document(manifest["tags"], **dict.fromkeys(manifest["tags"], str))
        wire.optional(manifest, "spec_digest", str)
        if manifest["scheduler"] in (INDEXED, ON_LANES):
            JobReference.from_dict(wire.document(manifest, reference=dict)["reference"])
        elif manifest["scheduler"] in (SUPERVISED, CLIENT_DRIVEN):
            check_label(wire.document(manifest, namespace=str)["namespace"])
        else:
            raise malformed(store, name, f"no batch has a scheduler {manifest['scheduler']!r}")
    except (wire.Malformed, TypeError) as exc:
        raise malformed(store, name, exc) from exc
    return manifest


def input_reference(whole: JobReference, index: int) -> JobReference:
    """Build the reference of one input from its batch's, which lacks what differs between inputs."""
    assert whole.group_id is not None  # noqa: S101  it is a batch's
    job_id = object_names.input_id(whole.group_id, index)
    return replace(
        whole,
        job_id=job_id,
        group_index=index,
        display_name=f"kinetic-{whole.func_name}-{job_id}",
        output_dir=f"{whole.output_dir}{index}",
    )


def chunk_reference(whole: JobReference, number: int) -> JobReference:
    """Build the reference that names a chunk wherever a job's reference is expected."""
    own = chunk_id(whole.job_id, number)
    return replace(whole, job_id=own, k8s_name=JOB_NAME.format(own))


def stored_whole(backend: Backend, group_id: str) -> tuple[JobReference, int] | None:
    """Read the reference and the number of inputs of a batch whose inputs share Jobs; None if none is stored.

    Raises MalformedObject, and as `checked_reference` does.
    """
    try:
        manifest = read_manifest(backend.store, group_id)
    except ObjectNotFound:
        return None
    if manifest["scheduler"] not in (INDEXED, ON_LANES):
        return None
    whole = checked_reference(manifest["reference"], group_id, backend)
    if whole.group_id != group_id:
        raise malformed(backend.store, object_names.batch(group_id, MANIFEST), "it is not of one batch")
    return whole, manifest["total_expected"]


def stored_input(backend: Backend, job_id: str) -> JobReference | None:
    """Read the reference of an input that shares its Job, None for any other. Raises as `stored_whole`."""
    child = input_of(job_id)
    found = None if child is None else stored_whole(backend, child[0])
    if child is None or found is None or child[1] >= found[1]:
        return None
    return input_reference(found[0], child[1])


NEVER_STARTED = "GivenUp"
"""Reason of a chunk that could never run: all its inputs have failed."""


def observe_chunk(backend: Backend, reference: JobReference) -> ChunkObservation:
    """Observe a chunk and its inputs. It is PENDING with a failure if its pods can never start."""
    found = backend.get(reference.namespace, reference.job_id)
    if found is None or backend.parts is None:
        return ChunkObservation(JobStatus.NOT_FOUND, "NotFound", f"{reference.job_id} is not there any more")
    job, inputs = found[0], indexes_of(found[0])
    status = job.get("status") or {}
    seen = verdict(job, ())
    if seen.is_terminal and GIVEN_UP in (job["metadata"].get("annotations") or {}):
        seen = replace(seen, reason=NEVER_STARTED)
    elif not seen.is_terminal and status.get("ready"):
        seen = replace(seen, status=JobStatus.RUNNING, reason="Running", message="")
    elif not seen.is_terminal and status.get("active"):
        seen = _waiting(backend, backend.parts, reference, found, seen)
    return ChunkObservation(
        seen.status,
        seen.reason,
        seen.message,
        created_at=seen.created_at,
        finished_at=seen.finished_at,
        failure=seen.failure,
        inputs=frozenset(inputs),
        succeeded=frozenset(inputs[own] for own in parse_indexes(status.get("completedIndexes") or "")),
        failed=frozenset(inputs[own] for own in parse_indexes(status.get("failedIndexes") or "")),
    )


def _waiting(
    backend: Backend, parts: Parts, reference: JobReference, found: Found, seen: JobObservation
) -> JobObservation:
    """Say why none of a chunk's pods runs; what keeps one of them from ever starting keeps all."""
    pods = parts.some_waiting(reference.namespace, found[0])
    if not pods:
        return seen
    reason, message = why_waiting(Pod(pods[0]))
    failure = next((told for pod in pods if (told := cannot_start(Pod(pod)))), None)
    if failure is None and reason == UNSCHEDULABLE and (text := backend.never_runs((found[0], pods))):
        failure = wire.Failure(wire.FailureClass.IMPOSSIBLE_REQUEST, text, "scheduling")
    return replace(seen, reason=reason, message=failure.message if failure else message, failure=failure)


def reconcile_chunk(backend: Backend, reference: JobReference) -> ChunkObservation:
    """End a chunk whose pods can never start; return the chunk's observation."""
    seen = observe_chunk(backend, reference)
    if seen.failure is not None and not seen.is_terminal and backend.parts is not None:
        backend.parts.give_up(reference.namespace, reference.job_id, seen.failure)
        backend.abandon(reference.namespace, reference.job_id)
    return seen


INPUTS = "inputs"
"""Metadata of a batch's index entry: the number of its inputs."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """Progress of a batch. `reason` is empty for a batch that has ended."""

    status: JobStatus
    reason: str
    succeeded: int
    failed: int


def progress(inputs: int, ended: Mapping[str, int], parts: Sequence[Mapping[str, Any]]) -> Progress:
    """Compute progress from the states of outcomes and, if they still exist, the batch's Jobs."""
    told = [part.get("status") or {} for part in parts]
    # Kubernetes knows of failures that have no outcome yet.
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
    return Progress(_over(ended, parts), "", succeeded, failed)


def _over(ended: Mapping[str, int], parts: Sequence[Mapping[str, Any]]) -> JobStatus:
    """Return the final status of a batch not all of whose inputs succeeded."""
    stopped = any(verdict(part, ()).status is JobStatus.CANCELLED for part in parts)
    if not ended.get("failed") and (stopped or ended.get(wire.CANCELLED) or ended.get(wire.DROPPED)):
        return JobStatus.CANCELLED
    return JobStatus.FAILED if parts or sum(ended.values()) else JobStatus.NOT_FOUND


def ended_of(states: Mapping[str, str]) -> dict[str, Counter[str]]:
    """Count the inputs of each batch by state, from the states of jobs by id."""
    found: dict[str, Counter[str]] = {}
    for job_id, state in states.items():
        if state and (child := input_of(job_id)):
            found.setdefault(child[0], Counter())[state] += 1
    return found


def children(backend: Backend, group_id: str) -> Iterator[JobReference]:
    """Yield the references of a batch's inputs.

    A batch of another cluster or namespace yields none; so does, with a warning, a batch that cannot be read.
    """
    try:
        found = stored_whole(backend, group_id)
    except OtherCluster:
        return
    except KineticError as exc:
        _LOG.warning("leaving %s out of the list: %s", group_id, exc)
        return
    if found is not None:
        yield from (input_reference(found[0], index) for index in range(found[1]))


def stored_of(store: ObjectStore, group_id: str, pattern: str = "") -> Iterator[tuple[int, ObjectInfo]]:
    """List the stored objects of inputs, without those of a batch whose id merely begins like this one's."""
    for info in store.list(f"jobs/{group_id}-", pattern):
        child = input_of(info.name.split("/")[1])
        if child is not None and child[0] == group_id:
            yield child[1], info


def is_stored(store: ObjectStore, group_id: str) -> bool:
    """Return whether the store knows the batch."""
    return store.find(object_names.batch(group_id, MANIFEST)) is not None


def end_parts(backend: Backend, namespace: str, parts: Sequence[Mapping[str, Any]]) -> None:
    """End and remove a batch's Jobs. Idempotent."""
    names = [str(part["metadata"]["labels"][JOB_ID]) for part in parts]
    for name, part in zip(names, parts, strict=True):
        if not verdict(part, ()).is_terminal:
            backend.delete(namespace, name)
    backend.remove(namespace, *names)


def forget(store: ObjectStore, group_id: str) -> None:
    """Remove all stored objects of a batch but outputs; the index entry goes last."""
    store.delete_many([info.name for _, info in stored_of(store, group_id)])
    store.delete_all(object_names.batch(group_id, ""))
    entries = [info.name for info in store.list("index/", f"index/*-{group_id}")]
    store.delete_many([name for name in entries if indexed_id(name) == group_id])


def indexed_id(name: str) -> str:
    """Return the id of the job or batch that an index entry names."""
    return name.partition("/")[2].partition("-")[2]
