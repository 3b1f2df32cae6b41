"""Observing a job from anywhere: one look, every change, or until it ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from kinetic_core._runner import wire
from kinetic_core.errors import (
    JobNotFound,
    ObjectNotFound,
    OtherCluster,
    StoreError,
    StoreRefused,
    WaitTimeout,
)
from kinetic_core.lifecycle.backends import Backend, backend_of
from kinetic_core.lifecycle.children import stored_child
from kinetic_core.lifecycle.hub import Subscription, hub_for
from kinetic_core.lifecycle.settling import look
from kinetic_core.model.job import JobObservation, JobReference


def observe(reference: JobReference) -> JobObservation:
    """The job's state now, in one look."""
    return look(backend_of(reference), reference)


def watch(reference: JobReference, callback: Callable[[JobObservation], None]) -> Subscription:
    """Call `callback` with the job's state now and after every change, from the hub's thread.

    All watchers of a process share one hub. `Subscription.close()` ends it.
    """
    return hub_for(backend_of(reference), reference.namespace).subscribe(reference, callback)


def wait(
    reference: JobReference,
    timeout: float | None = None,
    on_change: Callable[[JobObservation], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> JobObservation:
    """Block until the job has ended; its final observation.

    `on_change` is called in this thread, with every observation. Raises WaitTimeout after `timeout`
    seconds; the job goes on. Raises it, too, if the job's own timeout is over and nobody can know whether it
    has ended. Raises StoreRefused if the store goes on refusing to say how it ended.
    """
    deadline = None if timeout is None else clock() + timeout
    pending: list[JobObservation | StoreRefused] = []
    arrived = threading.Condition()

    def notice(news: JobObservation | StoreRefused) -> None:
        with arrived:
            pending.append(news)
            arrived.notify()

    hub = hub_for(backend_of(reference), reference.namespace)
    subscription = hub.subscribe(reference, notice, refused=notice)
    try:
        while True:
            with arrived:
                remaining = None if deadline is None else deadline - clock()
                if not pending and (remaining is None or remaining > 0):
                    arrived.wait(remaining)
                news, pending[:] = list(pending), []
            for observation in news:
                if isinstance(observation, StoreRefused):
                    raise observation
                if on_change is not None:
                    on_change(observation)
                if observation.is_terminal:
                    return observation
                if observation.overdue:
                    raise WaitTimeout(
                        f"the timeout= of {reference.job_id} is over, but {observation.message}. Ask again "
                        f"with kinetic_core.attach({reference.job_id!r}, backend={reference.backend!r})"
                    )
            if deadline is not None and clock() >= deadline:
                raise WaitTimeout(
                    f"{reference.job_id} has not ended after {timeout:g} s. It goes on; ask again with "
                    f"kinetic_core.attach({reference.job_id!r}, backend={reference.backend!r})"
                )
    finally:
        subscription.close()


def find(backend: Backend, job_id: str) -> JobReference | None:
    """The reference kept in the backend's store, None if it holds no such job."""
    try:
        try:
            stored = json.loads(backend.store.read(wire.handle_object(job_id)))
        except ObjectNotFound:
            stored = stored_child(backend.store, job_id)
        if stored is None:
            return None
        reference = JobReference.from_dict(stored)
    except (ValueError, TypeError) as exc:
        raise StoreError(f"the handle of {job_id} in {backend.store.uri} is unreadable: {exc}") from exc
    if reference.job_id != job_id or reference.store_uri != backend.store.uri:
        raise StoreError(
            f"the handle of {job_id} in {backend.store.uri} names another job or store; not used"
        )
    return placed(reference, backend)


def placed(reference: JobReference, backend: Backend) -> JobReference:
    """A stored reference on the cluster we were told to use: a bucket's writer must not choose another."""
    if backend.cluster == reference.cluster or backend.name == "local":
        return reference
    if backend.cluster is not None and reference.cluster is not None:
        project, zone, cluster = reference.cluster
        raise OtherCluster(
            f"{reference.job_id} is a job of cluster {cluster} (project {project}, zone {zone}); name "
            "them with project= and cluster=, or in a profile, to get at it"
        )
    project, zone, cluster = backend.cluster or (reference.project, "", "")
    return replace(reference, project=project, zone=zone, cluster_name=cluster)


def found(backend: Backend, job_id: str) -> JobReference:
    """The same, raising JobNotFound."""
    reference = find(backend, job_id)
    if reference is None:
        raise JobNotFound(f"no job {job_id} in {backend.store.uri}")
    return reference
