"""Scheduler of inputs that share Jobs: everything is stored once, and the cluster runs it."""

from __future__ import annotations

import json
import logging
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.indexes import format_indexes
from kinetic_core.backends.base import Backend, Parts
from kinetic_core.backends.kubernetes.chunks import LARGEST, Chunk, chunk_id, chunk_job, indexes_of
from kinetic_core.backends.kubernetes.manifest import Delivery, job_manifest
from kinetic_core.backends.kubernetes.names import JOB_ID
from kinetic_core.batches.chunk_watch import ChunkWatch
from kinetic_core.batches.definition import (
    Plan,
    arguments_of,
    batch_digest,
    inputs_object,
    manifest_object,
    note_failure,
    noted_failures,
    other_batch,
)
from kinetic_core.batches.handle import BatchHandle
from kinetic_core.batches.progress import Board, Look
from kinetic_core.batches.rerun import resume
from kinetic_core.batches.scheduler import Tell, finish, in_parallel
from kinetic_core.errors import InvalidRequest, JobNotFound, KineticError
from kinetic_core.job import BucketMount, JobReference, JobSpec, JobStatus
from kinetic_core.jobs.bundle import Packed, asked_output_dir, output_dir
from kinetic_core.jobs.cancel import index_object
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.inputs import (
    INDEXED,
    INPUTS,
    chunk_reference,
    forget,
    input_reference,
    stored_whole,
)
from kinetic_core.jobs.listing import index_metadata
from kinetic_core.jobs.prepare import Group, pickle_arguments, reference_of
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.jobs.references import checked_reference
from kinetic_core.jobs.runner_archive import stored_runner
from kinetic_core.jobs.signing import key_id_of, new_key, outcome_key
from kinetic_core.project.payload import BLOCK_INPUTS, InputBlocks, payload_frame
from kinetic_core.store.documents import malformed

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Inputs:
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
    batch is removed. What there is of a batch whose id the caller chose goes on, because another submitter
    may have adopted it; the next submission completes it.
    """
    store = packed.backend.store
    with ExitStack() as undo, tempfile.TemporaryDirectory(prefix="kinetic-inputs-") as folder:
        inputs = write_inputs(packed, items, plan, Path(folder, "inputs"))
        good = [index for index in range(len(items)) if index not in inputs.failures]
        parts = _parts(plan, good)
        spec, reference = described(packed, items, plan, inputs)
        if plan.is_new:
            undo.callback(_undo, packed.backend, reference, parts)
        store.create_if_absent(inputs.object_name, inputs.path)
        payload = batch_payload(packed, spec, reference, inputs)
        store.create_if_absent(object_names.batch_payload(plan.group_id, wire.digest(payload)), payload)
        known = store_batch(packed, plan, reference, len(items), INDEXED)
        _store_entry(packed, plan, known, len(items))
        for index, error in inputs.failures.items():
            note_failure(packed.backend, reference.namespace, plan.group_id, index, error)
        delivery = _delivery(packed, plan, reference, payload)
        create = partial(_create_chunk, packed.backend, spec, reference, delivery)
        was_submitted = not plan.is_new and store.find(object_names.finished(plan.group_id)) is not None
        for part in [] if was_submitted else parts:
            create(part)
        if was_submitted and plan.skip_done:
            resume(packed.backend, reference, good, lambda number, rest: create(_part(plan, number, rest)))
        store.create_if_absent(object_names.finished(plan.group_id), json.dumps({"dropped": []}).encode())
        undo.pop_all()
    return reference, dict(inputs.failures)


def write_inputs(
    packed: Packed,
    items: Sequence[Any],
    plan: Plan,
    path: Path,
    most: int = BLOCK_INPUTS,
    indexes: Iterable[int] | None = None,
) -> Inputs:
    """Write the arguments of all inputs, or of these, to a file, at most `most` to a block.

    Raises NeedsOwnJobs.
    """
    failures: dict[int, Exception] = {}
    mounts: set[BucketMount] = set()
    with path.open("wb") as stream:
        blocks = InputBlocks(cast("BinaryIO", stream), most)
        for index in range(len(items)) if indexes is None else indexes:
            try:
                args, kwargs = arguments_of(items[index], plan.input_mode)
                arguments, wanted = pickle_arguments(packed, args, kwargs)
            except Exception as exc:  # noqa: BLE001  this input's failure; the others go on
                failures[index] = exc
                continue
            mounts.update(wanted)
            blocks.add(index, arguments)
        sha256 = blocks.close()
    if not mounts <= set(packed.buckets):
        raise NeedsOwnJobs
    return Inputs(path, inputs_object(plan.group_id, sha256), blocks.blocks, failures)


class NeedsOwnJobs(Exception):
    """Inputs differ in what their pods need: each needs a Job of its own. Nothing was stored."""


def described(
    packed: Packed, items: Sequence[Any], plan: Plan, inputs: Inputs
) -> tuple[JobSpec, JobReference]:
    """Return the specification of the inputs' jobs, and the reference of the batch."""
    spec = replace(
        packed.spec,
        output_dir=output_dirs(packed, plan.group_id),
        buckets=packed.buckets,
        group_id=plan.group_id,
        shipped=packed.tree_bytes + packed.substitutes.size,
    )
    digest = batch_digest(packed, items, plan, inputs.object_name.encode())
    group = Group(plan.group_id, "map", None)
    return spec, reference_of(packed, spec, plan.group_id, digest, group)


