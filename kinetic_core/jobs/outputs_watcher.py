"""Watcher of outputs: finds each job of a function that has succeeded and stored outputs, and tells it once.

What a watcher has done is kept in the jobs' store, below `watchers/`, so that a watcher of the same identity
goes on elsewhere after this process has died (ADR 0068). A job that was told is marked by the caller, with
`settle`, when the news has certainly arrived: without its mark it is told again.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.outcome import Header
from kinetic_core.backends.base import Backend
from kinetic_core.errors import (
    JobNotFound,
    KineticError,
    MalformedObject,
    ObjectNotFound,
    OtherCluster,
    ProtocolMismatch,
    StoreRefused,
)
from kinetic_core.job import JobReference
from kinetic_core.jobs.garbage_collection import RETENTION
from kinetic_core.jobs.listing import IndexEntry, recent
from kinetic_core.jobs.observe import found
from kinetic_core.jobs.outputs import matching_names, outputs_location
from kinetic_core.jobs.signing import verified_header, vouches
from kinetic_core.store.documents import read_document, read_start

_OVERLAP_SECONDS = 3600.0
"""Seconds of the index that every look lists: clocks of submitters differ, and large uploads take long."""
_COMPLETE_SECONDS = 3600.0
"""Seconds between two looks at all of the last `RETENTION` seconds."""
_DOUBT_SECONDS = 600.0
"""Seconds until a job is examined again whose objects in the store are not what they should be."""
_SKEW_SECONDS = 300.0
"""Seconds by which the clocks of a pod and of the store may differ."""
_DAY = 86_400.0
_DOUBTFUL = (
    JobNotFound,
    MalformedObject,
    ObjectNotFound,
    ProtocolMismatch,
    StoreRefused,
    wire.FrameError,
)
"""What the objects of one job may raise, which is no reason not to tell others."""
_ENTRIES = 100_000
"""Index entries that are read at most."""
_TOLD_AT_ONCE = 100
"""Jobs that one look tells at most."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredOutputs:
    """Outputs of a job that has succeeded: the first `names`, and whether there are `more`.

    `uri` is their directory, `finished_at` in Unix seconds; `mark` is the object that says they were told.
    """

    job_id: str
    function: str
    uri: str
    names: tuple[str, ...]
    more: bool
    finished_at: float
    mark: str

    def to_dict(self) -> dict[str, Any]:
        """Return what a message says of them, as plain JSON."""
        told = {**asdict(self), "names": list(self.names)}
        del told["mark"]
        return told


