"""Orphans of tasks: live jobs whose tasks are over, found and cancelled.

A task may be ended while no triggerer is alive, its DAG run deleted, or its worker dead: then no trigger and
no worker is left to cancel the job. Every triggerer that watches jobs of a namespace compares all live
jobs there with Airflow's states of their tasks; places that no triggerer watches are looked after by
`Attendant`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Protocol

from airflow_provider.batch_of_task import cancel_batch
from airflow_provider.config import config
from airflow_provider.deployment import NAME, PLACES, UsedPlace, of_team, read_places, with_address
from airflow_provider.job_of_task import Origin
from airflow_provider.telemetry import IN_TRIGGERS, Stats, WorkerClock
from airflow_provider.threads import in_thread
from kinetic_core.backends.base import Backend, Found, backend_of
from kinetic_core.backends.kubernetes.chunks import chunk_of, input_of
from kinetic_core.backends.kubernetes.names import JOB_ID, ORIGIN
from kinetic_core.backends.kubernetes.verdict import observe as verdict
from kinetic_core.connections import Connections, default_connections
from kinetic_core.errors import ConfigurationError, KineticError
from kinetic_core.job import JobReference
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.lanes import lane_of
from kinetic_core.jobs.observe import find
from kinetic_core.jobs.warm import workers
from kinetic_core.jobs.watch import watch_for

_MARGIN_SECONDS = 15.0
"""Seconds for which a mark counts after the next search should have renewed it."""
_OLD_SECONDS = 86_400.0


class Presence:
    """Marks of one triggerer, named by the id of its main process: files of the cache directory.

    Where the cache cannot be written, nothing is marked, and a place is looked after twice.
    """

    def __init__(self, triggerer: int, interval: float, folder: Path | None = None) -> None:
        """Mark nothing yet. `interval`: the seconds between two searches, each of which marks its places."""
        self._triggerer = triggerer
        self._fresh_seconds = interval + _MARGIN_SECONDS
        self._given = folder

    @cached_property
    def _folder(self) -> Path:
        """Return the directory of the marks. Raises ConfigurationError if the settings cannot be read now."""
        return self._given or default_connections().settings.cache / "attendance"

    def mark(self, key: str) -> None:
        """Mark the place as looked after now."""
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file(key).touch()

    def is_marked(self, key: str) -> bool:
        """Return whether the place was marked just now."""
        try:
            return time.time() - self._file(key).stat().st_mtime < self._fresh_seconds
        except OSError:
            return False

    def forget(self) -> None:
        """Remove the marks of an earlier process with this id, and those of triggerers long gone.

        A mark that cannot be removed now is harmless, because marks soon expire.
        """
        long_ago = time.time() - _OLD_SECONDS
        with suppress(OSError, ConfigurationError):
            for file in self._folder.iterdir():
                if file.name.startswith(f"{self._triggerer}-") or file.stat().st_mtime < long_ago:
                    file.unlink()

    def _file(self, key: str) -> Path:
        return self._folder / f"{self._triggerer}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


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
        batches = {group_id for job_id in ended if (group_id := batch_of(job_id))}
        alone = [job_id for job_id in ended if not batch_of(job_id)]
        await asyncio.gather(
            *(in_thread(self._cancel, job_id) for job_id in alone),
            *(in_thread(cancel_batch, self.backend, group_id) for group_id in sorted(batches)),
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


def batch_of(job_id: str) -> str:
    """Return the id of the batch of which this is an input, a chunk or a lane; "" for any other job."""
    found = chunk_of(job_id) or input_of(job_id) or lane_of(job_id)
    return found[0] if found else ""


def _is_over(states: Mapping[str, object], key: str) -> bool:
    return key not in states or str(states[key]) in _OVER


def place_key(backend: Backend, namespace: str) -> str:
    """Return the key by which the triggers and the main process of a triggerer know a place."""
    return f"{backend.key} {namespace}"


@dataclass
class _Looking:
    """Task that searches a backend and namespace, and the number of triggers that use it."""

    task: asyncio.Task[None]
    users: int = 0


_running: dict[tuple[str, str], _Looking] = {}
"""Running searches by backend and namespace."""


@asynccontextmanager
async def reconciled(
    backend: Backend, namespace: str, ask: AskStates, name: Callable[[], Awaitable[str]]
) -> AsyncIterator[None]:
    """Search for orphans in this process inside the context. `name` is called once."""
    key = backend.key, namespace
    if key not in _running:
        _running[key] = _Looking(asyncio.ensure_future(_reconcile(backend, namespace, ask, name)))
    looking = _running[key]
    looking.users += 1
    try:
        yield
    finally:
        looking.users -= 1
        if not looking.users:
            looking.task.cancel()
            _running.pop(key, None)


async def _reconcile(
    backend: Backend, namespace: str, ask: AskStates, name: Callable[[], Awaitable[str]]
) -> None:
    interval = config().orphan_interval
    presence, key = Presence(os.getppid(), interval), place_key(backend, namespace)
    await asyncio.sleep(FIRST_SECONDS)
    reconciler: Reconciler | None = None
    while True:
        try:
            if reconciler is None and (deployment := await name()):
                reconciler = Reconciler(backend, namespace, deployment, ask)
            if reconciler is not None:
                await reconciler.reconcile()
                await in_thread(presence.mark, key)
        except Exception as error:  # noqa: BLE001  tried again; triggers do not depend on it
            _LOG.warning("cannot compare the jobs of %s with their tasks, trying again: %r", namespace, error)
        is_in_doubt = reconciler is not None and reconciler.in_doubt
        await asyncio.sleep(min(interval, DOUBT_SECONDS) if is_in_doubt else interval)


class Place(Protocol):
    """Place of jobs: see `UsedPlace`."""

    @property
    def reference(self) -> JobReference: ...

    def client(self) -> Connections: ...


class Attendant:
    """Search for orphans in all places that no triggerer watches."""

    def __init__(
        self,
        presence: Presence,
        places: Callable[[], Iterable[Place]],
        ask: AskStates,
        name: Callable[[], str],
    ) -> None:
        self._presence = presence
        self._places, self._ask, self._name = places, ask, name
        self._reconcilers: dict[str, Reconciler] = {}
        self._told: dict[str, str] = {}

    def reconcile(self) -> bool:
        """Search every place once; return whether a live job's task seems to be over, to search soon."""
        deployment_name = self._name()
        seen: set[str] = set()
        in_doubt = False
        for place in self._places() if deployment_name else ():
            where = f"{place.reference.namespace} ({place.reference.store_uri})"
            try:
                backend = backend_of(place.reference, place.client())
                in_doubt |= self._reconcile_at(backend, place.reference.namespace, deployment_name, seen)
                self._told.pop(where, None)
            except Exception as error:  # noqa: BLE001  tried again; other places do not depend on it
                self._tell_once(where, repr(error))
        return in_doubt

    def _reconcile_at(self, backend: Backend, namespace: str, deployment_name: str, seen: set[str]) -> bool:
        key = place_key(backend, namespace)
        if key in seen or self._presence.is_marked(key):
            return False
        seen.add(key)
        if key not in self._reconcilers:
            self._reconcilers[key] = Reconciler(backend, namespace, deployment_name, self._ask)
        reconciler = self._reconcilers[key]
        asyncio.run(reconciler.reconcile())
        return reconciler.in_doubt

    def _tell_once(self, where: str, trouble: str) -> None:
        """Log a place's error once, because a cluster may be gone for good."""
        if self._told.get(where) != trouble:
            self._told[where] = trouble
            _LOG.warning("cannot look for forgotten jobs in %s, trying again: %s", where, trouble)


