"""Submission of a batch whose inputs share Jobs: everything is stored once, and the cluster runs it."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from kinetic_core._runner import wire
from kinetic_core._runner.indexes import format_indexes
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.chunks import LARGEST, Chunk, chunk_id, chunk_job
from kinetic_core.backends.kubernetes.manifest import Delivery, job_manifest
from kinetic_core.backends.kubernetes.names import JOB_NAME
from kinetic_core.batches.definition import (
    Plan,
    arguments_of,
    batch_digest,
    finished_object,
    inputs_object,
    manifest_object,
    note_failure,
)
from kinetic_core.batches.rerun import resume
from kinetic_core.errors import InvalidRequest, JobConflict, ObjectExists
from kinetic_core.job import BucketMount, JobReference, JobSpec
from kinetic_core.jobs.bundle import Packed, asked_output_dir, output_dir
from kinetic_core.jobs.cancel import index_object
from kinetic_core.jobs.inputs import INPUTS, stored_whole
from kinetic_core.jobs.listing import index_metadata
from kinetic_core.jobs.prepare import Group, pickle_arguments, reference_of
from kinetic_core.jobs.runner_archive import stored_runner
from kinetic_core.jobs.signing import new_key
from kinetic_core.jobs.submit import is_absent
from kinetic_core.project.payload import InputBlocks, payload_frame
from kinetic_core.store.protocol import ObjectStore

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Inputs:
    """Written inputs: a table for the payload's header, and the inputs that could not be written."""

    path: Path
    object_name: str
    blocks: Sequence[Any]
    failures: Mapping[int, Exception]


def can_share(packed: Packed) -> bool:
    """Return whether inputs can share a Job: each is one pod, and no option needs a Job per input."""
    spec = packed.spec
    alike = spec.accelerator.hosts == 1 and spec.pod.lease is None and not spec.fallbacks
    return packed.backend.parts is not None and alike


def submit_batch(
    packed: Packed, items: Sequence[Any], plan: Plan
) -> tuple[JobReference, dict[int, Exception]]:
    """Store and create a batch; return its reference, and the errors of inputs that cannot be submitted.

    Submitting the same batch under the same id again adopts its Jobs. Raises JobConflict if the id belongs to
    another batch, StoreError or the cluster's error if the batch cannot be created; then everything of a new
    batch is removed.
    """
    store = packed.backend.store
    with ExitStack() as undo, tempfile.TemporaryDirectory(prefix="kinetic-inputs-") as folder:
        inputs = _written(packed, items, plan, Path(folder, "inputs"))
        good = [index for index in range(len(items)) if index not in inputs.failures]
        parts = _parts(plan, good)
        spec, reference = _described(packed, items, plan, inputs)
        if plan.is_new:
            undo.callback(_undo, packed, reference)
        _keep(store, inputs.object_name, inputs.path)
        payload = _payload(packed, spec, reference, inputs)
        _keep(store, wire.batch_payload_object(plan.group_id, wire.digest(payload)), payload)
        _store_manifest(packed, plan, reference, len(items))
        for index, error in inputs.failures.items():
            note_failure(packed.backend, reference.namespace, plan.group_id, index, error)
        delivery = _delivery(packed, reference, payload)
        create = partial(_create_chunk, packed.backend, spec, reference, delivery)
        was_submitted = not plan.is_new and store.find(finished_object(plan.group_id)) is not None
        for part in [] if was_submitted else parts:
            create(part)
        undo.pop_all()
    if was_submitted and plan.skip_done:
        resume(packed.backend, reference, good, lambda number, rest: create(_part(plan, number, rest)))
    _keep(store, finished_object(plan.group_id), json.dumps({"dropped": []}).encode())
    return reference, dict(inputs.failures)


def _written(packed: Packed, items: Sequence[Any], plan: Plan, path: Path) -> _Inputs:
    failures: dict[int, Exception] = {}
    mounts: set[BucketMount] = set()
    with path.open("wb") as stream:
        blocks = InputBlocks(cast("BinaryIO", stream))
        for index, item in enumerate(items):
            try:
                args, kwargs = arguments_of(item, plan.input_mode)
                arguments, wanted = pickle_arguments(packed, args, kwargs)
            except Exception as exc:  # noqa: BLE001  this input's failure; the others go on
                failures[index] = exc
                continue
            mounts.update(wanted)
            blocks.add(index, arguments)
        sha256 = blocks.close()
    if not mounts <= set(packed.buckets):
        raise NeedsOwnJobs
    return _Inputs(path, inputs_object(plan.group_id, sha256), blocks.blocks, failures)


class NeedsOwnJobs(Exception):
    """Inputs differ in what their pods need: each needs a Job of its own. Nothing was stored."""


