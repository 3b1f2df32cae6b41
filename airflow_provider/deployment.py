"""Facts about the Airflow that jobs belong to: its name, and the places where its jobs run.

They are in Airflow's Variables, which tasks share, and in a file of each worker's machine.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from airflow_provider.access import ACCESS, ENVIRONMENT, Access
from airflow_provider.config import config
from kinetic_core.cache import keep
from kinetic_core.connections import default_connections
from kinetic_core.errors import InvalidRequest, ProtocolMismatch
from kinetic_core.job import JobReference

NAME = "kinetic_deployment"
"""Airflow Variable whose value distinguishes the jobs of several Airflows in one namespace."""
MEANING_OF_NAME = "Tells this Airflow's Kinetic jobs from those of other Airflows"
PLACES = "kinetic_places"
"""The Airflow Variable in which tasks note where their jobs run."""
_MEANING_OF_PLACES = "Where Kinetic jobs of this Airflow have run, and are searched for orphans"
_LEAST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds between writing a Variable and reading it again, however short or long the writing took."""
_PATIENCE = 5
"""How many times as long as its writing took a worker waits before it reads the name again."""
_LOG = logging.getLogger(__name__)


def of_team(variable: str, team: str) -> str:
    """Return the name of a Kinetic Variable for the DAGs of a team, "" where Airflow has none.

    A team can read only its own Variables, but Airflow keeps one Variable per name: without the team in its
    name, one team's Variable would replace another's.
    """
    return f"{variable}_{team}" if team else variable


def deployment_name(*, make: bool = False, team: str = "") -> str:
    """Return this Airflow's name, from its Variable and its address; "" if it has none or cannot be read.

    The address (`[api] base_url`) distinguishes a copy of the metadata database, as made to test an upgrade.
    `make` creates a missing name, where no API server with the plugin has (`ui.database.ensure_name`).
    """
    from airflow.sdk import Variable

    name = of_team(NAME, team)

    def read() -> str | None:
        found: str | None = Variable.get(name, default=None)
        return found

    try:
        found = read()
        if found is None and make:
            found = make_name(read, lambda value: Variable.set(name, value, MEANING_OF_NAME))
    except Exception as error:  # noqa: BLE001  whatever Airflow answers, it is no reason not to run a job
        _LOG.info("orphans of this Airflow will not be found: the Variable %r fails: %r", name, error)
        return ""
    return with_address(found)


def make_name(
    read: Callable[[], str | None],
    write: Callable[[str], object],
    pause: Callable[[float], object] = time.sleep,
) -> str | None:
    """Write a new name to the Variable that has none, and return the name that it keeps.

    A Variable cannot be created only if it is missing: of two workers that find none, the second one to write
    replaces the name of the first. Each therefore waits until the other one, which had read at the same time,
    must have written too, and then reads the last name. One that stands still for longer between its reading
    and its writing leaves two names.
    """
    began = time.monotonic()
    write(uuid.uuid4().hex)
    took = time.monotonic() - began
    pause(min(max(took, _LEAST_PAUSE) * _PATIENCE, _LONGEST_PAUSE))
    return read()


def with_address(name: str | None) -> str:
    """Add this Airflow's address to the name in its Variable."""
    from airflow_provider.airflow_sdk import conf

    return f"{name} {conf.get('api', 'base_url', fallback='')}".strip() if name else ""


def cache_file(team: str = "") -> Path:
    """Return the file for this process's Airflow, as its settings tell it from others of this machine."""
    from airflow_provider.airflow_sdk import conf

    home = os.environ.get("AIRFLOW_HOME", "")
    api = [
        conf.get("api", "base_url", fallback=""),
        conf.get("core", "execution_api_server_url", fallback=""),
    ]
    digest = hashlib.sha256(json.dumps([home, *api, team]).encode()).hexdigest()[:32]
    return default_connections().settings.cache / "airflow" / digest


FRESH_SECONDS = 600.0


