"""`JobHandle`, `attach` and `list_jobs` with the life cycle of keras-kinetic."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec

from kinetic_core import client
from kinetic_core.compat.job_status import JobStatus
from kinetic_core.connections import default_connections
from kinetic_core.errors import JobError, KineticError
from kinetic_core.job import JobReference
from kinetic_core.jobs.facts import consider
from kinetic_core.jobs.handle import JobHandle as NativeHandle
from kinetic_core.terminal import Progress

__all__ = ["JobHandle", "JobStatus", "attach", "list_jobs"]

_LOG = logging.getLogger(__name__)
_PAUSE = 0.05
P = ParamSpec("P")


class JobHandle(NativeHandle):
    """Handle of a job that is `NOT_FOUND` once it was cancelled or collected."""

    def status(self) -> JobStatus:
        """Return the job's status now: `NOT_FOUND` if it was cancelled or has no Kubernetes object."""
        considered = consider(self.place, self)
        if considered.found is None:
            return JobStatus.NOT_FOUND
        return status_there(considered.decision.observation.status)

    def result(
        self,
        timeout: float | None = None,
        cleanup: bool | None = None,
        cleanup_timeout: float = 180,
        cleanup_poll_interval: float = 2,
        stream_logs: bool | None = None,
        on_status_change: Callable[[JobStatus], None] | None = None,
        trust_store: bool = False,
    ) -> Any:
        """Wait for the job and return its value, or raise its exception, as `kinetic_core.JobHandle.result`.

        With `cleanup` (default: unless the job is a debug job) the Kubernetes object is removed however the
        job ended, and everything stored but outputs after a success: the job can be collected once.
        """
        tell = on_status_change
        announce = None if tell is None else lambda status: tell(status_there(status))
        with self._collecting(cleanup, cleanup_timeout, cleanup_poll_interval):
            return super().result(
                timeout, False, stream_logs=stream_logs, on_status_change=announce, trust_store=trust_store
            )

    def shown_result(
        self,
        progress: Progress,
        timeout: float | None = None,
        cleanup: bool | None = None,
        *,
        stream_logs: bool = True,
        trust_store: bool = False,
    ) -> Any:
        """Wait for the job and show its progress, as a call does; then remove it as `result` does."""
        with self._collecting(cleanup):
            return super().shown_result(
                progress, timeout, False, stream_logs=stream_logs, trust_store=trust_store
            )

    @contextmanager
    def _collecting(self, cleanup: bool | None, timeout: float = 180, interval: float = 2) -> Iterator[None]:
        """Remove, with `cleanup`, what is to be removed of a job whose value or exception is fetched."""
        removes = not self.debug if cleanup is None else cleanup
        try:
            yield
        except Exception as exc:
            # An outcome that cannot be fetched or verified now may be later, as long as its job is there.
            if removes and (isinstance(exc, JobError) or not isinstance(exc, KineticError)):
                self._remove(False, timeout, interval)
            raise
        if removes:
            self._remove(True, timeout, interval)

    def _remove(self, gcs: bool, timeout: float, interval: float) -> None:
        """Remove the job's objects; a value or an exception is not lost because that fails."""
        try:
            super().cleanup(gcs=gcs)
            self.await_removal(timeout, interval)
        except (KineticError, OSError) as exc:
            _LOG.warning("cleaning up after %s: %s", self.job_id, exc)

    def cleanup(
        self,
        k8s: bool = True,
        gcs: bool = True,
        cleanup_timeout: float = 180,
        cleanup_poll_interval: float = 2,
    ) -> None:
        """End the job if it runs (`k8s`), then remove its Kubernetes object and stored objects (`gcs`).

        Waits up to `cleanup_timeout` seconds until the Kubernetes object is gone.
        """
        if k8s:
            self.cancel()
        super().cleanup(k8s, gcs)
        if k8s:
            self.await_removal(cleanup_timeout, cleanup_poll_interval)

    def await_removal(self, timeout: float = 180, interval: float = 2) -> None:
        """Wait until this process's watch has heard that the Kubernetes object is gone, too."""
        deadline = time.monotonic() + timeout
        while self.place.get(self.namespace, self.job_id) is not None and time.monotonic() < deadline:
            time.sleep(min(interval, _PAUSE))


def with_handle(native: Callable[P, NativeHandle]) -> Callable[P, JobHandle]:
    """Return the function of `kinetic_core` with a handle of this package; its arguments stay."""

    @functools.wraps(native)
    def found(*args: P.args, **kwargs: P.kwargs) -> JobHandle:
        return handle_there(native(*args, **kwargs))

    return found


attach = with_handle(client.attach)


def list_jobs(
    project: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
    namespace: str | None = None,
    *,
    backend: str | None = None,
) -> list[JobHandle]:
    """List the jobs of one namespace that Kubernetes still has, newest first, but for cancelled ones.

    Without the argument it is the namespace of the settings, on every backend.
    """
    namespace = namespace or default_connections().settings.namespace
    states = set(JobStatus) - {JobStatus.CANCELLED, JobStatus.NOT_FOUND}
    stored = client.list_jobs(project, zone, cluster, namespace, state=states, backend=backend)
    there = existing(stored)
    return [handle_there(one) for one in stored if one.job_id in there or one.group_id in there]


def handle_there(native: NativeHandle) -> JobHandle:
    """Return the handle of this package for one of `kinetic_core`."""
    return JobHandle.of(native, native.place.connections)


def status_there(status: JobStatus) -> JobStatus:
    """Return the status that keras-kinetic has for a status of ours."""
    return JobStatus.NOT_FOUND if status is JobStatus.CANCELLED else status


def existing(handles: Iterable[JobReference | None]) -> set[str]:
    """Return the ids of jobs, and of batches that share Jobs, whose Kubernetes objects exist."""
    found: set[str] = set()
    places = {one.namespace: one for one in handles if isinstance(one, NativeHandle)}
    for namespace, one in places.items():
        backend = one.place
        found |= backend.all(namespace).keys()
        found |= backend.parts.all(namespace).keys() if backend.parts is not None else set()
    return found
