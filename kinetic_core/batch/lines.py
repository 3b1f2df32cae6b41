"""The jobs of a batch whose inputs have one each, ready to be created by whoever finds it is their turn.

One object holds all payloads and what the Jobs will be, without the keys of their outcomes. Its digest is
kept in the cluster: a line that somebody else has written into the bucket is not gone on with (ADR 0040).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from kinetic_core._runner import wire
from kinetic_core.batch.inputs import arguments_of
from kinetic_core.batch.names import child_id, line_object
from kinetic_core.batch.plan import Plan
from kinetic_core.cluster.choices import every_manifest
from kinetic_core.cluster.lines import with_key
from kinetic_core.cluster.manifest import Delivery
from kinetic_core.errors import StoreError
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.observing import placed
from kinetic_core.lifecycle.packing import Packed
from kinetic_core.lifecycle.preparing import Group, address, timestamp
from kinetic_core.lifecycle.submission import Unsent, deliver, stored_runner
from kinetic_core.model.job import JobReference


@dataclass(frozen=True)
class Waiting:
    """An input's job that waits for its turn. `manifests`: its Job, or one for each of its accelerators."""

    reference: JobReference
    payload: bytes
    manifests: Sequence[Mapping[str, Any]]

    def start(self, backend: Backend) -> JobReference:
        """Create it, unless it is there or has ended; the reference that counts.

        Raises what submitting a job raises.
        """

        def manifests(_: JobReference, __: bytes) -> list[dict[str, Any]]:
            key = secrets.token_hex(32)
            return [with_key(manifest, key) for manifest in self.manifests]

        reference = replace(self.reference, created_at=timestamp())  # its waiting was the batch's
        return deliver(backend, Unsent(reference, self.payload, manifests))


Line = Sequence[Waiting | None]
"""By index; None for an input that cannot be submitted."""


def packed_line(
    packed: Packed, items: Sequence[Any], plan: Plan
) -> tuple[dict[int, Waiting], dict[int, Exception]]:
    """The job of each input, and why others have none. Data in the inputs is stored."""
    around = packed.backend.surroundings(packed.spec.namespace)
    runner = stored_runner(packed.backend.store)
    waiting: dict[int, Waiting] = {}
    failures: dict[int, Exception] = {}
    for index, item in enumerate(items):
        try:
            args, kwargs = arguments_of(item, plan.input_mode)
            job_id, group = child_id(plan.group_id, index), Group(plan.group_id, "map", index)
            prepared = address(packed, args, kwargs, job_id=job_id, group=group)
        except Exception as exc:  # noqa: BLE001  this input's failure; the others go on
            failures[index] = exc
            continue
        delivery = Delivery(runner, wire.digest(prepared.payload), "", around)
        manifests = every_manifest(prepared.spec, prepared.reference, delivery)
        waiting[index] = Waiting(prepared.reference, prepared.payload, manifests)
    return waiting, failures


def line_frame(waiting: Mapping[int, Waiting], size: int) -> bytes:
    """What is stored of a line of `size` inputs."""
    jobs = {
        str(index): {"reference": one.reference.to_dict(), "manifests": list(one.manifests)}
        for index, one in waiting.items()
    }
    header: dict[str, object] = {"protocol": wire.PROTOCOL, "size": size, "jobs": jobs}
    return wire.encode_frame(header, {str(index): one.payload for index, one in waiting.items()})


def read_line(backend: Backend, namespace: str, group_id: str, sha256: str) -> Line:
    """The line with that digest, which a namespace keeps.

    Raises ObjectNotFound if it is not stored, StoreError if what is stored is something else, or is for
    another namespace than the one whose people have said that it counts.
    """
    frame = backend.store.read(line_object(group_id, sha256))
    if wire.digest(frame) != sha256:
        raise StoreError(
            f"the line of {group_id} in {backend.store.uri} is not the one that its batch was made with: "
            "somebody has written over it; not used"
        )
    header, payloads = wire.decode_frame(frame)
    jobs = cast("dict[str, Any]", header["jobs"])

    def at(index: int) -> Waiting | None:
        job = jobs.get(str(index))
        if job is None:
            return None
        reference = placed(JobReference.from_dict(job["reference"]), backend)
        if {reference.namespace, *(each["metadata"]["namespace"] for each in job["manifests"])} != {
            namespace
        }:
            raise StoreError(f"the line of {group_id} is for another namespace than {namespace!r}; not used")
        return Waiting(reference, payloads[str(index)], job["manifests"])

    return [at(index) for index in range(cast("int", header["size"]))]
