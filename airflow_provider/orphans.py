"""Orphans of tasks: live jobs whose tasks are over, found and cancelled.

A task may be ended while no triggerer is alive, its DAG run deleted, or its worker dead: then no trigger and
no worker is left to cancel the job. While some task is deferred, the process of its trigger compares all live
jobs of the places that tasks have noted with Airflow's states of their tasks. The API server always does, in
the places that it reaches, see `ui.orphans`: triggerers need no plugin and no database.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from airflow_provider.batch_of_task import cancel_batch, is_superseded
from airflow_provider.config import config
from airflow_provider.job_of_task import Origin
from airflow_provider.telemetry import IN_TRIGGERS, Stats, WorkerClock
from airflow_provider.threads import in_thread, start_apart
from kinetic_core.backends.base import Backend, Found
from kinetic_core.backends.kubernetes.chunks import chunk_of, input_of
from kinetic_core.backends.kubernetes.names import JOB_ID, ORIGIN
from kinetic_core.backends.kubernetes.verdict import observe as verdict
from kinetic_core.errors import KineticError
from kinetic_core.job import JobReference
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.lanes import lane_of
from kinetic_core.jobs.observe import find
from kinetic_core.jobs.warm import workers
from kinetic_core.jobs.watch import watch_for

FIRST_SECONDS, DOUBT_SECONDS = 5.0, 10.0
"""Seconds before the first search, and after one that saw a live job whose task was over."""
_OVER = frozenset(("success", "failed", "skipped", "upstream_failed", "removed"))
"""States in which a task is over. In any other state, those of later Airflows included, its job lives; the
job of a task instance that is gone does not."""
_LOG = logging.getLogger(__name__)

AskStates = Callable[[str, str, list[str]], Awaitable[Mapping[str, object]]]
"""States of tasks by their names in a DAG run, as `RuntimeTaskInstance.get_task_states` returns them."""
Live = dict[str, Origin]


def _hostname() -> str:
    from airflow.utils import net

    ask: Callable[[], str] = net.get_hostname
    return ask()


_clock = WorkerClock(Stats(IN_TRIGGERS), cache(_hostname))


@dataclass
class Reconciler:
    """Search for orphans among the jobs of a backend and namespace that no trigger here watches."""

    backend: Backend
    namespace: str
    deployment: str
    ask: AskStates
    clock: WorkerClock = field(default_factory=lambda: _clock)
    _doubted: set[str] = field(default_factory=set)

    @property
    def in_doubt(self) -> bool:
        """Return whether the last search left a job whose task seems to be over for the next search."""
        return bool(self._doubted)

    async def reconcile(self) -> list[str]:
        """Cancel the jobs whose tasks were over at this search and the one before; return their ids.

        The second search is needed because a job exists a moment before Airflow stores its task's next state.
        """
        await in_thread(self._look_at_workers)
        live = await in_thread(self._unwatched)
        over = set(await self._over(live))
        ended = sorted(over & self._doubted)
        self._doubted = over - self._doubted
        for job_id in ended:
            _LOG.warning("cancelling %s: its task, %s, is over", job_id, live[job_id])
        batches: dict[str, Origin] = {}
        for job_id in ended:
            group_id, origin = batch_of(job_id), live[job_id]
            batches[group_id] = max(batches.get(group_id, origin), origin, key=lambda each: each.order)
        batches.pop("", None)
        alone = [job_id for job_id in ended if not batch_of(job_id)]
        await asyncio.gather(
            *(in_thread(self._cancel, job_id) for job_id in alone),
            *(in_thread(self._cancel_batch, *each) for each in sorted(batches.items())),
        )
        return ended

    def _look_at_workers(self) -> None:
        """Count the time of warm workers. An error is no reason to leave orphans."""
        try:
            found = list(workers(self.backend, self.namespace, fresh=False))
        except (KineticError, OSError) as error:
            _LOG.info("the time of the workers of %s is not counted: %s", self.namespace, error)
        else:
            self.clock.seen(place_key(self.backend, self.namespace), found)

    def _unwatched(self) -> Live:
        watched = watch_for(self.backend, self.namespace).watched()
        found: Live = {}
        for job_id, (job, pods) in self._jobs_and_chunks():
            text = (job["metadata"].get("annotations") or {}).get(ORIGIN)
            if text is None or job_id in watched or verdict(job, pods).is_terminal:
                continue
            origin = Origin.from_text(text)
            if origin is not None and origin.deployment == self.deployment:
                found[job_id] = origin
        return found

    def _jobs_and_chunks(self) -> Iterator[tuple[str, Found]]:
        """Yield all jobs of the namespace, and the chunks of its batches without their pods."""
        yield from self.backend.all(self.namespace, fresh=False).items()
        if self.backend.parts is not None:
            for chunks in self.backend.parts.all(self.namespace).values():
                yield from ((str(job["metadata"]["labels"][JOB_ID]), (job, ())) for job in chunks)

    async def _over(self, live: Live) -> list[str]:
        """List the jobs whose tasks are over, with one question for all jobs of a task in a DAG run.

        Airflow names instance 0 of `a` as it names a task `a_0`: one question for both has one answer.
        """
        tasks: dict[tuple[str, str, str], Live] = defaultdict(dict)
        for job_id, origin in live.items():
            tasks[origin.dag_id, origin.run_id, origin.task_id][job_id] = origin
        over = []
        for (dag_id, run_id, task_id), jobs in tasks.items():
            states = await self.ask(dag_id, run_id, [task_id])
            over += [job_id for job_id, each in jobs.items() if _is_over(states, each.key)]
        return over

    def _cancel(self, job_id: str) -> None:
        reference = find(self.backend, job_id)
        if reference is not None:
            cancel(self.backend, reference)

    def _cancel_batch(self, group_id: str, newest: Origin) -> None:
        """Cancel a batch, unless its task was cleared since, so that a try later than `newest` runs it."""
        if not is_superseded(self.backend, self.namespace, group_id, newest):
            cancel_batch(self.backend, group_id)


def batch_of(job_id: str) -> str:
    """Return the id of the batch of which this is an input, a chunk or a lane; "" for any other job."""
    found = chunk_of(job_id) or input_of(job_id) or lane_of(job_id)
    return found[0] if found else ""


def _is_over(states: Mapping[str, object], key: str) -> bool:
    return key not in states or str(states[key]) in _OVER


def place_key(backend: Backend, namespace: str) -> str:
    """Return the key by which the searches of a process know a place."""
    return f"{backend.key} {namespace}"


class Place(Protocol):
    """Place of jobs."""

    @property
    def reference(self) -> JobReference:
        """Return the reference of a job there."""

    async def backend(self) -> Backend:
        """Return its backend. Raises whatever keeps the place from being reached."""


AskName = Callable[[], Awaitable[str]]
"""Name of this Airflow, "" while it has none."""
AskPlaces = Callable[[], Awaitable[Iterable[Place]]]


class Attendant:
    """Search for orphans in several places, one after the other."""

    def __init__(
        self,
        places: AskPlaces,
        ask: AskStates,
        name: AskName,
        is_left: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Search nothing yet. `is_left` says by its key whether a place is left to another search."""
        self._places, self._ask, self._name, self._is_left = places, ask, name, is_left
        self._deployment = ""
        self._reconcilers: dict[str, Reconciler] = {}
        self._told: dict[str, str] = {}

    async def reconcile(self) -> bool:
        """Search every place once; return whether a live job's task seems to be over, to search soon."""
        self._deployment = self._deployment or await self._name()
        seen: set[str] = set()
        in_doubt = False
        for place in await self._places() if self._deployment else ():
            where = f"{place.reference.namespace} ({place.reference.store_uri})"
            try:
                in_doubt |= await self._reconcile_at(await place.backend(), place.reference.namespace, seen)
                self._told.pop(where, None)
            except Exception as error:  # noqa: BLE001  tried again; other places do not depend on it
                self._tell_once(where, repr(error))
        return in_doubt

    async def _reconcile_at(self, backend: Backend, namespace: str, seen: set[str]) -> bool:
        key = place_key(backend, namespace)
        if self._is_left(key):
            self._reconcilers.pop(key, None)  # what it has doubted is old when it searches there again
            return False
        if key in seen:
            return False
        seen.add(key)
        if key not in self._reconcilers:
            self._reconcilers[key] = Reconciler(backend, namespace, self._deployment, self._ask)
        reconciler = self._reconcilers[key]
        reconciler.backend = backend  # of a connection that has changed, one with new credentials
        await reconciler.reconcile()
        return reconciler.in_doubt

    def _tell_once(self, where: str, trouble: str) -> None:
        """Log a place's error once, because a cluster may be gone for good."""
        if self._told.get(where) != trouble:
            self._told[where] = trouble
            _LOG.warning("cannot look for orphans in %s, trying again: %s", where, trouble)


