"""Queue of a batch whose inputs have a Job each: jobs that any client can create when their turn comes.

One object holds all payloads, the manifests without the keys of their outcomes, and the rules of starting.
Its digest and size are kept in the cluster: a queue that somebody else wrote into the bucket is ignored
(ADR 0040).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from kinetic_core._runner import wire
from kinetic_core._runner.object_names import input_id
from kinetic_core._runner.store import ObjectTooLarge, read_at_most
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.fallbacks import every_manifest
from kinetic_core.backends.kubernetes.manifest import Delivery
from kinetic_core.backends.kubernetes.queue import with_key
from kinetic_core.batches.definition import Plan, arguments_of, line_object
from kinetic_core.errors import StoreError
from kinetic_core.job import JobReference
from kinetic_core.jobs.bundle import Packed
from kinetic_core.jobs.prepare import Group, address, timestamp
from kinetic_core.jobs.references import checked_reference
from kinetic_core.jobs.runner_archive import stored_runner
from kinetic_core.jobs.signing import new_key
from kinetic_core.jobs.submit import Unsent, deliver


@dataclass(frozen=True)
class Waiting:
    """Job of an input that waits for its turn. `manifests`: its Job, or one for each of its accelerators."""

    reference: JobReference
    payload: bytes
    manifests: Sequence[Mapping[str, Any]]

    def start(self, backend: Backend) -> JobReference:
        """Create the job unless it exists or has ended; return the reference that counts.

        Raises as submitting a job does.
        """

        def manifests(job: JobReference) -> list[dict[str, Any]]:
            key_id, key = new_key(backend, job.namespace, job.job_id, job.spec_digest)
            return [with_key(manifest, key, key_id) for manifest in self.manifests]

        reference = replace(self.reference, created_at=timestamp())  # its waiting was the batch's
        return deliver(backend, Unsent(reference, self.payload, manifests))


Line = Sequence[Waiting | None]
"""Jobs by index; None for an input that cannot be submitted."""


@dataclass(frozen=True)
class Rules:
    """Rules of starting inputs: at most `max_concurrent` jobs live at once (None: any number).

    `fail_fast`: no input starts after one has failed; `cancel_running`: running inputs are stopped, too.
    """

    max_concurrent: int | None
    fail_fast: bool
    cancel_running: bool


def packed_line(
    packed: Packed, items: Sequence[Any], plan: Plan
) -> tuple[dict[int, Waiting], dict[int, Exception]]:
    """Build the job of each input, and the errors of inputs without a job. Stores the data in the inputs."""
    around = packed.backend.surroundings(packed.spec.namespace, packed.spec.pod.service_account)
    runner = stored_runner(packed.backend)
    waiting: dict[int, Waiting] = {}
    failures: dict[int, Exception] = {}
    for index, item in enumerate(items):
        try:
            args, kwargs = arguments_of(item, plan.input_mode)
            job_id, group = input_id(plan.group_id, index), Group(plan.group_id, "map", index)
            prepared = address(packed, args, kwargs, job_id=job_id, group=group)
        except Exception as exc:  # noqa: BLE001  this input's failure; the others go on
            failures[index] = exc
            continue
        delivery = Delivery(runner, prepared.payload, "", around)
        manifests = every_manifest(prepared.spec, prepared.reference, delivery)
        waiting[index] = Waiting(prepared.reference, prepared.payload, manifests)
    return waiting, failures


def line_frame(waiting: Mapping[int, Waiting], size: int, rules: Rules) -> bytes:
    """Encode the queue of `size` inputs for the store."""
    jobs = {
        str(index): {"reference": one.reference.to_dict(), "manifests": list(one.manifests)}
        for index, one in waiting.items()
    }
    header: dict[str, object] = {
        "protocol": wire.PROTOCOL,
        "size": size,
        "jobs": jobs,
        "rules": asdict(rules),
    }
    return wire.encode_frame(header, {str(index): one.payload for index, one in waiting.items()})


def line_name(frame: bytes) -> str:
    """Return what the namespace keeps of a queue: its digest and its number of bytes."""
    return f"{wire.digest(frame)}-{len(frame)}"


def read_line(backend: Backend, namespace: str, group_id: str, line: str) -> tuple[Line, Rules] | None:
    """Read the queue with a digest and a size that the namespace keeps; None for one of an earlier version.

    Raises ObjectNotFound if the queue is not stored, StoreError if another object is stored or the queue is
    for another namespace.
    """
    _, _, size = line.partition("-")
    written_over = StoreError(
        f"the queue of {group_id} in {backend.store.uri} was written over since its batch was created: "
        "it is not used"
    )
    try:
        frame = read_at_most(backend.store, line_object(group_id, line), int(size or wire.LARGEST_DOCUMENT))
    except ObjectTooLarge as exc:
        raise written_over from exc
    if line not in (line_name(frame), wire.digest(frame)):
        raise written_over
    header, payloads = wire.decode_frame(frame)
    jobs = cast("dict[str, Any]", header["jobs"])

    def at(index: int) -> Waiting | None:
        job = jobs.get(str(index))
        if job is None:
            return None
        reference = checked_reference(job["reference"], input_id(group_id, index), backend)
        if {reference.namespace, *(each["metadata"]["namespace"] for each in job["manifests"])} != {
            namespace
        }:
            raise StoreError(
                f"the queue of {group_id} names another namespace than {namespace!r}: it is not used"
            )
        return Waiting(reference, payloads[str(index)], job["manifests"])

    if "rules" not in header:
        return None
    return [at(index) for index in range(cast("int", header["size"]))], Rules(**header["rules"])