def output_dirs(packed: Packed, group_id: str) -> str:
    """Return what the output directories of a batch's inputs begin with; the index of the input follows."""
    first = object_names.input_id(group_id, 0)
    place = output_dir(asked_output_dir(packed.options, packed.settings), packed.backend.store.uri, first, 0)
    return place.removesuffix("0")


def batch_payload(packed: Packed, spec: JobSpec, reference: JobReference, inputs: Inputs) -> bytes:
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
        client_package=packed.client_package,
    )


def store_batch(
    packed: Packed, plan: Plan, reference: JobReference, size: int, scheduler: str, **more: Any
) -> JobReference:
    """Store the manifest of a batch; return the reference with the time of an equal batch that exists.

    Raises JobConflict if the id belongs to a batch of another call.
    """
    store = packed.backend.store
    told = plan.manifest(size, packed.function_name, scheduler, reference=reference.to_dict(), **more)
    name, content = manifest_object(plan.group_id), told
    if store.create_if_absent(name, json.dumps(content, sort_keys=True).encode()):
        return reference
    known = stored_whole(packed.backend, plan.group_id)
    if known is None or known[0].spec_digest != reference.spec_digest:
        raise other_batch(plan.group_id)
    return replace(reference, created_at=known[0].created_at)


def _store_entry(packed: Packed, plan: Plan, reference: JobReference, size: int) -> None:
    """Store the batch's entry of the index: one, of the time that the batch has."""
    user = packed.backend.connections.settings.user
    facts = {**index_metadata(reference, plan.origin, user=user), INPUTS: str(size)}
    packed.backend.store.create_if_absent(index_object(reference), b"", facts)


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


def _delivery(packed: Packed, plan: Plan, reference: JobReference, payload: bytes) -> Delivery:
    around = packed.backend.surroundings(reference.namespace, packed.spec.pod.service_account)
    around = replace(around, environment={**plan.environment, **around.environment})
    return Delivery(stored_runner(packed.backend), payload, "", around, plan.origin)


def _create_chunk(
    backend: Backend, spec: JobSpec, reference: JobReference, delivery: Delivery, part: Chunk
) -> None:
    key_id, key = new_key(backend, reference.namespace, reference.job_id, reference.spec_digest)
    own = replace(delivery, outcome_key=key, key_id=key_id)
    backend.create(chunk_job(job_manifest(spec, chunk_reference(reference, part.number), own), part))


def _undo(backend: Backend, reference: JobReference, parts: Sequence[Chunk]) -> None:
    """Remove everything of a new batch that could not be created whole, also Jobs whose pods run already.

    What is stored stays with Jobs that cannot be removed, so that they can be found. A failure here hides
    nothing of why the batch was refused.
    """
    try:
        backend.remove(reference.namespace, *(chunk_id(reference.job_id, part.number) for part in parts))
        backend.store.delete_all(object_names.batch(reference.job_id, ""))
        backend.store.delete(index_object(reference))
    except KineticError as exc:
        told = "%s was not submitted whole, and cannot all be removed: %s. `kinetic batch cancel %s` stops it"
        _LOG.warning(told, reference.job_id, exc, reference.job_id)