def _described(
    packed: Packed, items: Sequence[Any], plan: Plan, inputs: _Inputs
) -> tuple[JobSpec, JobReference]:
    first = wire.input_id(plan.group_id, 0)
    place = output_dir(asked_output_dir(packed.options, packed.settings), packed.backend.store.uri, first, 0)
    spec = replace(
        packed.spec,
        output_dir=place.removesuffix("0"),
        buckets=packed.buckets,
        group_id=plan.group_id,
        shipped=packed.tree_bytes + packed.substitutes.size,
    )
    digest = batch_digest(packed, items, plan, inputs.object_name.encode())
    group = Group(plan.group_id, "map", None)
    return spec, reference_of(packed, spec, plan.group_id, digest, group)


def _payload(packed: Packed, spec: JobSpec, reference: JobReference, inputs: _Inputs) -> bytes:
    """Build the payload whose digest new Jobs name; those of an equal submission may name another."""
    places = [list(block) for block in inputs.blocks]
    return payload_frame(
        packed.packed_function,
        None,
        inputs={"object": inputs.object_name, "blocks": places},
        tree=packed.tree,
        env=spec.environment,
        volumes=packed.volumes,
        output_dir=reference.output_dir,
        spec_digest=reference.spec_digest,
        dependencies=packed.image.dependencies,
        secrets=spec.pod.managed_secrets,
    )


def _store_manifest(packed: Packed, plan: Plan, reference: JobReference, size: int) -> None:
    store = packed.backend.store
    told = plan.manifest(size, packed.function_name, reference=reference.to_dict())
    name, content = manifest_object(plan.group_id), told
    if not _keep(store, name, json.dumps(content, sort_keys=True).encode()):
        known = stored_whole(packed.backend, plan.group_id)
        if known is None:
            raise JobConflict(
                f"{plan.group_id} exists already, with Jobs of its inputs' own; use another group_id"
            )
        _same(known[0].spec_digest, reference)
        reference = replace(reference, created_at=known[0].created_at)  # one entry, of the time the batch has
    facts = {**index_metadata(reference), INPUTS: str(size)}
    _keep(store, index_object(reference), b"", facts)


def _parts(plan: Plan, good: Sequence[int]) -> list[Chunk]:
    """Divide the inputs into Jobs of bounded size, which together run as many inputs at once as requested."""
    runs = [good[start : start + LARGEST] for start in range(0, len(good), LARGEST)]
    if plan.max_concurrent is not None and plan.max_concurrent < len(runs):
        raise InvalidRequest(
            f"max_concurrent={plan.max_concurrent}: {len(good)} inputs are {len(runs)} Jobs, each of which "
            f"runs one at least. Give {len(runs)} or more, or fewer inputs"
        )
    parts = []
    for number, indexes in enumerate(runs):
        share = len(indexes)
        if plan.max_concurrent is not None:
            share = plan.max_concurrent // len(runs) + (number < plan.max_concurrent % len(runs))
        parts.append(_part(plan, number, indexes, share))
    return parts


def _part(plan: Plan, number: int, indexes: Sequence[int], share: int | None = None) -> Chunk:
    parallelism = share or plan.max_concurrent or len(indexes)
    stops = plan.fail_fast, plan.cancel_running
    return Chunk(plan.group_id, number, format_indexes(indexes), parallelism, *stops)


def _delivery(packed: Packed, reference: JobReference, payload: bytes) -> Delivery:
    surroundings = packed.backend.surroundings(reference.namespace)
    return Delivery(stored_runner(packed.backend), wire.digest(payload), "", surroundings)


def _create_chunk(
    backend: Backend, spec: JobSpec, reference: JobReference, delivery: Delivery, part: Chunk
) -> None:
    key_id, key = new_key(backend, reference.namespace, reference.job_id, reference.spec_digest)
    own = replace(delivery, outcome_key=key, key_id=key_id)
    backend.create(chunk_job(job_manifest(spec, chunk_reference(reference, part.number), own), part))


def chunk_reference(whole: JobReference, number: int) -> JobReference:
    """Build the reference that names a chunk wherever a job's reference is expected."""
    own = chunk_id(whole.job_id, number)
    return replace(whole, job_id=own, k8s_name=JOB_NAME.format(own))


def _keep(
    store: ObjectStore, name: str, content: bytes | Path, metadata: Mapping[str, str] | None = None
) -> bool:
    """Store an object unless it exists; return whether it was stored."""
    try:
        store.create(name, content, metadata)
    except ObjectExists:
        return False
    return True


def _undo(packed: Packed, reference: JobReference) -> None:
    """Remove everything of a new batch for which no Job was created."""
    if is_absent(packed.backend, chunk_reference(reference, 0)):
        packed.backend.store.delete_all(wire.batch_object(reference.job_id, ""))
        packed.backend.store.delete(index_object(reference))


def _same(digest: object, reference: JobReference) -> None:
    if digest != reference.spec_digest:
        raise JobConflict(
            f"{reference.job_id} exists already and is another batch (other function, inputs, files or "
            "options); use another group_id"
        )
