"""Jobs whose tasks are over although nobody ended the jobs: found among all that live, and cancelled.

A task is ended while no triggerer is alive, and its DAG run deleted; a worker dies, and Airflow gives the
task up: then no trigger and no worker is left that would cancel the job. Every triggerer that watches jobs
of a namespace compares all that live there with what Airflow says of their tasks; where it watches none,
`unattended` does.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from airflow_provider.attendance import Attendance
from airflow_provider.origin import Origin
from kinetic_core.cluster.names import ORIGIN
from kinetic_core.cluster.verdict import observe as verdict
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.ending import cancel
from kinetic_core.lifecycle.hub import hub_for
from kinetic_core.lifecycle.observing import find

FIRST_SECONDS, PAUSE_SECONDS, DOUBT_SECONDS = 5.0, 25.0, 10.0
"""Before the first look, between two, and after one that saw a task over whose job lives."""
_ALIVE = frozenset(
    ("None", "scheduled", "queued", "running", "deferred", "restarting", "up_for_retry", "up_for_reschedule")
)
"""States from which a task goes on. Any other, or none because it is gone, ends its job."""
_LOG = logging.getLogger(__name__)

AskStates = Callable[[str, str, list[str]], Awaitable[Mapping[str, object]]]
"""The states of tasks by their names in a DAG run, as `RuntimeTaskInstance.get_task_states` has them."""
Live = dict[str, Origin]


@dataclass
class Reconciler:
    """Looks at the jobs of one backend and namespace that no trigger of this process watches."""

    backend: Backend
    namespace: str
    deployment: str
    ask: AskStates
    _doubted: set[str] = field(default_factory=set)

    @property
    def in_doubt(self) -> bool:
        """Whether the last look saw a job whose task seems to be over, and left it for the next."""
        return bool(self._doubted)

    async def look(self) -> list[str]:
        """Cancel the jobs whose tasks were over at this look and the one before; their ids.

        Twice, because a job is there a moment before Airflow knows of its task's next state.
        """
        live = await asyncio.to_thread(self._unwatched)
        over = set(await self._over(live))
        ended = sorted(over & self._doubted)
        self._doubted = over - self._doubted
        for job_id in ended:
            _LOG.warning("cancelling %s: its task, %s, is over", job_id, live[job_id])
        await asyncio.gather(*(asyncio.to_thread(self._cancel, job_id) for job_id in ended))
        return ended

    def _unwatched(self) -> Live:
        watched = hub_for(self.backend, self.namespace).watched()
        found: Live = {}
        for job_id, (job, pods) in self.backend.all(self.namespace, fresh=False).items():
            text = (job["metadata"].get("annotations") or {}).get(ORIGIN)
            if text is None or job_id in watched or verdict(job, pods).is_terminal:
                continue
            origin = Origin.from_text(text)
            if origin is not None and origin.deployment == self.deployment:
                found[job_id] = origin
        return found

    async def _over(self, live: Live) -> list[str]:
        """One question for all jobs of a DAG run."""
        runs: dict[tuple[str, str], Live] = defaultdict(dict)
        for job_id, origin in live.items():
            runs[origin.dag_id, origin.run_id][job_id] = origin
        over = []
        for (dag_id, run_id), jobs in runs.items():
            states = await self.ask(dag_id, run_id, sorted({each.task_id for each in jobs.values()}))
            over += [job_id for job_id, each in jobs.items() if _is_over(states, each.key)]
        return over

    def _cancel(self, job_id: str) -> None:
        reference = find(self.backend, job_id)
        if reference is not None:
            cancel(reference)


def _is_over(states: Mapping[str, object], key: str) -> bool:
    return key not in states or str(states[key]) not in _ALIVE


def place_key(backend: Backend, namespace: str) -> str:
    """By which the triggers and the main process of a triggerer know a place."""
    return f"{backend.key} {namespace}"


@dataclass
class _Looking:
    """What looks at a backend and namespace, and for how many triggers' sake."""

    task: asyncio.Task[None]
    users: int = 0


_running: dict[tuple[str, str], _Looking] = {}
"""By backend and namespace."""


@asynccontextmanager
async def reconciled(
    backend: Backend, namespace: str, ask: AskStates, name: Callable[[], Awaitable[str]]
) -> AsyncIterator[None]:
    """Inside, somebody in this process looks after the jobs that nobody watches. `name` is asked for once."""
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
    attendance, key = Attendance(os.getppid()), place_key(backend, namespace)
    await asyncio.sleep(FIRST_SECONDS)
    reconciler: Reconciler | None = None
    while True:
        try:
            if reconciler is None and (deployment := await name()):
                reconciler = Reconciler(backend, namespace, deployment, ask)
            if reconciler is not None:
                await reconciler.look()
                await asyncio.to_thread(attendance.mark, key)
        except Exception as error:  # noqa: BLE001  tried again; triggers do not depend on it
            _LOG.warning("cannot compare the jobs of %s with their tasks, trying again: %r", namespace, error)
        doubts = reconciler is not None and reconciler.in_doubt
        await asyncio.sleep(DOUBT_SECONDS if doubts else PAUSE_SECONDS)