class IndexedScheduler:
    """Scheduler of a batch that the cluster runs without a client, as a few Indexed Jobs."""

    def __init__(self, backend: Backend, whole: JobReference) -> None:
        assert backend.parts is not None  # noqa: S101  only there inputs share Jobs
        self.backend, self._parts = backend, backend.parts
        self._namespace, self._group_id = whole.namespace, whole.job_id
        self._keys = _Keys(backend.parts, whole)

    def statuses(self, board: Board) -> list[tuple[int, JobStatus]]:
        """Return index and status of every submitted job, with two requests while some have not ended."""
        with board.changed:
            known = {index: seen.status for index, seen in board.ended.items()}
            jobs = [index for index, job in enumerate(board.jobs) if job is not None]
        running = self._parts.running(self._namespace, self._group_id) if len(known) < len(jobs) else set()
        alive = {True: JobStatus.RUNNING, False: JobStatus.PENDING}
        return [(index, known.get(index) or alive[index in running]) for index in jobs]

    def stop(self) -> None:
        """Start no further input: a pod that begins one finds its chunk's mark, and ends."""
        for job in self._parts.parts(self._namespace, self._group_id):
            mark = object_names.chunk_cancel(self._group_id, key_id_of(job))
            self.backend.store.create_if_absent(mark, b"")

    def cancel(self, board: Board, tell: Tell) -> None:  # noqa: ARG002  the inputs of a Job end all at once
        """Start no further input and stop every living job; return when none of their pods runs.

        The kernel drops the signal to a container whose Python has not begun yet. Such a pod would run its
        input until its grace is over, so it finds a mark in the store.
        """
        finish(self.backend, self._group_id, board)
        self.stop()
        errors = in_parallel(lambda part: self.backend.delete(self._namespace, part), self._part_ids())
        for _, error in errors:
            if error is not None:
                raise error

    def value(self, job: JobHandle) -> Any:
        """Return the value of a job that has ended, or raise its exception."""
        try:
            return job.collect(key=self._key)
        except JobNotFound:  # its runner was killed with its container: what is known of that is written now
            reconcile(self.backend, job)
            return job.collect(key=self._key)

    def discard(self, jobs: Sequence[JobHandle]) -> None:  # noqa: ARG002  the Jobs are not those of single inputs
        """Remove each Job and the inputs' payloads; until all values are collected, their keys are needed."""
        try:
            self.backend.remove(self._namespace, *self._part_ids())
            store = self.backend.store
            for stored in (inputs_object, object_names.batch_payload):
                pattern = stored(self._group_id, "*")
                store.delete_many([info.name for info in store.list(pattern.rstrip("*"), pattern)])
        except (KineticError, OSError) as exc:
            _LOG.warning("cleaning up after %s: %s", self._group_id, exc)

    def remove(self, jobs: Sequence[JobHandle], *, k8s: bool, gcs: bool) -> None:  # noqa: ARG002
        """Remove the batch's Kubernetes objects, and with `gcs` all its stored objects but outputs."""
        if k8s:
            self.backend.remove(self._namespace, *self._part_ids())
        if gcs:
            forget(self.backend.store, self._group_id)

    def when_left(self, living: int) -> str:
        """Say that the batch needs no client."""
        return f"goes on in the cluster, {living} of its jobs have not ended"

    def _key(self, _backend: Backend, reference: JobReference) -> bytes | None:
        return self._keys.of(reference)

    def _part_ids(self) -> list[str]:
        jobs = self._parts.parts(self._namespace, self._group_id)
        return [str(job["metadata"]["labels"][JOB_ID]) for job in jobs]


