"""Ending a job: cancelling it while it lives, removing what is left of it afterwards."""

from __future__ import annotations

import calendar
import json
import logging
import time
from collections.abc import Iterable
from dataclasses import replace

from kinetic_core._runner import wire
from kinetic_core.errors import InvalidRequest, KineticError, ObjectExists
from kinetic_core.lifecycle.backends import backend_of
from kinetic_core.lifecycle.settling import is_over, look, settle
from kinetic_core.model.job import JobReference

_LOG = logging.getLogger(__name__)


def cancel(reference: JobReference) -> None:
    """Stop the job and return when nothing of it runs. Idempotent; a finished job keeps its outcome.

    The marker comes first, so that an attempt which is starting just now reads it before user code.
    """
    backend = backend_of(reference)
    if look(backend, reference).is_terminal:
        return
    try:
        backend.store.create(wire.cancel_object(reference.job_id), json.dumps({"at": time.time()}).encode())
    except ObjectExists:
        pass  # somebody else cancels too: both make sure that it is dead
    backend.delete(reference.namespace, reference.job_id)
    seen = look(backend, reference)
    found = None if seen.is_terminal else backend.get(reference.namespace, reference.job_id)
    if found is not None:  # a batch's input that had not begun
        text = "it was cancelled before it started"
        failure = wire.Failure(wire.FailureClass.CANCELLED, text, "start")
        settle(backend, reference, found, replace(seen, failure=failure))


def cleanup(reference: JobReference, *, k8s: bool = True, gcs: bool = True) -> None:
    """Remove the job's Kubernetes object and pods (`k8s`) and its objects in the store (`gcs`).

    Outputs, project files and data stay. Raises InvalidRequest for a job that still runs: cancel first.
    """
    backend = backend_of(reference)
    found = backend.get(reference.namespace, reference.job_id)
    over = found is None or look(backend, reference).is_terminal or is_over(backend.store, reference, found)
    if not over:
        raise InvalidRequest(f"{reference.job_id} has not ended; call cancel() before cleanup()")
    if k8s and found is not None:
        backend.remove(reference.namespace, reference.job_id)
    if gcs:
        backend.store.delete_all(f"jobs/{reference.job_id}/")
        backend.store.delete(index_object(reference))


def drop_payloads(references: Iterable[JobReference]) -> None:
    """After success: the Kubernetes objects and the payloads go; handles, outcomes and logs stay.

    What cannot be removed now is told in a warning: the values are in hand and must not be lost for it.
    """
    places: dict[tuple[str, str], list[JobReference]] = {}
    for reference in references:
        places.setdefault((reference.store_uri, reference.namespace), []).append(reference)
    for (_, namespace), jobs in places.items():
        backend = backend_of(jobs[0])
        try:
            backend.remove(namespace, *(job.job_id for job in jobs))
            backend.store.delete_many([wire.payload_object(job.job_id) for job in jobs])
        except (KineticError, OSError) as exc:
            _LOG.warning("cleaning up after %s and %d more: %s", jobs[0].job_id, len(jobs) - 1, exc)


def index_object(reference: JobReference) -> str:
    """The entry that lets one listing name the newest jobs first."""
    created = time.strptime(reference.created_at, "%Y-%m-%dT%H:%M:%SZ")
    return f"index/{10**11 - calendar.timegm(created):012d}-{reference.job_id}"
