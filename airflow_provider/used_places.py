"""Where jobs of this Airflow have run: a Variable that says where to look for those which were forgotten."""

from __future__ import annotations

import json
import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

from kinetic_core.configuration import using
from kinetic_core.errors import ProtocolMismatch
from kinetic_core.model.job import JobReference

VARIABLE = "kinetic_places"
"""The Airflow Variable in which tasks note where their jobs run."""
_MEANING = "Where Kinetic jobs of this Airflow have run: triggerers look there for those whose task is over"
MOST = 50
"""How many are kept."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class UsedPlace:
    """A store and a namespace of a cluster, as some job's reference names them, and the task's connection."""

    reference: JobReference
    conn_id: str | None = None

    @property
    def key(self) -> str:
        """The same for all jobs of the place."""
        job = self.reference
        cluster = "/".join((job.project, job.zone, job.cluster_name, job.namespace))
        return " ".join((job.backend, job.store_uri, cluster, self.conn_id or "-", f"v{job.protocol}"))

    def connected(self) -> AbstractContextManager[None]:
        """Inside, settings are those of the connection. Raises ConfigurationError if it cannot be read."""
        if not self.conn_id:
            return nullcontext()
        from airflow_provider.hooks.kinetic import recent_settings

        return using(recent_settings(self.conn_id))

    @classmethod
    def of(cls, entry: dict[str, Any]) -> Self:
        """From the Variable. Raises KeyError, TypeError, ProtocolMismatch for what is none of its entries."""
        return cls(JobReference.from_dict(entry["reference"]), entry.get("conn_id"))


def used_places() -> list[UsedPlace]:
    """Where tasks of this Airflow have noted that jobs run."""
    return read_places(_variable())


def remember(reference: JobReference, conn_id: str | None) -> None:
    """Note where this job runs, if no job has run there so far.

    Of two places that are noted at one moment the next job in the other notes it again. A Variable that
    cannot be written is no reason not to run a job.
    """
    from airflow.sdk import Variable

    try:
        text = with_place(_variable(), UsedPlace(reference, conn_id))
        if text is not None:
            Variable.set(VARIABLE, text, _MEANING)
    except Exception as error:  # noqa: BLE001  whatever Airflow answers
        _LOG.info("no triggerer will look for forgotten jobs in %s: %r", reference.namespace, error)


def read_places(text: str) -> list[UsedPlace]:
    """What the Variable says, the newest last. What is no entry of ours is left out."""
    found = []
    for entry in _entries(text).values():
        try:
            found.append(UsedPlace.of(entry))
        except (KeyError, TypeError, ProtocolMismatch) as error:
            _LOG.debug("%s has an entry that is none: %r", VARIABLE, error)
    return found


def with_place(text: str, place: UsedPlace) -> str | None:
    """The Variable with the place, and the newest of the others; None if it has it already."""
    known = _entries(text)
    if place.key in known:
        return None
    kept = list(known.items())[1 - MOST :]
    entry = {"reference": place.reference.to_dict(), "conn_id": place.conn_id}
    return json.dumps({**dict(kept), place.key: entry})


def _variable() -> str:
    from airflow.sdk import Variable

    return Variable.get(VARIABLE, default=None) or ""


def _entries(text: str) -> dict[str, Any]:
    try:
        told = json.loads(text or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
