"""`map`, and batches with the life cycle of keras-kinetic."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ParamSpec, Self, Unpack

from kinetic_core import client
from kinetic_core.batches.handle import BatchError
from kinetic_core.batches.handle import BatchHandle as NativeBatch
from kinetic_core.compat.jobs import JobHandle, JobStatus, existing, handle_there, status_there
from kinetic_core.decorator import RemoteCallable
from kinetic_core.errors import KineticError
from kinetic_core.jobs.handle import JobHandle as NativeHandle
from kinetic_core.options import MAP_OPTIONS, MapKeywords

__all__ = ["BatchError", "BatchHandle", "attach_batch", "map"]

P = ParamSpec("P")
_LOG = logging.getLogger(__name__)


class BatchHandle(NativeBatch):
    """Handle of a batch whose cancelled and collected jobs are `NOT_FOUND`."""

    @classmethod
    def of(cls, native: NativeBatch) -> Self:
        """Return the handle of this package for one of `kinetic_core`; both have the same state."""
        batch = cls.__new__(cls)
        batch.__dict__.update(native.__dict__)
        return batch

    @property
    def jobs(self) -> list[JobHandle | None]:  # type: ignore[override]  # a list of a subclass
        """Return a list with an entry per input: its job's handle, or None without a job."""
        return [None if job is None else handle_there(job) for job in super().jobs]

    def statuses(self) -> list[tuple[int, JobStatus]]:
        """Return index and status of every submitted job that was not dropped."""
        jobs = super().jobs
        there = existing(jobs)
        return [
            (index, status_there(status) if there & {job.job_id, job.group_id} else JobStatus.NOT_FOUND)
            for index, status in super().statuses()
            if (job := jobs[index]) is not None
        ]

    def as_completed(
        self, *, poll_interval: float = 5.0, timeout: float | None = None
    ) -> Iterator[JobHandle]:
        """Yield handles in the order in which their jobs end, as `kinetic_core.BatchHandle.as_completed`."""
        for job in super().as_completed(poll_interval=poll_interval, timeout=timeout):
            yield handle_there(job)

    def failures(self) -> list[JobHandle]:  # type: ignore[override]  # a list of a subclass
        """Return the handles of jobs that failed by the last `results()` call, else by now."""
        return [handle_there(job) for job in super().failures()]

    def _discard(self, jobs: list[NativeHandle]) -> None:
        """Remove the objects of all inputs before `results` returns: what is collected is `NOT_FOUND`.

        The values are not lost because that fails.
        """
        self._scheduler.discard(jobs)
        try:
            there = existing(jobs)
            for job in jobs:
                if not there & {job.job_id, job.group_id}:
                    handle_there(job).await_removal()
        except (KineticError, OSError) as exc:
            _LOG.warning("cleaning up after %s: %s", self.group_id, exc)

    def cleanup(self, *, k8s: bool = True, gcs: bool = True) -> None:
        """End what runs (`k8s`), then remove all inputs' Kubernetes objects and stored objects (`gcs`)."""
        if k8s:
            self.cancel()
        super().cleanup(k8s=k8s, gcs=gcs)


@MAP_OPTIONS.describes
def map(  # noqa: A001  its name there
    submit_fn: Callable[..., Any], inputs: Iterable[Any], **options: Unpack[MapKeywords]
) -> BatchHandle:
    """Start one job per input: `map(train.run_async, inputs)` is `train.run_async_map(inputs)`.

    Raises TypeError for anything but the `run_async` of a decorated function: a batch is stored as one
    function with its inputs, so that it goes on without this process.
    """
    function = getattr(submit_fn, "__self__", None)
    if not isinstance(function, RemoteCallable) or submit_fn != function.run_async:
        raise TypeError(
            f"collections.map takes the run_async of a decorated function, not {submit_fn!r}. Decorate a "
            "function that calls yours with the arguments that all inputs share"
        )
    return BatchHandle.of(function.run_async_map(inputs, **options))


def with_handle(native: Callable[P, NativeBatch]) -> Callable[P, BatchHandle]:
    """Return the function of `kinetic_core` with a handle of this package; its arguments stay."""

    @functools.wraps(native)
    def found(*args: P.args, **kwargs: P.kwargs) -> BatchHandle:
        return BatchHandle.of(native(*args, **kwargs))

    return found


attach_batch = with_handle(client.attach_batch)
