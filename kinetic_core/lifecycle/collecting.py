"""Collecting a job's outcome: read, verified against the job's key, decoded."""

from __future__ import annotations

from collections.abc import Callable

from kinetic_core._runner import wire
from kinetic_core.configuration import read_settings
from kinetic_core.errors import JobNotFound, ObjectNotFound
from kinetic_core.lifecycle.backends import backend_of
from kinetic_core.lifecycle.outcome import Outcome, read_outcome
from kinetic_core.lifecycle.references import ResultReference
from kinetic_core.lifecycle.settling import look, outcome_key
from kinetic_core.model.job import JobReference
from kinetic_core.packaging.doubts import doubt

_MISSING = "MissingObject"
"""The runner's exception for an object that is not in the store."""


KeyOf = Callable[[JobReference], bytes | None]
"""The key that signs a job's outcome; None if it is gone."""


def key_of(reference: JobReference) -> bytes | None:
    """From the job's own Job."""
    found = backend_of(reference).get(reference.namespace, reference.job_id)
    return outcome_key(found[0] if found else None)


def collect(
    reference: JobReference,
    *,
    allow_pickle: bool | None = None,
    known_digest: str | None = None,
    key: KeyOf = key_of,
) -> Outcome:
    """The committed outcome of a job that has ended.

    `allow_pickle` None lets its value be unpickled if the signature could be verified (with the Job gone,
    its key is gone), True in any case, False never. `known_digest` is of an outcome verified before.
    Raises JobNotFound if no outcome is there, UnverifiedResult if it is not the job's own.
    """
    frame = _frame(reference)
    signed_with = key(reference)
    known = known_digest is not None and known_digest == wire.digest(frame)
    outcome = read_outcome(
        frame, signed_with, job_id=reference.job_id, allow_pickle=allow_pickle, known=known
    )
    if outcome.failure is not None and (outcome.failure.exception_type or "").endswith(_MISSING):
        doubt(read_settings().cache, reference.store_uri)  # so that the next submission stores it again
    return outcome


def result_reference(reference: JobReference, outcome: Outcome) -> ResultReference:
    """Where a value lies, for another job to load it without this process ever decoding it."""
    return ResultReference(
        store_uri=reference.store_uri,
        object_name=wire.result_object(reference.job_id),
        sha256=wire.digest(_frame(reference)),
        job_id=reference.job_id,
        type_name=outcome.result_type or "object",
    )


def _frame(reference: JobReference) -> bytes:
    backend, name = backend_of(reference), wire.result_object(reference.job_id)
    try:
        return backend.store.read(name)
    except ObjectNotFound:
        look(backend, reference)  # settles what has ended, or raises what keeps it from being settled
    try:
        return backend.store.read(name)
    except ObjectNotFound as exc:
        raise JobNotFound(
            f"{reference.job_id} has no outcome in {reference.store_uri}: it has not ended, or its "
            "objects were removed"
        ) from exc
