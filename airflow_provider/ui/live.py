"""Live state of the jobs of a run in their clusters: two requests per namespace, however many jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider.access import Access
from airflow_provider.ui.places import PATIENCE, Places, Remembered
from airflow_provider.ui.rows import TASK_ENDED, Instance, Live, row
from kinetic_core.backends.base import Backend, Found
from kinetic_core.backends.kubernetes.verdict import observe as verdict
from kinetic_core.errors import KineticError
from kinetic_core.job import JobReference
from kinetic_core.jobs.timeline import phases, submitted_at
from kinetic_core.settings import Settings

_MOST_PLACES = 8
"""Namespaces of clusters that are read for one run."""
_MOST_CONNECTIONS = 8
"""Connections that are read for one run."""

Place = tuple[str, str]
"""Key of a backend, and a namespace."""
Listings = Remembered[Mapping[str, Found]]


@dataclass
class _Homes:
    """Places where the jobs of a run may live, and the reasons why others cannot be read."""

    backends: dict[Place, Backend] = field(default_factory=dict)
    of: dict[str, Place] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)


async def live_rows(
    instances: Sequence[Instance], places: Places, listings: Listings
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of task instances, and sentences for people about what could not be read."""
    homes = await _homes(instances, places)
    asked = homes.backends.items()
    answers = await asyncio.gather(*(_listed(place, backend, listings) for place, backend in asked))
    known = dict(zip(homes.backends, answers, strict=True))
    rows = await asyncio.to_thread(lambda: [_row(each, known, homes) for each in instances])
    told = (answer for answer in answers if isinstance(answer, str))
    return rows, list(dict.fromkeys([*told, *homes.troubles.values()]))


async def _homes(instances: Sequence[Instance], places: Places) -> _Homes:
    by_connection: dict[Access, list[JobReference]] = {}
    for each in instances:
        if each.record is not None and each.may_live:
            by_connection.setdefault(each.record.access, []).append(each.record.reference)
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


async def _listed(place: Place, backend: Backend, listings: Listings) -> Mapping[str, Found] | str:
    """Return the live jobs of a namespace, or the reason why they are unknown."""
    namespace = place[1]
    try:
        return await listings.get(place, lambda: asyncio.to_thread(backend.all, namespace), PATIENCE)
    except TimeoutError:
        return f"no answer within {PATIENCE:g} s about namespace {namespace} of backend {backend.name}"
    except (KineticError, OSError) as error:
        return f"cannot see the jobs of namespace {namespace} of backend {backend.name}: {error}"


def _row(
    instance: Instance,
    known: Mapping[Place, Mapping[str, Found] | str],
    homes: _Homes,
) -> dict[str, Any]:
    if instance.record is None or not instance.may_live:
        return row(instance, None)
    reference = instance.record.reference
    listing = known.get(homes.of.get(reference.job_id, ("", "")))
    if listing is None or isinstance(listing, str):
        return row(
            instance, None, homes.troubles.get(reference.job_id) or listing or "its cluster was not asked"
        )
    found = listing.get(reference.job_id)
    if found is None:
        said = "" if instance.state in TASK_ENDED else "; the task has not said yet how it ended"
        return row(instance, None, f"its Job has gone{said}")
    job, pods = found
    stretches = tuple(phases(submitted_at(reference), job, pods, (), {}, time.time()))
    return row(instance, Live(verdict(job, pods), stretches))