@dataclass
class Kept:
    """Facts about one Airflow, and one team in it, in a file of the cache directory.

    Variables go through secrets backends: two requests for each task that looks them up. The file costs none.
    It is believed for ten minutes, so that a machine notices a new database.
    """

    file: Path
    clock: Callable[[], float] = time.time
    name: str = field(init=False, default="")
    places: list[str] = field(init=False, default_factory=list)
    _since: float = field(init=False, default=0.0)

    @classmethod
    def here(cls, team: str) -> Self:
        """Return those of this process's Airflow."""
        return cls(cache_file(team))

    def __post_init__(self) -> None:
        try:
            told = json.loads(self.file.read_bytes())
            since, name, places = float(told["since"]), told["name"], told["places"]
        except (OSError, ValueError, TypeError, KeyError):
            return
        sound = isinstance(name, str) and isinstance(places, list) and all(isinstance(p, str) for p in places)
        if sound and 0 <= self.clock() - since < FRESH_SECONDS:
            self._since, self.name, self.places = since, name, places

    def keep(self, *, name: str = "", places: Iterable[str] = ()) -> None:
        """Add what was just read. What was read first says how long the file is believed."""
        self._since = self._since or self.clock()
        self.name = name or self.name
        self.places = list(dict.fromkeys([*self.places, *places]))
        told = {"since": self._since, "name": self.name, "places": self.places}
        keep(self.file, json.dumps(told).encode())


@dataclass(frozen=True)
class UsedPlace:
    """Store and namespace of a cluster, as some job's reference names them, and the task's connections."""

    reference: JobReference
    access: Access = ENVIRONMENT

    @property
    def key(self) -> str:
        """Return a key that is equal for all jobs of the place."""
        job = self.reference
        cluster = "/".join((job.project, job.zone, job.cluster_name, job.namespace))
        access = self.access
        names = filter(None, (access.conn_id or "-", access.gcp_conn_id, *access.impersonation_chain))
        return " ".join((job.backend, job.store_uri, cluster, *names, f"v{job.protocol}"))

    @classmethod
    def of(cls, entry: dict[str, Any]) -> Self:
        """Decode an entry of the Variable.

        Raises KeyError, TypeError, InvalidRequest or ProtocolMismatch for any other.
        """
        reference = JobReference.from_dict(entry["reference"])
        return cls(reference, Access.of(**{name: entry.get(name) for name in ACCESS}))


def remember(reference: JobReference, access: Access, team: str = "") -> None:
    """Record where this job runs, if no job of the team has run there so far, as far as `Kept` knows.

    A Variable that cannot be written does not keep a job from running.
    """
    from airflow.sdk import Variable

    name, place = of_team(PLACES, team), UsedPlace(reference, access)
    try:
        kept = Kept.here(team)
        if place.key in kept.places:
            return
        record(
            place,
            config().orphan_places,
            lambda: Variable.get(name, default=None) or "",
            lambda text: Variable.set(name, text, _MEANING_OF_PLACES),
        )
        kept.keep(places=[place.key])
    except Exception as error:  # noqa: BLE001  whatever Airflow answers
        _LOG.info("namespace %s will not be searched for orphans: %r", reference.namespace, error)


def noted_places() -> list[UsedPlace]:
    """Return the places that tasks of no team have noted; for a trigger."""
    from airflow.sdk import Variable

    return read_places(Variable.get(PLACES, default=None) or "")


_MOST_WRITES = 5


def record(
    place: UsedPlace,
    limit: int,
    read: Callable[[], str],
    write: Callable[[str], object],
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Add a place to the Variable that `read` returns and `write` replaces, unless it is there.

    Two tasks that add their places at once both read the Variable before either writes it, and the second
    write undoes the first. Each therefore reads it again, after a random multiple of the time that its own
    reading and writing took, and adds a place that is gone once more. It gives up after five times; the next
    job there, once `Kept` is no longer believed, tries again.
    """
    for _ in range(_MOST_WRITES):
        began = time.monotonic()
        text = with_place(read(), place, limit)
        if text is None:
            return
        write(text)
        took = time.monotonic() - began
        pause(min(max(took, _LEAST_PAUSE) * random.uniform(1, 3), _LONGEST_PAUSE))  # noqa: S311  no secret


def read_places(text: str) -> list[UsedPlace]:
    """Decode the Variable's places, the newest last; any other entry is left out."""
    found = []
    for entry in _entries(text).values():
        try:
            found.append(UsedPlace.of(entry))
        except (KeyError, TypeError, InvalidRequest, ProtocolMismatch) as error:
            _LOG.debug("%s has an entry that is none: %r", PLACES, error)
    return found


def with_place(text: str, place: UsedPlace, limit: int) -> str | None:
    """Return the Variable with the place and the newest others, `limit` in all; None if it has the place."""
    known = _entries(text)
    if place.key in known:
        return None
    kept = list(known.items())[max(0, len(known) + 1 - limit) :]
    entry = {"reference": place.reference.to_dict(), **place.access.to_dict()}
    return json.dumps({**dict(kept), place.key: entry})


def _entries(text: str) -> dict[str, Any]:
    try:
        told = json.loads(text or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
