"""A job for a task instance: its own from an earlier leg or try if one lives or succeeded, else a new one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from airflow_provider.identity import TaskIdentity
from kinetic_core.configuration import read_settings
from kinetic_core.errors import JobConflict, KineticError
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
class Earlier:
    """A job that the task instance had before, and how that was found."""

    try_number: int
    reference: JobReference
    observation: JobObservation


@dataclass(frozen=True)
class Started:
    """The job that now does the task's work, and how it looked a moment ago."""

    reference: JobReference
    observation: JobObservation
    adopted: bool
    shipped: int = 0
    """Bytes of project, data and arguments of a new job, uploaded now or before."""
    earlier: tuple[Earlier, ...] = ()
    """The newest first, as far as they are in the store."""


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
    cleared = _earlier(backend, identity.ancestors(), "it belongs to a run that was cleared")
    adopted, tries = _look_at_tries(backend, identity, digest)
    earlier = tuple(sorted((*tries, *cleared), key=lambda each: -each.try_number))
    if adopted is not None:
        return replace(adopted, earlier=earlier)
    try:
        reference = submit(prepared, environment, origin)
    except JobConflict:
        other = prepare(call, options, job_id=identity.job_id(digest), settings=settings)
        reference = submit(other, environment, origin)
    shipped = prepared.spec.shipped
    earlier = tuple(each for each in earlier if each.reference.job_id != reference.job_id)
    return Started(reference, observe(reference), adopted=False, shipped=shipped, earlier=earlier)


def latest(options: RunOptions, identity: TaskIdentity) -> JobReference | None:
    """The newest job that this generation of the task instance has started."""
    settings = options.settings(read_settings())
    backend = open_backend(backend_name(options.backend, 1, settings), settings)  # where jobs are stored
    found = (find(backend, sibling.job_id()) for sibling in identity.siblings())
    return next((reference for reference in found if reference is not None), None)


def _look_at_tries(
    backend: Backend, identity: TaskIdentity, spec_digest: str
) -> tuple[Started | None, list[Earlier]]:
    """The newest job that can be adopted, and the others of this generation."""
    others: list[Earlier] = []
    ids = [
        (sibling.try_number, job_id)
        for sibling in identity.siblings()
        for job_id in (sibling.job_id(spec_digest), sibling.job_id())
    ]
    for place, (number, job_id) in enumerate(ids):
        reference = find(backend, job_id)
        if reference is None:
            continue
        if reference.spec_digest != spec_digest:
            observation = _cancelled_if_active(reference, "the call it was started for has changed")
        else:
            observation = observe(reference)
            if not observation.is_terminal or observation.status is JobStatus.SUCCEEDED:
                state = observation.status.value
                _LOG.info("adopting %s, which an earlier worker started (%s)", job_id, state)
                adopted = Started(reference, observation, adopted=True)
                return adopted, others + _older(backend, ids[place + 1 :])
        others.append(Earlier(number, reference, observation))
    return None, others


def _older(backend: Backend, ids: Iterable[tuple[int, str]]) -> list[Earlier]:
    """The jobs that came before an adopted one. They are for people only: what cannot be read is left out."""
    found = []
    try:
        for number, job_id in ids:
            reference = find(backend, job_id)
            if reference is not None:
                found.append(Earlier(number, reference, observe(reference)))
    except KineticError as error:
        _LOG.info("not all jobs of earlier tries are known: %s", error)
    return found


def _earlier(backend: Backend, tries: Iterable[TaskIdentity], why: str) -> list[Earlier]:
    """Those of other tries that are there; what is still active of them is cancelled."""
    found = ((each.try_number, find(backend, each.job_id())) for each in tries)
    return [
        Earlier(number, reference, _cancelled_if_active(reference, why))
        for number, reference in found
        if reference is not None
    ]


def _cancelled_if_active(reference: JobReference, why: str) -> JobObservation:
    observation = observe(reference)
    if observation.is_terminal:
        return observation
    _LOG.warning("cancelling %s: %s", reference.job_id, why)
    cancel(reference)
    return observe(reference)
