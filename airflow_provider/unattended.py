"""Forgotten jobs where no trigger of a triggerer watches: its main process looks after those places.

`reconciling` runs beside triggers. Where there is none, nobody would find the job of a task that ended
while no triggerer was alive. The main process may read Airflow's database, as it does for its triggers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from airflow_provider.attendance import Attendance
from airflow_provider.origin import deployment
from airflow_provider.reconciling import (
    DOUBT_SECONDS,
    FIRST_SECONDS,
    PAUSE_SECONDS,
    AskStates,
    Reconciler,
    place_key,
)
from airflow_provider.used_places import used_places
from kinetic_core.lifecycle.backends import backend_of
from kinetic_core.model.job import JobReference

_LOG = logging.getLogger(__name__)


class Place(Protocol):
    """What is asked of a place: see `UsedPlace`."""

    @property
    def reference(self) -> JobReference: ...

    def connected(self) -> AbstractContextManager[None]: ...


class Attendant:
    """Compares the jobs of all places that nobody else looks after with what Airflow says of their tasks."""

    def __init__(
        self,
        attendance: Attendance,
        places: Callable[[], Iterable[Place]],
        ask: AskStates,
        name: Callable[[], str],
    ) -> None:
        self._attendance = attendance
        self._places, self._ask, self._name = places, ask, name
        self._reconcilers: dict[str, Reconciler] = {}
        self._told: dict[str, str] = {}

    def look(self) -> bool:
        """Look once, everywhere. Whether a task seems to be over whose job lives: then look again soon."""
        deployment_name = self._name()
        seen: set[str] = set()
        in_doubt = False
        for place in self._places() if deployment_name else ():
            where = f"{place.reference.namespace} ({place.reference.store_uri})"
            try:
                with place.connected():
                    in_doubt |= self._look_at(place.reference, deployment_name, seen)
                self._told.pop(where, None)
            except Exception as error:  # noqa: BLE001  tried again; other places do not depend on it
                self._tell_once(where, repr(error))
        return in_doubt

    def _look_at(self, reference: JobReference, deployment_name: str, seen: set[str]) -> bool:
        backend, namespace = backend_of(reference), reference.namespace
        key = place_key(backend, namespace)
        if key in seen or self._attendance.is_marked(key):
            return False
        seen.add(key)
        if key not in self._reconcilers:
            self._reconcilers[key] = Reconciler(backend, namespace, deployment_name, self._ask)
        reconciler = self._reconcilers[key]
        asyncio.run(reconciler.look())
        return reconciler.in_doubt

    def _tell_once(self, where: str, trouble: str) -> None:
        """A cluster that is gone for good is not told of every half minute."""
        if self._told.get(where) != trouble:
            self._told[where] = trouble
            _LOG.warning("cannot look for forgotten jobs in %s, trying again: %s", where, trouble)


async def states_in_database(dag_id: str, run_id: str, task_ids: list[str]) -> Mapping[str, object]:
    """The states of task instances of a DAG run, by their names as `Origin.key` has them."""
    return await asyncio.to_thread(_read_states, dag_id, run_id, task_ids)


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


def attend(pause: Callable[[float], object] = time.sleep) -> None:
    """Look for as long as this process lives: a triggerer's main process, in a thread of its own."""
    attendance = Attendance(os.getpid())
    attendance.forget()
    attendant = Attendant(attendance, used_places, states_in_database, deployment)
    pause(FIRST_SECONDS)
    while True:
        try:
            in_doubt = attendant.look()
        except Exception as error:  # noqa: BLE001  the thread must outlive whatever Airflow answers
            _LOG.warning("cannot look for forgotten jobs, trying again: %r", error)
            in_doubt = False
        pause(DOUBT_SECONDS if in_doubt else PAUSE_SECONDS)
