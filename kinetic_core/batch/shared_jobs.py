"""Submitting a batch whose inputs share Jobs: everything is stored once, and the cluster does the rest."""

from __future__ import annotations

import json
import logging
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from kinetic_core._runner import wire
from kinetic_core._runner.indexes import format_indexes
from kinetic_core.batch.digests import batch_digest
from kinetic_core.batch.failures import note_failure
from kinetic_core.batch.inputs import arguments_of
from kinetic_core.batch.names import finished_object, inputs_object, manifest_object
from kinetic_core.batch.plan import Plan
from kinetic_core.batch.resuming import resume
from kinetic_core.cluster.manifest import Delivery, job_manifest
from kinetic_core.cluster.names import JOB_NAME
from kinetic_core.cluster.parts import LARGEST, Part, part_id, part_job
from kinetic_core.errors import InvalidRequest, JobConflict, ObjectExists
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.ending import index_object
from kinetic_core.lifecycle.output_places import asked_output_dir, output_dir
from kinetic_core.lifecycle.packing import Packed
from kinetic_core.lifecycle.preparing import Group, pickle_arguments, reference_of
from kinetic_core.lifecycle.submission import is_absent, stored_runner
from kinetic_core.lifecycle.summaries import index_metadata
from kinetic_core.lifecycle.whole_batches import INPUTS
from kinetic_core.model.job import BucketMount, JobReference, JobSpec
from kinetic_core.packaging.inputs import InputBlocks
from kinetic_core.packaging.payload import payload_frame
from kinetic_core.storage.protocol import ObjectStore

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Inputs:
    """What was written of the inputs: a table for the payload's header, and who could not be written."""

    path: Path
    object_name: str
    blocks: Sequence[Any]
    failures: Mapping[int, Exception]


def can_share(packed: Packed) -> bool:
    """Whether inputs can share a Job: each is one pod, of which nothing is asked that is asked of a Job."""
    spec = packed.spec
    alike = spec.accelerator.hosts == 1 and spec.pod.lease is None and not spec.fallbacks
    return packed.backend.parts is not None and alike


def submit_batch(
    packed: Packed, items: Sequence[Any], plan: Plan
) -> tuple[JobReference, dict[int, Exception]]:
    """Store and create everything; what all inputs have in common, and the inputs that cannot be submitted.

    The same batch under the same id leads to the same Jobs, whoever submits it how often. Raises JobConflict
    if the id is another batch's, StoreError or the cluster's error if it cannot be created: then nothing of a
    new one is left.
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
        payload = _stored_payload(packed, spec, reference, inputs)
        _store_manifest(store, packed, plan, reference, len(items))
        for index, error in inputs.failures.items():
            note_failure(store, plan.group_id, index, error)
        delivery = _delivery(packed, reference, payload)
        create = partial(_create_part, packed.backend, spec, reference, delivery)
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
    """Inputs differ in what their pods must have: each needs a Job of its own. Nothing was stored."""


def _described(
    packed: Packed, items: Sequence[Any], plan: Plan, inputs: _Inputs
) -> tuple[JobSpec, JobReference]:
    first = wire.child_id(plan.group_id, 0)
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


def _stored_payload(packed: Packed, spec: JobSpec, reference: JobReference, inputs: _Inputs) -> bytes:
    """The payload that is in the store now: this one, or an equal batch's that was there."""
    places = [list(block) for block in inputs.blocks]
    payload = payload_frame(
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
    name = wire.batch_payload_object(reference.job_id)
    try:
        packed.backend.store.create(name, payload)
    except ObjectExists:
        payload = packed.backend.store.read(name)
        _same(wire.decode_frame(payload)[0].get("spec_digest"), reference)
    return payload


def _store_manifest(
    store: ObjectStore, packed: Packed, plan: Plan, reference: JobReference, size: int
) -> None:
    own = {"fail_fast": plan.fail_fast, "reference": reference.to_dict()}
    name, content = manifest_object(plan.group_id), plan.manifest(size, packed.function_name, **own)
    if not _keep(store, name, json.dumps(content, sort_keys=True).encode()):
        known = json.loads(store.read(name)).get("reference") or {}
        _same(known.get("spec_digest"), reference)
        reference = JobReference.from_dict(known)  # one entry, of the time the batch has
    facts = {**index_metadata(reference), INPUTS: str(size)}
    _keep(store, index_object(reference), b"", facts)


def _parts(plan: Plan, good: Sequence[int]) -> list[Part]:
    """The inputs in Jobs of bounded size; together they run as many at once as was asked for."""
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


def _part(plan: Plan, number: int, indexes: Sequence[int], share: int | None = None) -> Part:
    parallelism = share or plan.max_concurrent or len(indexes)
    stops = plan.fail_fast, plan.cancel_running
    return Part(plan.group_id, number, format_indexes(indexes), parallelism, *stops)


def _delivery(packed: Packed, reference: JobReference, payload: bytes) -> Delivery:
    surroundings = packed.backend.surroundings(reference.namespace)
    return Delivery(stored_runner(packed.backend.store), wire.digest(payload), "", surroundings)


def _create_part(
    backend: Backend, spec: JobSpec, reference: JobReference, delivery: Delivery, part: Part
) -> None:
    own = replace(delivery, outcome_key=secrets.token_hex(32))
    backend.create(part_job(job_manifest(spec, part_reference(reference, part.number), own), part))


def part_reference(whole: JobReference, number: int) -> JobReference:
    """What names a part where a job's reference is asked for."""
    own = part_id(whole.job_id, number)
    return replace(whole, job_id=own, k8s_name=JOB_NAME.format(own))


def _keep(
    store: ObjectStore, name: str, content: bytes | Path, metadata: Mapping[str, str] | None = None
) -> bool:
    """Store it, unless it is there; whether it was stored."""
    try:
        store.create(name, content, metadata)
    except ObjectExists:
        return False
    return True


def _undo(packed: Packed, reference: JobReference) -> None:
    """Leave nothing of a new batch of which no Job was made."""
    if is_absent(packed.backend, part_reference(reference, 0)):
        packed.backend.store.delete_all(wire.batch_object(reference.job_id, ""))
        packed.backend.store.delete(index_object(reference))


def _same(digest: object, reference: JobReference) -> None:
    if digest != reference.spec_digest:
        raise JobConflict(
            f"{reference.job_id} exists already and is another batch (other function, inputs, files or "
            "options); use another group_id"
        )