class _Keys:
    """Keys of outcomes, read once: they vanish with the Jobs, and values may be read again."""

    def __init__(self, parts: Parts, whole: JobReference) -> None:
        self._parts, self._whole = parts, whole
        self._lock = threading.Lock()
        self._of: dict[int, bytes] | None = None

    def of(self, child: JobReference) -> bytes | None:
        """Return the key of one input's outcome; None if the Job that had the key is gone."""
        assert child.group_index is not None  # noqa: S101  it is a batch's
        with self._lock:
            if self._of is None:
                self._of = {}
                for job in self._parts.parts(self._whole.namespace, self._whole.job_id):
                    key = outcome_key(job)
                    if key is not None:
                        self._of |= dict.fromkeys(indexes_of(job), key)
            key = self._of.get(child.group_index)
        return None if key is None else wire.input_key(key, child.group_index)


def start_indexed(packed: Packed, items: Sequence[Any], plan: Plan) -> BatchHandle:
    """Submit everything and watch it; the client is not needed from here on."""
    whole, failures = submit_batch(packed, items, plan)
    found = _Stored(packed.backend, whole, len(items))
    board = found.board(failures, follows=True)
    found.watch(board)
    return BatchHandle(whole.job_id, plan.name, plan.tags, board, IndexedScheduler(packed.backend, whole))


def attach_indexed(
    backend: Backend, group_id: str, manifest: Mapping[str, Any], interval: float, timeout: float | None
) -> BatchHandle:
    """Attach to a stored batch. Until all inputs have a Job, a thread looks every `interval` seconds."""
    whole = checked_reference(manifest["reference"], group_id, backend)
    found = _Stored(backend, whole, int(manifest["total_expected"]))
    failures = noted_failures(backend, whole.namespace, whole.job_id)
    board = found.board(failures, follows=False)
    if found.is_submitted(board):
        found.watch(board)
    else:
        name = f"kinetic-{whole.job_id}"
        threading.Thread(target=found.wait, args=(board, interval, timeout), name=name, daemon=True).start()
    return BatchHandle(
        group_id, manifest["group_name"], manifest["tags"], board, IndexedScheduler(backend, whole)
    )


@dataclass(frozen=True)
class _Stored:
    """Batch as the store and the cluster have it."""

    backend: Backend
    whole: JobReference
    size: int

    def board(self, failures: Mapping[int, Exception], *, follows: bool) -> Board:
        board = Board(self.size, follows=follows)
        board.submission_failures = dict(failures)
        children = (input_reference(self.whole, index) for index in range(self.size))
        jobs = (JobHandle.of(child, self.backend.connections) for child in children)
        board.fill([None if i in failures else job for i, job in enumerate(jobs)])
        return board

    def is_submitted(self, board: Board) -> bool:
        """Return whether every input has a Job, or had one."""
        if self.backend.store.find(object_names.finished(self.whole.job_id)) is not None:
            return True
        submitted = {index for job in self._parts() for index in indexes_of(job)}
        return len(submitted | board.submission_failures.keys()) == self.size

    def watch(self, board: Board) -> None:
        """Fill the board from a watch from now on."""
        ChunkWatch(self.backend, self.whole, board).start(self._parts())

    def wait(self, board: Board, interval: float, timeout: float | None) -> None:
        """Look again until all is submitted; then, or after `timeout` seconds, watch the existing Jobs."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause, look = threading.Event(), Look(board, self.whole.job_id)
        while not pause.wait(interval):
            try:
                is_late = board.stopping or (deadline is not None and time.monotonic() > deadline)
                if is_late or self.is_submitted(board):
                    self.watch(board)
                    return
                look.went_well()
            except Exception as exc:  # noqa: BLE001  nobody else would tell those who wait
                if not look.goes_on_after(exc):
                    return

    def _parts(self) -> Sequence[Mapping[str, Any]]:
        """Return the Jobs. Raises MalformedObject if the manifest names fewer inputs than they have."""
        assert self.backend.parts is not None  # noqa: S101  only there inputs share Jobs
        jobs = self.backend.parts.parts(self.whole.namespace, self.whole.job_id)
        size = 1 + max((index for job in jobs for index in indexes_of(job)), default=-1)
        if size > self.size:
            name = manifest_object(self.whole.job_id)
            raise malformed(self.backend.store, name, f"it names {self.size} inputs, its Jobs have {size}")
        return jobs
