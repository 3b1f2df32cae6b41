"""Live state of the jobs of a run in their clusters: one watch per namespace, however many jobs.

Each batch that goes on takes up to three more, and its store three per thousand inputs each half minute.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from airflow_provider.access import Access
from airflow_provider.batch_record import BatchRecord
from airflow_provider.ui.places import PATIENCE, Places, Remembered
from airflow_provider.ui.rows import TASK_ENDED, Instance, Live, LiveBatch, row
from kinetic_core.backends.base import Backend, Found
from kinetic_core.backends.kubernetes.verdict import observe as verdict
from kinetic_core.batches.snapshot import BatchTimes, batch_times, state
from kinetic_core.errors import KineticError
from kinetic_core.job import JobObservation, JobReference
from kinetic_core.jobs.timeline import phases, submitted_at
from kinetic_core.settings import Settings

_MOST_PLACES = 8
"""Namespaces of clusters that are read for one run."""
_MOST_CONNECTIONS = 8
"""Connections that are read for one run."""
_MOST_BATCHES = 32
"""Batches that are looked at for one run; others are said to run."""
_MOST_INPUTS = 10_000
"""Inputs of a batch up to which the store is asked when they have run."""
_USAGE_PATIENCE = 1.0
"""Seconds for which the page waits for that; what comes later is shown the next time."""

Answer = TypeVar("Answer")

Place = tuple[str, str]
"""Key of a backend, and a namespace."""
Listing = Mapping[str, Found]


class Answers(NamedTuple):
    """Answers of clusters and stores: jobs by namespace, and by id of a batch its state and times."""

    listings: Remembered[Listing]
    states: Remembered[JobObservation | None]
    times: Remembered[BatchTimes]


@dataclass
class _Homes:
    """Places where the jobs of a run may live, and the reasons why others cannot be read."""

    backends: dict[Place, Backend] = field(default_factory=dict)
    of: dict[str, Place] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)


async def live_rows(
    instances: Sequence[Instance], places: Places, answers: Answers
) -> tuple[list[dict[str, Any]], dict[str, set[str]]]:
    """Return the rows of task instances, and sentences for people about what could not be read.

    Each sentence comes with the DAGs whose jobs it is about: only who may see one of them may read it.
    """
    homes = await _homes(instances, places)
    living = [each.living.reference for each in instances if each.living is not None]
    known, batches = await asyncio.gather(
        _listings(living, homes, answers), _batches(instances, homes, answers)
    )
    rows = await asyncio.to_thread(lambda: [_row(each, known, batches, homes) for each in instances])
    troubles: dict[str, set[str]] = {}
    for each in instances:
        if trouble := _trouble(each, known, batches, homes):
            troubles.setdefault(trouble, set()).add(each.dag_id)
    return rows, troubles


async def _homes(instances: Sequence[Instance], places: Places) -> _Homes:
    by_connection: dict[Access, list[JobReference]] = {}
    for each in instances:
        if each.living is not None:
            by_connection.setdefault(each.living.access, []).append(each.living.reference)
    asked = list(by_connection)[:_MOST_CONNECTIONS]
    told = await asyncio.gather(*(_settings(access, places) for access in asked))
    return await asyncio.to_thread(_found, zip(asked, told, strict=True), by_connection, places)


async def _settings(access: Access, places: Places) -> Sequence[Settings] | str:
    """Return a connection's settings, or the reason why they are unknown."""
    try:
        return await places.settings(access)
    except KineticError as error:
        return str(error)


def _found(
    told: Iterable[tuple[Access, Sequence[Settings] | str]],
    by_connection: Mapping[Access, Sequence[JobReference]],
    places: Places,
) -> _Homes:
    homes = _Homes()
    for access, settings in told:
        for reference in by_connection[access]:
            if isinstance(settings, str):
                homes.troubles[reference.job_id] = settings
                continue
            try:
                backend = places.of(reference, settings)
            except KineticError as error:
                homes.troubles[reference.job_id] = str(error)
                continue
            place = backend.key, reference.namespace
            if place in homes.backends or len(homes.backends) < _MOST_PLACES:
                homes.backends[place] = backend
                homes.of[reference.job_id] = place
    return homes


