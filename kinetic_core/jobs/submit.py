"""Submission of a prepared call: idempotent for one job id, and undone if it fails half-way."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.fallbacks import every_manifest, first_of
from kinetic_core.backends.kubernetes.manifest import Delivery
from kinetic_core.concurrency import at_once
from kinetic_core.errors import (
    ClusterError,
    ConfigurationError,
    JobConflict,
    ObjectNotFound,
    UnverifiedResult,
)
from kinetic_core.job import JobReference, JobSpec
from kinetic_core.jobs.cancel import index_object
from kinetic_core.jobs.facts import observed
from kinetic_core.jobs.fallback import passed_over
from kinetic_core.jobs.listing import index_metadata
from kinetic_core.jobs.observe import find
from kinetic_core.jobs.prepare import Call, Prepared, prepare
from kinetic_core.jobs.runner_archive import stored_runner
from kinetic_core.jobs.signing import UNVERIFIED, job_key
from kinetic_core.store.protocol import ObjectStore

__all__ = ["Call", "Prepared", "Unsent", "deliver", "prepare", "submit"]


@dataclass(frozen=True)
class Unsent:
    """Job that may not exist yet: its payload, and a function that makes its Jobs.

    `manifests` takes the reference that counts: this one, with the time of an equal submission, and with its
    accelerator if that is one of the `meanings` of the name that was asked for.
    """

    reference: JobReference
    payload: bytes
    manifests: Callable[[JobReference], Sequence[dict[str, Any]]]
    is_new: bool = False
    meanings: Collection[str] = ()


def submit(
    prepared: Prepared, environment: Mapping[str, str] | None = None, origin: str = ""
) -> JobReference:
    """Store the payload and create the job; return the reference of the job that now exists.

    `environment`: variables that a new job's process gets besides; `origin`: a JSON object of texts, for
    lists and on the Job, that says who submits. Neither is part of the call: two submissions that differ only
    in them are equal.

    Submitting an equal call under the same id, from any process, at any time, adopts the job that exists,
    with the payload that its Job names. Raises JobConflict if the id belongs to a different call, StoreError
    or the backend's error if the job cannot be created. Then everything of a job with a generated id is
    removed; with an id that the caller chose, stored objects stay, because another submitter may have adopted
    the job.
    """

    if prepared.spec.warm is not None:
        from kinetic_core.jobs.warm import submit_warm

        return submit_warm(prepared, environment, origin)

    def manifests(reference: JobReference) -> Sequence[dict[str, Any]]:
        around = prepared.backend.surroundings(reference.namespace, prepared.spec.pod.service_account)
        around = replace(around, environment={**(environment or {}), **around.environment})
        runner = stored_runner(prepared.backend)
        key_id, key = job_key(prepared.backend, reference)
        delivery = Delivery(runner, prepared.payload, key, around, origin, key_id)
        return every_manifest(_on_hardware(prepared.spec, reference), reference, delivery)

    meanings = frozenset(map(str, prepared.spec.accelerator.meanings))
    unsent = Unsent(prepared.reference, prepared.payload, manifests, prepared.is_new, meanings)
    return deliver(prepared.backend, unsent, origin)


def deliver(backend: Backend, unsent: Unsent, origin: str = "") -> JobReference:
    """Create a job that was prepared before, perhaps by another process; otherwise as `submit`."""
    reference, store = unsent.reference, backend.store
    existing = None if unsent.is_new else find(backend, reference.job_id)
    if existing is not None:
        reference = _begun(unsent, existing)
        if store.find(object_names.result(reference.job_id)) is not None:
            if (seen := observed(backend, existing)).reason == UNVERIFIED:
                raise UnverifiedResult(
                    f"{reference.job_id} cannot be submitted: where its outcome will be there is one that "
                    f"nobody can verify ({seen.message}). Remove it with cleanup(), or use another job id"
                )
            return reference
    made: list[str] = []
    asked = False  # before it is asked for, the job is certainly absent
    try:
        if unsent.is_new:
            reference = _stored_at_once(backend, unsent, made, origin)
        else:
            _store_payload(store, unsent, made)
            reference = _stored_reference(backend, unsent, made, origin)
        every = unsent.manifests(reference)
        reached = 0 if unsent.is_new else len(passed_over(backend, reference))
        asked = True
        backend.create(first_of(every, reached))
    except BaseException:
        if unsent.is_new and (not asked or is_absent(backend, reference)):
            for name in made:
                store.delete(name)
        raise
    return reference


def is_absent(backend: Backend, reference: JobReference) -> bool:
    """Return whether the job was certainly not created."""
    try:
        return backend.get(reference.namespace, reference.job_id) is None
    except (ClusterError, ConfigurationError):
        return False


def _stored_at_once(backend: Backend, unsent: Unsent, made: list[str], origin: str) -> JobReference:
    """Store payload, handle and index entry of a new job at the same time; return the reference that counts.

    None of them needs another one: until the job is created nobody looks for it, and each is removed alone.
    """
    known = unsent.reference
    at_once(
        lambda: _store_payload(backend.store, unsent, made),
        lambda: _store_entry(backend, known, made, origin),
        lambda: _store_handle(backend.store, known, made),
    )
    if object_names.handle(known.job_id) in made:
        return known
    if (entry := index_object(known)) in made:  # it would list the job that exists a second time
        made.remove(entry)
        backend.store.delete(entry)
    return _stored_reference(backend, unsent, made, origin)


def _store_payload(store: ObjectStore, unsent: Unsent, made: list[str]) -> None:
    """Store the payload under a name that contains the digest of its content.

    The payload of an equal submission may have other bytes, and another name. The Job that is created first
    says which one counts.
    """
    name = object_names.payload(unsent.reference.job_id, wire.digest(unsent.payload))
    if store.create_if_absent(name, unsent.payload):
        made.append(name)  # else whatever is there: a pod takes nothing of another digest


def _stored_reference(backend: Backend, unsent: Unsent, made: list[str], origin: str) -> JobReference:
    """Return the reference that counts, with the time of the reference that is stored now."""
    reference = unsent.reference
    if not _store_handle(backend.store, reference, made):
        existing = find(backend, reference.job_id)
        if existing is None:
            raise ObjectNotFound(f"{reference.job_id} was removed just now; submit again")
        return _begun(unsent, existing)
    _store_entry(backend, reference, made, origin)
    return reference


def _store_handle(store: ObjectStore, reference: JobReference, made: list[str]) -> bool:
    """Store the handle; return False if there is one."""
    handle = object_names.handle(reference.job_id)
    content = json.dumps(reference.to_dict(), sort_keys=True).encode()
    if not store.create_if_absent(handle, content):
        return False
    made.append(handle)
    return True


def _store_entry(backend: Backend, reference: JobReference, made: list[str], origin: str) -> None:
    """Store the job's entry of the index."""
    entry, about = (
        index_object(reference),
        index_metadata(reference, origin, backend.connections.settings.user),
    )
    if backend.store.create_if_absent(entry, b"", about):
        made.append(entry)  # else a submitter left it that died right after it


def _begun(unsent: Unsent, existing: JobReference) -> JobReference:
    """Return the reference with the times of an existing one, and with its accelerator if that is one of the
    machines that carry the name: there may be other pools now. Raises JobConflict.

    Nothing else of a stored reference goes into a Job: others who can write to the store could name an image.
    """
    reference = unsent.reference
    _same(existing.spec_digest, reference)
    if existing.accelerator in unsent.meanings:
        reference = replace(reference, accelerator=existing.accelerator)
    return replace(reference, created_at=existing.created_at, preparation=existing.preparation)


def _on_hardware(spec: JobSpec, reference: JobReference) -> JobSpec:
    """Return the specification for the machine that the reference says."""
    first = spec.accelerator
    chosen = next((each for each in first.meanings if str(each) == reference.accelerator), first)
    return spec if chosen == first else replace(spec, accelerator=first.meaning(chosen))


def _same(digest: str, reference: JobReference) -> None:
    if digest != reference.spec_digest:
        raise JobConflict(
            f"{reference.job_id} exists already and is a different call (other function, arguments, files or "
            "options); use another job id"
        )
