"""Submitting a prepared call: idempotent for one job id, and undone if it fails half-way."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kinetic_core._runner import wire
from kinetic_core.cluster.bootstrap import runner_archive
from kinetic_core.cluster.choices import every_manifest, first_of
from kinetic_core.cluster.manifest import Delivery
from kinetic_core.errors import ClusterError, JobConflict, ObjectExists, ObjectNotFound
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.ending import index_object
from kinetic_core.lifecycle.moving_on import passed_over
from kinetic_core.lifecycle.observing import find
from kinetic_core.lifecycle.preparing import Call, Prepared, prepare
from kinetic_core.lifecycle.summaries import index_metadata
from kinetic_core.model.job import JobReference
from kinetic_core.storage.protocol import ObjectStore

_SEEN_SECONDS = 600.0
_seen: dict[tuple[str, str], float] = {}
"""When (monotonic) this process last saw the runner in a store far away: a request less a submission."""

__all__ = ["Call", "Prepared", "Unsent", "deliver", "prepare", "submit"]


@dataclass(frozen=True)
class Unsent:
    """A job that nobody may have seen yet: its payload, and what makes its Jobs.

    `manifests` takes the reference and the payload that count, which may be those of an equal submission.
    """

    reference: JobReference
    payload: bytes
    manifests: Callable[[JobReference, bytes], Sequence[dict[str, Any]]]
    is_new: bool = False


def submit(
    prepared: Prepared, environment: Mapping[str, str] | None = None, origin: str = ""
) -> JobReference:
    """Store the payload and create the job; the reference of the job that now exists.

    `environment` is what a new job's process sees besides; `origin`, a JSON object of texts, says who asks
    for the job, for lists and on the Job. They are no part of the call: two submissions that differ in them
    are the same.
    Submitting the same call under the same id again, from any process, at any time, leads to the same
    job. Raises JobConflict if the id belongs to a different call, StoreError or the backend's error if
    it cannot be created; then nothing of it is left.
    """

    def manifests(reference: JobReference, payload: bytes) -> Sequence[dict[str, Any]]:
        around = prepared.backend.surroundings(reference.namespace)
        around = replace(around, environment={**(environment or {}), **around.environment})
        runner, key = stored_runner(prepared.backend.store), secrets.token_hex(32)
        return every_manifest(
            prepared.spec, reference, Delivery(runner, wire.digest(payload), key, around, origin)
        )

    unsent = Unsent(prepared.reference, prepared.payload, manifests, prepared.is_new)
    return deliver(prepared.backend, unsent, origin)


def deliver(backend: Backend, unsent: Unsent, origin: str = "") -> JobReference:
    """The same of what has been prepared before, perhaps by another process."""
    reference, store = unsent.reference, backend.store
    existing = None if unsent.is_new else find(backend, reference.job_id)
    if existing is not None:
        _same(existing.spec_digest, reference)
        if store.find(wire.result_object(reference.job_id)) is not None:
            return existing
    made: list[str] = []
    try:
        payload = _stored_payload(store, unsent, made)
        reference = _stored_reference(backend, reference, made, origin)
        every = unsent.manifests(reference, payload)
        reached = 0 if unsent.is_new else len(passed_over(store, reference))
        backend.create(first_of(every, reached))
    except BaseException:
        if is_absent(backend, reference):
            for name in made:
                store.delete(name)
        raise
    return reference


def is_absent(backend: Backend, reference: JobReference) -> bool:
    """Whether the job was certainly not created."""
    try:
        return backend.get(reference.namespace, reference.job_id) is None
    except ClusterError:
        return False


def _stored_payload(store: ObjectStore, unsent: Unsent, made: list[str]) -> bytes:
    """The payload that is in the store now: this one, or an equal call's that was there."""
    name = wire.payload_object(unsent.reference.job_id)
    try:
        store.create(name, unsent.payload)
    except ObjectExists:
        payload = store.read(name)
        header, _ = wire.decode_frame(payload)
        _same(str(header.get("spec_digest")), unsent.reference)
        return payload
    made.append(name)
    return unsent.payload


def _stored_reference(
    backend: Backend, reference: JobReference, made: list[str], origin: str
) -> JobReference:
    handle = wire.handle_object(reference.job_id)
    try:
        backend.store.create(handle, json.dumps(reference.to_dict(), sort_keys=True).encode())
    except ObjectExists:
        existing = find(backend, reference.job_id)
        if existing is None:
            raise ObjectNotFound(f"{reference.job_id} was removed just now; submit again") from None
        _same(existing.spec_digest, reference)
        return existing
    made.append(handle)
    entry = index_object(reference)
    try:
        backend.store.create(entry, b"", index_metadata(reference, origin))
        made.append(entry)
    except ObjectExists:
        return reference  # left by a submitter that died right after it
    return reference


def stored_runner(store: ObjectStore) -> str:
    """The digest of the runner, which is in the store now."""
    sha256, archive = runner_archive()
    name = wire.runner_object(sha256)
    seen = _seen.get((store.uri, sha256))
    if seen is not None and time.monotonic() - seen < _SEEN_SECONDS:
        return sha256
    if store.find(name) is None:
        try:
            store.create(name, archive)
        except ObjectExists:
            return sha256  # another submitter was quicker with the same bytes
    if not store.uri.startswith("file:"):
        _seen[store.uri, sha256] = time.monotonic()
    return sha256


def _same(digest: str, reference: JobReference) -> None:
    if digest != reference.spec_digest:
        raise JobConflict(
            f"{reference.job_id} exists already and is a different call (other function, arguments, files or "
            "options); use another job id"
        )
