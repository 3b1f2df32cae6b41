"""Observation of a job from anywhere: once, at every change, or until the job ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kinetic_core._runner import object_names
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.chunks import input_of
from kinetic_core.errors import (
    JobNotFound,
    KineticError,
    MalformedObject,
    ObjectNotFound,
    WaitTimeout,
)
from kinetic_core.job import JobObservation, JobReference
from kinetic_core.jobs.facts import observed
from kinetic_core.jobs.inputs import stored_input
from kinetic_core.jobs.references import checked_reference
from kinetic_core.jobs.watch import Subscription, watch_for
from kinetic_core.store.documents import read_document


def observe(backend: Backend, reference: JobReference) -> JobObservation:
    """Return the job's state now. Changes nothing, even if the job needs an action."""
    return observed(backend, reference)


def watch(
    backend: Backend,
    reference: JobReference,
    callback: Callable[[JobObservation], None],
    refused: Callable[[KineticError], None] | None = None,
    *,
    follows: bool = True,
) -> Subscription:
    """Call `callback` with the job's state now and after every change, from the watch's thread.

    `refused` is called when the cluster or the store keeps refusing to say how the job is, or the client is
    closed.

    The job is reconciled (see `jobs.reconcile`) while this or another observer `follows` it. All observers of
    a client in a namespace share one watch. `Subscription.close()` ends the subscription.
    """
    return watch_for(backend, reference.namespace).subscribe(
        reference, callback, refused=refused, follows=follows
    )


def wait(
    backend: Backend,
    reference: JobReference,
    timeout: float | None = None,
    on_change: Callable[[JobObservation], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> JobObservation:
    """Block until the job has ended, reconciling it meanwhile; return its final observation.

    `on_change` is called in this thread, with every observation. Raises WaitTimeout after `timeout`
    seconds, while the job goes on, and when the job's own timeout is over and its end cannot be observed.
    Raises StoreRefused or ClusterError if store or cluster keep refusing to say how the job is,
    InvalidRequest if the client was closed.
    """
    deadline = None if timeout is None else clock() + timeout
    pending: list[JobObservation | KineticError] = []
    arrived = threading.Condition()

    def notice(news: JobObservation | KineticError) -> None:
        with arrived:
            pending.append(news)
            arrived.notify()

    job_watch = watch_for(backend, reference.namespace)
    subscription = job_watch.subscribe(reference, notice, refused=notice)
    try:
        while True:
            with arrived:
                remaining = None if deadline is None else deadline - clock()
                if not pending and (remaining is None or remaining > 0):
                    arrived.wait(remaining)
                news, pending[:] = list(pending), []
            for observation in news:
                if isinstance(observation, KineticError):
                    raise observation
                if on_change is not None:
                    on_change(observation)
                if observation.is_terminal:
                    return observation
                if observation.overdue:
                    over = f"the timeout= of {reference.job_id} is over, but {observation.message}. Ask again"
                    raise WaitTimeout(f"{over} {_attach_call(reference)}")
            if deadline is not None and clock() >= deadline:
                late = f"{reference.job_id} has not ended after {timeout:g} s. It goes on; ask again"
                raise WaitTimeout(f"{late} {_attach_call(reference)}")
    finally:
        subscription.close()


def _attach_call(reference: JobReference) -> str:
    """Return the words that say how to ask for the job again."""
    return f"with kinetic_core.attach({reference.job_id!r}, backend={reference.backend!r})"


def find(backend: Backend, job_id: str) -> JobReference | None:
    """Return the reference stored for a job, None if the backend's store has no such job.

    Raises MalformedObject, and as `checked_reference` does.
    """
    try:
        stored = read_document(backend.store, object_names.handle(job_id))
    except ObjectNotFound:
        return stored_input(backend, job_id)
    except MalformedObject as exc:
        raise MalformedObject(f"the handle of {job_id} in {backend.store.uri} is unreadable: {exc}") from exc
    return checked_reference(stored, job_id, backend)


def found(backend: Backend, job_id: str) -> JobReference:
    """Return the reference stored for a job; raise JobNotFound if there is none."""
    reference = find(backend, job_id)
    if reference is None:
        error = JobNotFound(f"no job {job_id} in {backend.store.uri}")
        if job_id.startswith("grp-") and input_of(job_id) is None:
            error.hint = f"`kinetic batch status {job_id}` says how a batch is"
        raise error
    return reference