class RecentEntries:
    """Newest entries of a store's index, listed once for all watchers that look at about the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[IndexEntry] = []
        self._listed_at, self._since = float("-inf"), float("inf")

    def get(self, backend: Backend, since: float, age: float) -> list[IndexEntry]:
        """Return the entries of jobs submitted since then, as they were at most `age` seconds ago."""
        with self._lock:
            now = time.monotonic()
            if now - self._listed_at > age or since < self._since:
                self._entries = list(recent(backend, since, _ENTRIES))
                self._listed_at, self._since = now, since
            return [entry for entry in self._entries if entry.submitted >= since]


class OutputsWatcher:
    """Watcher of the outputs of a function's jobs whose names match a shell pattern (`*` also matches `/`).

    Inputs of batches are not told, nor jobs that ended before the watcher of this `identity` first looked.
    Not safe for threads.
    """

    def __init__(
        self, function: str, pattern: str, identity: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._function, self._pattern = function, pattern
        self._folder, self._clock = f"watchers/{identity}", clock
        self._since: float | None = None
        self._listed_until = 0.0
        self._unfinished: frozenset[str] = frozenset()
        self._marks: dict[str, float] = {}
        self._marked_jobs: dict[str, float] = {}
        self._seen: set[str] = set()
        self._open: dict[str, IndexEntry] = {}
        self._doubted: dict[str, float] = {}
        self._complete_at = float("-inf")

    def look(self, backend: Backend, entries: RecentEntries, age: float = 0.0) -> list[StoredOutputs]:
        """Return jobs that were not told, at most 100; an index read `age` seconds ago will do.

        Raises KineticError if nothing can be told because the store or the cluster does not answer.
        """
        now = self._clock()
        is_complete = now - self._complete_at >= _COMPLETE_SECONDS
        since = now - (RETENTION if is_complete else _OVERLAP_SECONDS)
        own = [each for each in entries.get(backend, since, age) if each.func_name == self._function]
        if self._since is None:
            self._begin(backend, own)
        if is_complete:
            self._forget(backend, {each.name for each in own}, now)
            self._complete_at = now
        for each in own:
            if each.name not in self._seen:
                self._seen.add(each.name)
                if self._may_be_new(each):
                    self._open[each.name] = each
        return self._told(backend)

    def settle(self, backend: Backend, told: StoredOutputs) -> None:
        """Mark a job: no watcher of this identity tells it again."""
        backend.store.create_if_absent(told.mark, b"")

    def _begin(self, backend: Backend, own: Sequence[IndexEntry]) -> None:
        """Read what watchers of this identity have done; the first of them says when and with what it began.

        The store's own time of that object counts, which nobody can set back.
        """
        store, name = backend.store, f"{self._folder}/since.json"
        if store.find(name) is None:
            ended = store.present([object_names.result(each.job_id) for each in own])
            begun = {
                "function": self._function,
                "pattern": self._pattern,
                "listed_until": max((each.stored for each in own), default=0.0),
                "unfinished": [each.job_id for each in own if object_names.result(each.job_id) not in ended],
            }
            store.create_if_absent(name, json.dumps(begun).encode())
        info = store.find(name)
        if info is None:
            raise ObjectNotFound(f"{store.uri}/{name} was removed just now")
        told = read_document(store, name, listed_until=float, unfinished=list)
        self._listed_until, self._unfinished = told["listed_until"], frozenset(map(str, told["unfinished"]))
        for mark in store.list(f"{self._folder}/told/"):
            self._marks[mark.name] = mark.created
            job_id = _job_of(mark.name)
            self._marked_jobs[job_id] = max(mark.created, self._marked_jobs.get(job_id, 0.0))
        self._since = info.created

    def _forget(self, backend: Backend, listed: set[str], now: float) -> None:
        """Forget jobs that are not listed any more, and marks of jobs that are too old to be told."""
        self._seen &= listed
        self._open = {name: each for name, each in self._open.items() if name in listed}
        self._doubted = {name: at for name, at in self._doubted.items() if name in listed}
        old = [mark for mark, at in self._marks.items() if at < now - RETENTION - _DAY]
        backend.store.delete_many(old)
        for mark in old:
            del self._marks[mark]
            self._marked_jobs.pop(_job_of(mark), None)

    def _may_be_new(self, entry: IndexEntry) -> bool:
        """Return whether a job has to be examined, as far as the index can tell. A hint: see `_examine`."""
        if self._marked_jobs.get(entry.job_id, float("-inf")) >= entry.stored:
            return False  # else the job was removed, and submitted again
        return entry.stored > self._listed_until or entry.job_id in self._unfinished

    def _told(self, backend: Backend) -> list[StoredOutputs]:
        """Examine the jobs that have an outcome."""
        news: list[StoredOutputs] = []
        now = self._clock()
        waiting = [each for each in self._open.values() if self._doubted.get(each.name, 0.0) <= now]
        ended = backend.store.present([object_names.result(each.job_id) for each in waiting])
        for each in waiting:
            if object_names.result(each.job_id) not in ended:
                continue
            try:
                told = self._examine(backend, each)
            except KineticError:
                if not news:
                    raise
                break  # the next look says so
            if told is not None:
                news.append(told)
            if len(news) == _TOLD_AT_ONCE:
                break
        return news

    def _examine(self, backend: Backend, entry: IndexEntry) -> StoredOutputs | None:
        """Return the outputs of a job that has to be told now; close any other that has ended.

        Others who can write to the store may have written index entry, handle and outcome: only what the
        outcome's signature confirms is believed. Raises KineticError if something does not answer.
        """
        try:
            reference = found(backend, entry.job_id)
            header, run = _verified(backend, reference)
            mark = f"{self._folder}/told/{entry.job_id}/{run}"
            names, more = ([], False) if mark in self._marks else self._names(backend, reference, header)
        except OtherCluster:
            self._open.pop(entry.name)
            return None
        except _DOUBTFUL as exc:
            if entry.name not in self._doubted:
                _LOG.warning("%s is not told as a job of %s for now: %s", entry.job_id, self._function, exc)
            self._doubted[entry.name] = self._clock() + _DOUBT_SECONDS
            return None
        told = StoredOutputs(
            job_id=entry.job_id,
            function=self._function,
            uri=_uri(outputs_location(reference)),
            names=tuple(names),
            more=more,
            finished_at=header.times.get("finished", 0.0),
            mark=mark,
        )
        if not names and mark not in self._marks:
            self.settle(backend, told)
        self._marks[mark] = self._clock()
        self._open.pop(entry.name)
        return told if names else None

    def _names(self, backend: Backend, reference: JobReference, header: Header) -> tuple[list[str], bool]:
        """Return the outputs of a job as `matching_names`, none of one that failed or ended too long ago.

        Raises FrameError if the outcome confirms neither the function nor where the outputs are.
        """
        if header.state != "succeeded":
            return [], False
        key_id = header.key_id
        if reference.func_name != self._function or not vouches(key_id, reference):
            raise wire.FrameError("its outcome does not confirm the function and outputs of its handle")
        assert self._since is not None  # noqa: S101  a look has begun
        earliest = max(self._since - _SKEW_SECONDS, self._clock() - RETENTION)
        if header.times.get("finished", 0.0) < earliest:
            return [], False
        return matching_names(backend.connections, reference, self._pattern)


def _verified(backend: Backend, reference: JobReference) -> tuple[Header, str]:
    """Return the header of a job's signed outcome, and a name of the run that has it.

    A job that was removed and submitted again has run twice. Raises FrameError if the outcome is not signed.
    """
    found = backend.get(reference.namespace, reference.job_id)
    start = read_start(backend.store, object_names.result(reference.job_id))
    header = Header.from_dict(verified_header(backend, reference, start, found[0] if found else None))
    return header, wire.digest(header.key_id.encode())[:16]


def _job_of(mark: str) -> str:
    return mark.split("/")[3]


def _uri(location: str) -> str:
    return Path(location).as_uri() if Path(location).is_absolute() else location
