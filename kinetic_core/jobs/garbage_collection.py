"""Garbage collection: orphans, which dead clients left behind, and jobs that have been kept long enough.

A job that runs on without its client is no orphan: its deadline ends it. An orphan is a job that was stored
and never created, that was cancelled and still lives, that has ended and still holds nodes, or whose stored
objects are gone, so that it can never deliver its outcome; or a worker that does not end by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kinetic_core._runner import object_names
from kinetic_core.backends.base import Backend, Found
from kinetic_core.backends.kubernetes.set_objects import runs_in_set, waits_for_worker
from kinetic_core.backends.kubernetes.verdict import observe as verdict
from kinetic_core.errors import StoreError
from kinetic_core.job import JobObservation, JobStatus
from kinetic_core.jobs import cancel, observe
from kinetic_core.jobs.inputs import end_parts, forget, is_stored
from kinetic_core.jobs.listing import JobSummary, summaries
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.jobs.signing import UNVERIFIED
from kinetic_core.jobs.warm import overdue

RETENTION = 30 * 86400.0
"""Seconds for which handle, outcome and logs of a job are kept."""


@dataclass(frozen=True)
class Orphan:
    """Job or batch that can be removed. `stored` is False for a Job of the cluster that the store does not
    know; `kept` is True for a job that ended, but long ago. `is_batch`: a batch whose inputs share Jobs.
    """

    job_id: str
    namespace: str
    why: str
    stored: bool = True
    kept: bool = False
    is_batch: bool = False


def orphans(
    backend: Backend, namespace: str, older_than: float = 3600.0, retention: float = RETENTION
) -> list[Orphan]:
    """List the orphans of a namespace, and finished jobs submitted `retention` seconds ago. Changes nothing.

    A job stored less than `older_than` seconds ago is left out, because its submitter may still create it; so
    is a worker that should have ended less than that time ago. A job with an outcome that this account cannot
    verify counts as finished: the namespace's secret may be replaced, or not be readable for this account.
    """
    known = summaries(backend, namespace)
    there = backend.all(namespace)
    cancelled = {info.name.split("/")[1] for info in backend.store.list("jobs/", object_names.cancel("*"))}
    return [
        *_never_created(known, time.time() - older_than),
        *_still_alive(known, cancelled),
        *_long_over(known, time.time() - retention),
        *_held(known, there),
        *_waiting_too_long(backend, namespace, there, time.time() - older_than),
        *_unknown(backend, namespace, {job.job_id for job in known}, there),
        *_unknown_batches(backend, namespace, {job.job_id for job in known}),
    ]


def reap(backend: Backend, orphan: Orphan) -> None:
    """End an orphan and remove its objects; a job cancelled lately keeps its outcome. Idempotent.

    Outputs always stay.
    """
    if orphan.is_batch:
        if backend.parts is not None:
            end_parts(backend, orphan.namespace, backend.parts.parts(orphan.namespace, orphan.job_id))
        forget(backend.store, orphan.job_id)
        return
    if not orphan.stored:
        backend.delete(orphan.namespace, orphan.job_id)
        backend.remove(orphan.namespace, orphan.job_id)
        return
    try:
        reference = observe.find(backend, orphan.job_id)
    except StoreError:
        if not orphan.kept:
            raise
        _remove_unreadable(backend, orphan)
        return
    if reference is None:  # its submitter died before the handle was stored
        _remove_unreadable(backend, orphan)
        return
    if orphan.kept or _is_nowhere(reconcile(backend, reference)):
        cancel.cleanup(backend, reference)
    else:
        backend.delete(reference.namespace, reference.job_id)
        reconcile(backend, reference)


def _is_nowhere(job: JobObservation | JobSummary) -> bool:
    """Return whether neither the cluster nor the store has anything of a job that has run."""
    return job.status is JobStatus.NOT_FOUND and job.reason != UNVERIFIED


def _remove_unreadable(backend: Backend, orphan: Orphan) -> None:
    """Remove the objects of a job with an unreadable handle or none, finding them by the job's id."""
    backend.remove(orphan.namespace, orphan.job_id)
    backend.store.delete_all(f"jobs/{orphan.job_id}/")
    for entry in list(backend.store.list("index/", f"index/*-{orphan.job_id}")):
        backend.store.delete(entry.name)


