"""A job for a task instance: its own from an earlier leg or try if one lives or succeeded, else a new one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider.identity import TaskIdentity
from kinetic_core.configuration import read_settings
from kinetic_core.errors import JobConflict
from kinetic_core.lifecycle.backends import Backend, backend_name, open_backend
from kinetic_core.lifecycle.ending import cancel
from kinetic_core.lifecycle.observing import find, observe
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.packing import Progress
from kinetic_core.lifecycle.submission import Call, prepare, submit
from kinetic_core.model.job import JobObservation, JobReference
from kinetic_core.model.states import JobStatus

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Started:
    """The job that now does the task's work, and how it looked a moment ago."""

    reference: JobReference
    observation: JobObservation
    adopted: bool
    shipped: int = 0
    """Bytes of project, data and arguments of a new job, uploaded now or before."""


def start_or_adopt(
    call: Call,
    options: RunOptions,
    identity: TaskIdentity,
    progress: Progress = _LOG.info,
    environment: Mapping[str, str] | None = None,
    build_patience: float | None = None,
    origin: str = "",
) -> Started:
    """The one job of this task instance.

    An active or succeeded job of this generation that does the same is adopted, whichever try began it.
    What else is still active, of another generation or of a call that has changed, is cancelled before
    the new job starts: two never run at once. `environment` and `origin` are for a new job. Raises as
    `prepare` and `submit` do; ImageBuilding if the image takes longer than `build_patience` seconds, before
    anything is looked for or created.
    """
    settings = read_settings()
    prepared = prepare(
        call,
        options,
        job_id=identity.job_id(),
        settings=settings,
        progress=progress,
        build_patience=build_patience,
    )
    backend, digest = prepared.backend, prepared.spec_digest
    for ancestor in identity.ancestors():
        _cancel_if_active(backend, ancestor.job_id(), "it belongs to a run that was cleared")
    for sibling in identity.siblings():
        for job_id in (sibling.job_id(digest), sibling.job_id()):
            adopted = _adopted(backend, job_id, digest)
            if adopted is not None:
                return adopted
    try:
        reference = submit(prepared, environment, origin)
    except JobConflict:
        other = prepare(call, options, job_id=identity.job_id(digest), settings=settings)
        reference = submit(other, environment, origin)
    return Started(reference, observe(reference), adopted=False, shipped=prepared.spec.shipped)


def latest(options: RunOptions, identity: TaskIdentity) -> JobReference | None:
    """The newest job that this generation of the task instance has started."""
    settings = options.settings(read_settings())
    backend = open_backend(backend_name(options.backend, 1, settings), settings)  # where jobs are stored
    found = (find(backend, sibling.job_id()) for sibling in identity.siblings())
    return next((reference for reference in found if reference is not None), None)


def _adopted(backend: Backend, job_id: str, spec_digest: str) -> Started | None:
    reference = find(backend, job_id)
    if reference is None:
        return None
    if reference.spec_digest != spec_digest:
        _cancel_if_active(backend, job_id, "the call it was started for has changed")
        return None
    observation = observe(reference)
    if observation.is_terminal and observation.status is not JobStatus.SUCCEEDED:
        return None
    _LOG.info("adopting %s, which an earlier worker started (%s)", job_id, observation.status.value)
    return Started(reference, observation, adopted=True)


def _cancel_if_active(backend: Backend, job_id: str, why: str) -> None:
    reference = find(backend, job_id)
    if reference is not None and not observe(reference).is_terminal:
        _LOG.warning("cancelling %s: %s", job_id, why)
        cancel(reference)