async def states_in_database(dag_id: str, run_id: str, task_ids: list[str]) -> Mapping[str, object]:
    """Read the states of task instances of a DAG run, by their names as in `Origin.key`."""
    return await in_thread(_read_states, dag_id, run_id, task_ids)


def _read_states(dag_id: str, run_id: str, task_ids: list[str]) -> dict[str, object]:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    ti = TaskInstance.__table__.c
    wanted = select(ti.task_id, ti.map_index, ti.state).where(
        ti.dag_id == dag_id, ti.run_id == run_id, ti.task_id.in_(task_ids)
    )
    with create_session(scoped=False) as session:
        found = list(session.execute(wanted))
    return {
        each.task_id if each.map_index < 0 else f"{each.task_id}_{each.map_index}": each.state
        for each in found
    }


def teams() -> list[str]:
    """Return Airflow's teams, and "" for DAGs without one."""
    from airflow_provider.airflow_sdk import conf

    if not conf.getboolean("core", "multi_team", fallback=False):
        return [""]
    from airflow.models.team import Team

    return ["", *sorted(Team.get_all_team_names())]


def places_of(team: str) -> list[UsedPlace]:
    """Return the places that tasks of the team have recorded."""
    return read_places(_variable(PLACES, team) or "")


def name_of(team: str) -> str:
    """Return the Airflow's name that jobs of the team have; "" if the team has started none."""
    return with_address(_variable(NAME, team))


def _variable(name: str, team: str) -> str | None:
    """Read a Variable as a team's tasks see it; Airflow's main processes can read those of any team."""
    from airflow.models import Variable

    key = of_team(name, team)
    if team:
        found: str | None = Variable.get(key, default_var=None, team_name=team)
    else:  # Airflow 3.1 knows no teams
        found = Variable.get(key, default_var=None)
    return found


def attend(pause: Callable[[float], object] = time.sleep) -> None:
    """Search for as long as this process lives: in a thread of a triggerer's main process."""
    interval = config().orphan_interval
    presence = Presence(os.getpid(), interval)
    presence.forget()
    attendants: dict[str, Attendant] = {}
    pause(FIRST_SECONDS)
    while True:
        in_doubt = False
        try:
            for team in teams():
                if team not in attendants:
                    places, name = partial(places_of, team), partial(name_of, team)
                    attendants[team] = Attendant(presence, places, states_in_database, name)
                in_doubt |= attendants[team].reconcile()
        except Exception as error:  # noqa: BLE001  the thread must outlive whatever Airflow answers
            _LOG.warning("cannot look for forgotten jobs, trying again: %r", error)
        pause(min(interval, DOUBT_SECONDS) if in_doubt else interval)