async def _listings(
    living: Iterable[JobReference], homes: _Homes, answers: Answers
) -> dict[Place, Listing | str]:
    """Return the live jobs of each namespace that has some of these, or the reason why they are unknown."""
    singles = (each.job_id for each in living if not _is_batch(each))
    asked = list(dict.fromkeys(homes.of[job_id] for job_id in singles if job_id in homes.of))

    def listed(place: Place) -> Awaitable[Listing | str]:
        backend, namespace = homes.backends[place], place[1]
        named = f"the jobs of namespace {namespace} of backend {backend.name}"
        return _answer(answers.listings, place, partial(_watched, backend, namespace), named)

    return dict(zip(asked, await asyncio.gather(*map(listed, asked)), strict=True))


def _watched(backend: Backend, namespace: str) -> Listing:
    """Return the jobs of a namespace by a watch that goes on while somebody looks at the page.

    The first look lists them: 20 MB of a thousand jobs with their pods.
    """
    backend.changes(namespace, None)
    return backend.all(namespace, fresh=False)


async def _batches(
    instances: Iterable[Instance], homes: _Homes, answers: Answers
) -> dict[str, LiveBatch | str]:
    """Return how batches that go on are, by id, or the reasons why that is unknown."""
    living = [each.batch for each in instances if each.batch is not None and each.living is each.batch]
    asked = [each for each in living if each.reference.job_id in homes.of][:_MOST_BATCHES]

    def home(record: BatchRecord) -> Backend:
        return homes.backends[homes.of[record.reference.job_id]]

    found = await asyncio.gather(*(live_batch(each, home(each), answers) for each in asked))
    return dict(zip((each.reference.job_id for each in asked), found, strict=True))


async def live_batch(record: BatchRecord, backend: Backend, answers: Answers) -> LiveBatch | str:
    """Return how a batch is now, or the reason why that is unknown."""
    whole = record.reference
    asked = _answer(answers.states, whole.job_id, partial(state, backend, whole), whole.job_id)
    seen, times = await asyncio.gather(asked, _times(record, backend, answers))
    return seen if isinstance(seen, str) else LiveBatch(seen, times)


async def _times(record: BatchRecord, backend: Backend, answers: Answers) -> BatchTimes | None:
    """Return the times of a batch so far; None of too many inputs, or without an answer yet."""
    if record.size > _MOST_INPUTS:
        return None
    whole = record.reference
    ask = partial(batch_times, backend.store, whole, record.size, time.time(), is_over=False)
    times = await _answer(answers.times, whole.job_id, ask, whole.job_id, _USAGE_PATIENCE)
    return None if isinstance(times, str) else times


def _is_batch(reference: JobReference) -> bool:
    return reference.job_id == reference.group_id


async def _answer(
    remembered: Remembered[Answer],
    key: Hashable,
    ask: Callable[[], Answer],
    named: str,
    patience: float = PATIENCE,
) -> Answer | str:
    """Return what a cluster answers, or the reason why it is unknown."""
    try:
        return await remembered.get(key, lambda: asyncio.to_thread(ask), patience)
    except TimeoutError:
        return f"no answer within {patience:g} s about {named}"
    except (KineticError, OSError) as error:
        return f"cannot see {named}: {error}"


def _trouble(
    instance: Instance,
    known: Mapping[Place, Listing | str],
    batches: Mapping[str, LiveBatch | str],
    homes: _Homes,
) -> str:
    """Return why the state of an instance's job or batch could not be read; "" if it was, or nobody asked."""
    if instance.living is None:
        return ""
    job_id = instance.living.reference.job_id
    of_job = known.get(homes.of.get(job_id, ("", "")))
    answer = batches.get(job_id) if instance.batch is not None else of_job
    return homes.troubles.get(job_id) or (answer if isinstance(answer, str) else "")


def _row(
    instance: Instance,
    known: Mapping[Place, Listing | str],
    batches: Mapping[str, LiveBatch | str],
    homes: _Homes,
) -> dict[str, Any]:
    if instance.living is None:
        return row(instance, None)
    reference, trouble = instance.living.reference, _trouble(instance, known, batches, homes)
    if instance.batch is not None:
        seen = batches.get(reference.job_id)
        return row(instance, None if isinstance(seen, str) else seen, trouble)
    listing = known.get(homes.of.get(reference.job_id, ("", "")))
    if listing is None or isinstance(listing, str):
        return row(instance, None, trouble or "its cluster was not asked")
    found = listing.get(reference.job_id)
    if found is None:
        said = "" if instance.state in TASK_ENDED else "; the task has not said yet how it ended"
        return row(instance, None, f"its Job has gone{said}")
    job, pods = found
    stretches = tuple(phases(submitted_at(reference), job, pods, (), {}, time.time()))
    return row(instance, Live(verdict(job, pods), stretches))