def _never_created(known: list[JobSummary], before: float) -> Iterator[Orphan]:
    for job in known:
        if _is_nowhere(job) and not job.problem and _created(job) < before:
            why = "it was stored, and never created or removed by hand"
            yield Orphan(job.job_id, job.namespace, why, is_batch=job.inputs > 0)


def _still_alive(known: list[JobSummary], cancelled: set[str]) -> Iterator[Orphan]:
    for job in known:
        if job.job_id in cancelled and not job.status.is_terminal:
            yield Orphan(job.job_id, job.namespace, "it was cancelled, and still lives")


def _long_over(known: list[JobSummary], before: float) -> Iterator[Orphan]:
    for job in known:
        has_ended = job.status.is_terminal and not _is_nowhere(job)
        if has_ended and not job.problem and _created(job) < before:
            why = f"it has ended, and was submitted on {job.created_at[:10]}"
            yield Orphan(job.job_id, job.namespace, why, kept=True, is_batch=job.inputs > 0)


def _held(known: list[JobSummary], there: Mapping[str, Found]) -> Iterator[Orphan]:
    """Yield the finished jobs whose pods live on."""
    for job in known:
        found = there.get(job.job_id)
        if found and job.status.is_terminal and runs_in_set(found[0]) and found[1]:
            yield Orphan(job.job_id, job.namespace, "it has ended, and its pods are left")
        elif (
            found
            and job.status.is_terminal
            and waits_for_worker(found[0])
            and not verdict(*found).is_terminal
        ):
            yield Orphan(job.job_id, job.namespace, "its worker has run it, and its Job has not ended")


def _waiting_too_long(
    backend: Backend, namespace: str, there: Mapping[str, Found], before: float
) -> Iterator[Orphan]:
    """Yield the workers that should have ended by themselves."""
    for job_id, idle in overdue(backend, there, before):
        yield Orphan(job_id, namespace, f"this worker has waited for a call for longer than its {idle:g} s")


def _unknown(
    backend: Backend, namespace: str, known: set[str], there: Mapping[str, Found]
) -> Iterator[Orphan]:
    """Yield the jobs that were submitted to this store, and that the store no longer has."""
    for job_id, (job, pods) in there.items():
        if job_id in known or _store_of(job) != backend.store.uri:
            continue
        if backend.store.find(object_names.handle(job_id)) is None:
            state = verdict(job, pods).status.value
            yield Orphan(job_id, namespace, f"its stored objects are gone; it is {state}", stored=False)


def _unknown_batches(backend: Backend, namespace: str, known: set[str]) -> Iterator[Orphan]:
    """Yield the batches whose inputs the store no longer has."""
    found = backend.parts.all(namespace) if backend.parts is not None else {}
    for group_id, parts in found.items():
        forgotten = group_id not in known and _store_of(parts[0]) == backend.store.uri
        if forgotten and not is_stored(backend.store, group_id):
            yield Orphan(group_id, namespace, "its stored objects are gone", stored=False, is_batch=True)


def _store_of(job: Mapping[str, Any]) -> str:
    """Return the URI of the store that a Job's runner uses."""
    try:
        container = job["spec"]["template"]["spec"]["containers"][0]
        return next(str(each["value"]) for each in container["env"] if each["name"] == "KINETIC_STORE")
    except (KeyError, IndexError, TypeError, StopIteration):
        return ""


def _created(job: JobSummary) -> float:
    return datetime.fromisoformat(job.created_at).timestamp()
