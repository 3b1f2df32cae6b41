"""The inputs of a batch that share Jobs, each with the identity of a job of its own."""

from __future__ import annotations

import json
from dataclasses import replace

from kinetic_core._runner import wire
from kinetic_core.cluster.parts import child_of
from kinetic_core.errors import ObjectNotFound
from kinetic_core.model.job import JobReference
from kinetic_core.storage.protocol import ObjectStore

MANIFEST = "manifest.json"


def child_reference(whole: JobReference, index: int) -> JobReference:
    """The reference of one input, from its batch's, which lacks what differs between them."""
    assert whole.group_id is not None  # noqa: S101  it is a batch's
    job_id = wire.child_id(whole.group_id, index)
    return replace(
        whole,
        job_id=job_id,
        group_index=index,
        display_name=f"kinetic-{whole.func_name}-{job_id}",
        output_dir=f"{whole.output_dir}{index}",
    )


def stored_child(store: ObjectStore, job_id: str) -> dict[str, object] | None:
    """What a handle of this input would say; None if it is not an input of such a batch in the store.

    Raises ValueError or TypeError for a manifest that is none.
    """
    child = child_of(job_id)
    if child is None:
        return None
    try:
        manifest = json.loads(store.read(wire.batch_object(child[0], MANIFEST)))
    except ObjectNotFound:
        return None
    if "reference" not in manifest or child[1] >= int(manifest["total_expected"]):
        return None
    return child_reference(JobReference.from_dict(manifest["reference"]), child[1]).to_dict()
