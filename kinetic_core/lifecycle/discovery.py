"""Finding jobs again: by id, or all of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from kinetic_core.configuration import read_settings
from kinetic_core.errors import InvalidRequest, KineticError, OtherCluster
from kinetic_core.lifecycle import observing
from kinetic_core.lifecycle.backends import Backend, known_backend
from kinetic_core.lifecycle.handle import JobHandle
from kinetic_core.lifecycle.whole_batches import INPUTS, children, indexed_id
from kinetic_core.model.job import JobReference

_LOG = logging.getLogger(__name__)


def attach(
    job_id: str, project: str | None = None, cluster: str | None = None, *, backend: str | None = None
) -> JobHandle:
    """The handle of a job submitted by any process, from what is stored of it.

    `project` and `cluster` fall back to the settings; `backend` too, then to this machine if the job ran
    here. Raises JobNotFound if no such job is stored there, OtherCluster if it is one of another cluster.
    """
    if not isinstance(job_id, str):
        raise TypeError(f"job_id={job_id!r} must be a string such as 'job-0123456789abcdef'")
    if not job_id or "/" in job_id:
        raise InvalidRequest(f"job_id={job_id!r} is not a job id such as 'job-0123456789abcdef'")
    settings = read_settings().with_arguments(project=project, cluster=cluster)
    return JobHandle.of(observing.found(known_backend(backend, settings, job_id), job_id))


def list_jobs(
    project: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
    namespace: str | None = None,
    *,
    backend: str | None = None,
) -> list[JobHandle]:
    """Every job of a cluster that is stored, finished ones too, newest first; of a batch each input.

    `project`, `zone` and `cluster` fall back to the settings. A job whose handle cannot be read is left out
    with a warning. `namespace` limits the list to one.
    """
    settings = read_settings().with_arguments(project=project, zone=zone, cluster=cluster)
    opened = known_backend(backend, settings)
    return [handle for handle in _newest_first(opened) if namespace in (None, handle.namespace)]


def _newest_first(backend: Backend) -> Iterator[JobHandle]:
    for info in backend.store.list("index/"):
        job_id = indexed_id(info.name)
        if INPUTS in info.metadata:
            yield from map(JobHandle.of, _inputs(backend, job_id))
        elif (handle := _readable(backend, job_id)) is not None:
            yield handle


def _inputs(backend: Backend, group_id: str) -> list[JobReference]:
    """The inputs of a batch that shares Jobs; none if it is of another cluster."""
    try:
        return [observing.placed(child, backend) for child in children(backend, group_id)]
    except OtherCluster:
        return []


def _readable(backend: Backend, job_id: str) -> JobHandle | None:
    try:
        reference = observing.find(backend, job_id)
    except OtherCluster:
        return None
    except KineticError as exc:
        _LOG.warning("leaving %s out of the list: %s", job_id, exc)
        return None
    return JobHandle.of(reference) if reference else None
