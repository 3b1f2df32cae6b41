"""End of a job: cancelling it while it lives, removing its objects afterwards."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.notes import encode_note
from kinetic_core.backends.base import Backend, backend_of
from kinetic_core.backends.kubernetes.set_objects import waits_for_worker
from kinetic_core.connections import Connections
from kinetic_core.errors import ClusterUnreachable, InvalidRequest, KineticError, ObjectNotFound
from kinetic_core.job import JobReference, JobStatus
from kinetic_core.jobs.facts import attempts_claimed, is_over, stored_outcome, worker_state
from kinetic_core.jobs.lanes import runs_on_lane
from kinetic_core.jobs.reconcile import reconcile, record_failure
from kinetic_core.jobs.signing import outcome_key
from kinetic_core.store.protocol import ObjectStore

_CALL_SECONDS = 90.0
_LOOK_SECONDS = 0.2
_LOG = logging.getLogger(__name__)


def cancel(backend: Backend, reference: JobReference) -> None:
    """Stop the job and return when none of its pods runs. Idempotent; a finished job keeps its outcome.

    The marker is written first, so that an attempt that is just starting reads the marker before user code.
    """
    if reconcile(backend, reference).is_terminal:
        return
    if runs_on_lane(reference):
        raise InvalidRequest(
            f"{reference.job_id} is an input of a map with warm=, which is cancelled as a whole: "
            f"attach_batch({reference.group_id!r}).cancel()"
        )
    mark = json.dumps({"at": time.time()}).encode()
    backend.store.create_if_absent(object_names.cancel(reference.job_id), mark)
    _end_on_worker(backend, reference)
    backend.delete(reference.namespace, reference.job_id)
    seen = reconcile(backend, reference)
    found = None if seen.is_terminal else backend.get(reference.namespace, reference.job_id)
    if found is not None:  # a batch's input that had not begun
        text = "it was cancelled before it started"
        failure = wire.Failure(wire.FailureClass.CANCELLED, text, "start")
        record_failure(backend, reference, found, seen, failure)


def _end_on_worker(backend: Backend, reference: JobReference) -> None:
    """End a call that a worker runs, and wait until it has; the worker goes on.

    Raises ClusterUnreachable if the call is not proven to be dead after a minute and a half. An attempt that
    nobody has claimed finds the marker after its claim.
    """
    name, until = object_names.end_call(reference.job_id), time.monotonic() + _CALL_SECONDS
    while True:
        found = backend.get(reference.namespace, reference.job_id)
        if found is None or not waits_for_worker(found[0]):
            return
        if stored_outcome(backend, reference, found[0]).status is not JobStatus.NOT_FOUND:
            return
        _tell_end(backend.store, name, encode_note(outcome_key(found[0]) or b"", name, {}))
        if not attempts_claimed(backend.store, reference.job_id, outcome_key(found[0])):
            return
        worker = worker_state(backend, reference.namespace, found[0])
        if worker.is_over:
            return
        if time.monotonic() > until:
            raise ClusterUnreachable(
                f"{reference.job_id} is told to end, but its worker, {worker.job_id}, does not say that it "
                f"has: its node may be unreachable. `kinetic jobs cancel {worker.job_id}` ends the worker"
            )
        time.sleep(_LOOK_SECONDS)


def _tell_end(store: ObjectStore, name: str, note: bytes) -> None:
    """Store the note that ends a call. What somebody else has stored there, the worker would ignore."""
    with suppress(ObjectNotFound):
        if not store.create_if_absent(name, note) and store.read_range(name, 0, len(note) + 1) != note:
            store.delete(name)
            store.create_if_absent(name, note)


def cleanup(backend: Backend, reference: JobReference, *, k8s: bool = True, gcs: bool = True) -> None:
    """Remove the job's Kubernetes object and pods (`k8s`) and its objects in the store (`gcs`).

    Outputs, project files and data stay. Raises InvalidRequest for a job that still runs: cancel first.
    """
    found = backend.get(reference.namespace, reference.job_id)
    over = found is None or reconcile(backend, reference).is_terminal or is_over(backend, reference, found)
    if not over:
        raise InvalidRequest(
            f"{reference.job_id} has not ended, and cleanup() removes only what has: cancel() it first"
        )
    if k8s and found is not None:
        backend.remove(reference.namespace, reference.job_id)
    if gcs:
        backend.store.delete_all(f"jobs/{reference.job_id}/")
        backend.store.delete(index_object(reference))


def drop_payloads(connections: Connections, references: Iterable[JobReference]) -> None:
    """Remove the Kubernetes objects and payloads of successful jobs; handles, outcomes and logs stay.

    Logs a warning for an object that cannot be removed now, so that the collected values are not lost.
    """
    places: dict[Any, list[JobReference]] = {}
    for reference in references:
        place = reference.backend, reference.cluster, reference.store_uri, reference.namespace
        places.setdefault(place, []).append(reference)
    for jobs in places.values():
        try:
            backend = backend_of(jobs[0], connections)
            backend.remove(jobs[0].namespace, *(job.job_id for job in jobs))
            delete_payloads(backend.store, jobs)
        except (KineticError, OSError) as exc:
            _LOG.warning("cleaning up after %s and %d more: %s", jobs[0].job_id, len(jobs) - 1, exc)


def delete_payloads(store: ObjectStore, references: Sequence[JobReference]) -> None:
    """Remove the payloads of these jobs, with one listing per job or per thousand inputs of a batch."""
    ids = {reference.job_id for reference in references}
    groups = {reference.group_id for reference in references if reference.group_id}
    alone = [reference.job_id for reference in references if not reference.group_id]
    places = [(f"jobs/{group}-", f"{group}-*") for group in groups]
    places += [(f"jobs/{job_id}/", job_id) for job_id in alone]
    names = (
        info.name
        for prefix, pattern in places
        for info in store.list(prefix, object_names.payload(pattern, "*"))
    )
    store.delete_many([name for name in names if name.split("/")[1] in ids])


def index_object(reference: JobReference) -> str:
    """Return the name of the job's index entry, which sorts newer jobs first in a listing."""
    created = int(datetime.fromisoformat(reference.created_at).timestamp())
    return f"index/{10**11 - created:012d}-{reference.job_id}"