@dataclass(frozen=True)
class _Watched:
    """Place whose jobs triggers of this process watch, with the backend that they share."""

    reference: JobReference
    opened: Backend

    async def backend(self) -> Backend:
        return self.opened


@dataclass
class _Looking:
    """Task that searches, and the number of triggers that use it."""

    task: asyncio.Task[None]
    users: int = 0


_running: dict[str, _Looking] = {}
"""Running searches by the key of their place, and by `_ELSEWHERE`."""
_ELSEWHERE = ""


class SharedSearch:
    """Context in which this process searches: one `attendant` for all that are inside with the same key.

    Each of thousands of triggers holds one, so it keeps nothing that it does not need.
    """

    __slots__ = ("_attendant", "_key")

    def __init__(self, key: str, attendant: Attendant) -> None:
        self._key = key
        self._attendant: Attendant | None = attendant

    def __enter__(self) -> None:
        """Begin the search if nobody is inside."""
        if self._key not in _running and self._attendant is not None:
            _running[self._key] = _Looking(start_apart(_repeat(self._attendant)))
        self._attendant = None
        _running[self._key].users += 1

    def __exit__(self, *_: object) -> None:
        """End the search if nobody else is inside."""
        looking = _running[self._key]
        looking.users -= 1
        if not looking.users:
            looking.task.cancel()
            del _running[self._key]


def reconciled(backend: Backend, reference: JobReference, ask: AskStates, name: AskName) -> SharedSearch:
    """Search the place of a job or batch for orphans inside the context, once for all that are inside."""

    async def here() -> Iterable[Place]:
        return [_Watched(reference, backend)]

    return SharedSearch(place_key(backend, reference.namespace), Attendant(here, ask, name))


def reconciled_elsewhere(places: AskPlaces, ask: AskStates, name: AskName) -> SharedSearch:
    """Search those of the places that no `reconciled` of this process searches, once for all that are inside.

    They are searched apart, because one may not answer for long.
    """
    return SharedSearch(_ELSEWHERE, Attendant(places, ask, name, _running.__contains__))


async def _repeat(attendant: Attendant) -> None:
    interval = config().orphan_interval
    await asyncio.sleep(FIRST_SECONDS)
    while True:
        in_doubt = False
        try:
            in_doubt = await attendant.reconcile()
        except Exception as error:  # noqa: BLE001  tried again; triggers do not depend on it
            _LOG.warning("cannot look for orphans, trying again: %r", error)
        await asyncio.sleep(min(interval, DOUBT_SECONDS) if in_doubt else interval)
