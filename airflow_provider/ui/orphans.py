"""Search for orphans in the API server, which has Airflow's database, and plugins wherever the page works.

Like the page it goes only to stores, clusters and namespaces that the server's settings or a connection name,
as no other account than theirs: the Variables, in which tasks note places, may name any. Triggers of deferred
tasks search too; two searches at once are harmless.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_provider.deployment import UsedPlace
from airflow_provider.orphans import DOUBT_SECONDS, AskStates, Attendant
from airflow_provider.ui.places import Places, settings_of
from kinetic_core.backends.base import Backend
from kinetic_core.job import JobReference

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownPlace:
    """Place that a task has noted, as far as this server's settings or a connection name it."""

    used: UsedPlace
    places: Places

    @property
    def reference(self) -> JobReference:
        """Return the reference of a job there."""
        return self.used.reference

    async def backend(self) -> Backend:
        """Return its backend, for the connection's own account. Raises Elsewhere as `Places.of` does."""
        access = replace(self.used.access, impersonation_chain=())
        return self.places.of(self.reference, settings_of(access))


class SearchLock:
    """Right of one process of this machine to search until it ends, however it ends: a lock on a file.

    Where none can be had, every process searches, which is harmless.
    """

    def __init__(self, file: Callable[[], Path]) -> None:
        """Take nothing yet. `file` is asked for at first use, and created; the cache directory has it."""
        self._file = file
        self._held: int | None = None

    def take(self) -> bool:
        """Take or keep the right; return False if another process has it. Raises what `file` does."""
        if self._held is not None:
            return True
        file = self._file()
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            return not isinstance(error, BlockingIOError)
        self._held = descriptor
        return True


class ServerSearch:
    """Search in all places that tasks of any team have noted.

    `teams` lists Airflow's teams, "" for DAGs without one. `places` are what a team's tasks have noted,
    `name` is what their jobs have, made when it is first asked for.
    """

    def __init__(
        self,
        teams: Callable[[], Iterable[str]],
        places: Callable[[str], list[UsedPlace]],
        name: Callable[[str], str],
        ask: AskStates,
    ) -> None:
        self._teams, self._places, self._name, self._ask = teams, places, name, ask
        self._attendants: dict[str, Attendant] = {}
        self._known = Places()

    async def reconcile(self) -> bool:
        """Search once; return whether a live job's task seems to be over, to search soon."""
        in_doubt = False
        for team in self._teams():
            attendant = self._attendants.setdefault(team, self._attendant(team))
            in_doubt |= await attendant.reconcile()
        return in_doubt

    def _attendant(self, team: str) -> Attendant:
        async def places() -> list[KnownPlace]:
            return [KnownPlace(each, self._known) for each in self._places(team)]

        async def name() -> str:
            return self._name(team)

        return Attendant(places, self._ask, name)


_REST = 4
"""Seconds without a search for each second of one that took long: it lists every job of each place."""


def search(
    searching: ServerSearch,
    interval: float,
    lock: SearchLock,
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Search for as long as this process lives, in a thread of the API server, once it has the lock.

    `interval`: the seconds between two searches, more if a search takes long.
    """
    while True:
        began, in_doubt = clock(), False
        try:
            if lock.take():
                in_doubt = asyncio.run(searching.reconcile())
        except Exception as error:  # noqa: BLE001  the thread must outlive whatever Airflow answers
            _LOG.warning("cannot look for orphans, trying again: %r", error)
        rest = max(interval, _REST * (clock() - began))
        pause(min(rest, DOUBT_SECONDS) if in_doubt else rest)
