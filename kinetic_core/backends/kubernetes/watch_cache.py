"""Jobs of a namespace as the API server sees them: one list and one watch per kind of object.

Observers of jobs ask a `NamespaceWatch` instead of the server. While they ask for one job, its caches know
that job alone; else they know all jobs of the namespace. The threads live while somebody asks. A watch that
ends goes on where it stopped; one that has expired (410) starts with a new list.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kinetic_core.backends.kubernetes.client import ClusterApi, Expired
from kinetic_core.backends.kubernetes.fallbacks import current
from kinetic_core.backends.kubernetes.names import CHOICE_SUFFIX, CHUNK, FAILED_CREATE, JOB_ID, JOB_NAME
from kinetic_core.counters import count
from kinetic_core.errors import ClusterError, ClusterUnreachable
from kinetic_core.job import JobReference
from kinetic_core.retry import pauses

SELECTOR = "app=kinetic"
SINGLE = f"{SELECTOR},!{CHUNK}"
"""Selector of Jobs and pods outside of batches whose inputs share Jobs, which may have ten thousand pods."""
WATCH_SECONDS = 50.0
"""Seconds that one watch lasts, and for which a connection that died in silence can go unnoticed."""
_IDLE_SECONDS = 15.0
_SYNC_SECONDS = 30.0
_REFUSED_WATCHES = 3
"""Watches in a row that may be refused before objects are listed anew: what changes is not seen else."""
_REMEMBERED = 100_000
_PAGE_SIZE = 1_000
"""Objects that one request lists, at most: the JSON of ten thousand takes more memory than what is kept."""
_SHARED = 10_000
"""Parts of objects that are remembered to be shared, at most."""
_CHOICE = re.compile(CHOICE_SUFFIX.format(r"\d+") + "$")
_LOG = logging.getLogger(__name__)

Object = dict[str, Any]


class Query(NamedTuple):
    """Objects that one list and one watch read: those of a kind that have these labels and fields."""

    kind: str
    labels: str = ""
    fields: str = ""

    @property
    def selectors(self) -> dict[str, str]:
        """Return the parameters of a request."""
        return {"labelSelector": self.labels, "fieldSelector": self.fields}


_REFUSALS = f"reason={FAILED_CREATE}"
"""Selector of the events that say why a Job or its controller gets no pods."""
ALL_JOBS = (Query("Job", SELECTOR), Query("Pod", SINGLE), Query("Event", fields=_REFUSALS))


def queries_of(reference: JobReference) -> tuple[Query, ...]:
    """Return the queries for the objects of one job, and of its worker if it is a call.

    The API server finds a Job of a given name, and whom to tell of its changes, without a look at the others.
    A call's worker has a name of its own, and so has the Job for each accelerator after the first.
    """
    ids = ",".join(filter(None, (reference.job_id, reference.worker)))
    others = range(1, len(reference.choices.split(",")))
    names = [reference.k8s_name, *(reference.k8s_name + CHOICE_SUFFIX.format(each) for each in others)]
    names += [JOB_NAME.format(reference.worker)] if reference.worker else []
    own = f"{JOB_ID} in ({ids})"
    jobs = Query("Job", f"{SELECTOR},{own}") if len(names) > 1 else Query("Job", fields=_named(names[0]))
    events = (Query("Event", fields=f"involvedObject.name={name},{_REFUSALS}") for name in names)
    return jobs, Query("Pod", f"{SINGLE},{own}"), *events


def _named(name: str) -> str:
    return f"metadata.name={name}"


class SharedParts:
    """Maker of objects that share their equal parts: strings, lists and objects, at any depth.

    Jobs of a mapped task differ in little more than their names, and a triggerer keeps ten thousand of them.
    Nobody may change such an object. When too many parts are remembered, all are forgotten: those of later
    objects are shared anew.
    """

    def __init__(self, limit: int = _SHARED) -> None:
        self._limit = limit
        self._parts: dict[Hashable, Any] = {}

    def make_object(self, pairs: list[tuple[str, Any]]) -> Object:
        """Make an object from its pairs, without `managedFields`, which nobody reads; see `json.loads`."""
        if len(self._parts) > self._limit:
            self._parts.clear()
        made = {self._shared(key): self._shared(value) for key, value in pairs if key != "managedFields"}
        key = (dict, *((name, _identity(value)) for name, value in made.items()))
        found: Object = self._parts.setdefault(key, made)
        return found

    def _shared(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._parts.setdefault(value, value)
        if isinstance(value, list):
            made = [self._shared(each) for each in value]
            return self._parts.setdefault((list, *map(_identity, made)), made)
        return value  # objects are shared already, because the inner ones are made first


def _identity(part: Any) -> Hashable:
    """Return what tells a shared part from others: its id, as long as whoever remembers it holds the part."""
    return id(part) if isinstance(part, str | list | dict) else (type(part), part)


@dataclass
class _Known:
    """Objects of one job."""

    jobs: dict[str, Object] = field(default_factory=dict)
    """Jobs by name: one, or two while a job moves on to its next accelerator."""
    refusals: dict[str, Object] = field(default_factory=dict)
    """Last event that says why no pod could be created, by the Job's name."""
    pods: dict[str, Object] = field(default_factory=dict)

    def of_kind(self, kind: str) -> list[Object]:
        """Return the job's objects of a kind."""
        return list({"Pod": self.pods, "Job": self.jobs}.get(kind, {}).values())


class WatchCache:
    """Jobs of one namespace of one cluster that some queries read, kept current in the background."""

    def __init__(
        self,
        api: ClusterApi,
        namespace: str,
        queries: tuple[Query, ...] = ALL_JOBS,
        *,
        page_size: int = _PAGE_SIZE,
    ) -> None:
        self._api, self._namespace, self._queries, self._page_size = api, namespace, queries, page_size
        self._lock = threading.Condition()
        self._known: dict[str, _Known] = {}
        self._changes: deque[tuple[int, str]] = deque(maxlen=_REMEMBERED)
        self._sequence = 0
        self._synced: set[Query] = set()
        self._broken: set[Query] = set()
        self._trouble: ClusterError | None = None
        self._running: set[Query] = set()
        self._versions: dict[Query, str] = {}
        self._asked = 0.0
        self._wakers: set[Callable[[], None]] = set()

    def tell(self, wake: Callable[[], None]) -> None:
        """Register `wake`, which the threads call after every change; it must return at once."""
        with self._lock:
            self._wakers.add(wake)

    def changes(self, since: int | None) -> tuple[int, set[str] | None]:
        """Return a number for now, and the ids of jobs that changed since another; None if any may have.

        Starts the threads. Returns no ids if the cache is closed meanwhile. Raises ClusterError if the first
        list fails; the next call tries again.
        """
        with self._lock:
            self._start()
            self._wait_for_list()
            if self._is_closed:
                return self._sequence, set()
            oldest = self._changes[0][0] if self._changes else self._sequence
            if since is None or (len(self._changes) == _REMEMBERED and since < oldest):
                return self._sequence, None
            changed: set[str] = set()
            for number, job_id in reversed(self._changes):
                if number <= since:
                    break
                changed.add(job_id)
            return self._sequence, changed

    def _wait_for_list(self) -> None:
        self._lock.wait_for(lambda: self._is_synced or self._trouble or self._is_closed, _SYNC_SECONDS)
        if not self._is_synced and not self._is_closed:
            raise self._trouble or ClusterUnreachable(
                f"the API server did not list the jobs of namespace {self._namespace} within "
                f"{_SYNC_SECONDS:g} s: try again"
            )

    def close(self) -> None:
        """End the threads, and whoever waits for them; the next question starts them again."""
        with self._lock:
            self._asked = float("-inf")
            self._lock.notify_all()

    def get(self, job_id: str) -> tuple[Object, list[Object]] | None:
        """Return a job and its pods; None if they are unknown, or the cache is not current."""
        with self._lock:
            known = self._known.get(job_id) if self._is_synced else None
            if known is None or (found := current(known.of_kind("Job"), known.of_kind("Pod"))) is None:
                return None
            job, pods = found
            return with_refusal(job, pods, known.refusals.get(job["metadata"]["name"])), pods

    def jobs(self) -> dict[str, tuple[Object, list[Object]]] | None:
        """Return all jobs that have a Job each, with their pods; None if the cache is not current.

        Waits for a first list that is being read, and raises ClusterError as `changes` does: the caller would
        read the same list once more.
        """
        with self._lock:
            if self._running:
                self._wait_for_list()
            if not self._is_synced or self._broken:
                return None
            found = {
                job_id: current(single, each.of_kind("Pod"))
                for job_id, each in self._known.items()
                if (single := [job for job in each.of_kind("Job") if CHUNK not in job["metadata"]["labels"]])
            }
            return {job_id: each for job_id, each in found.items() if each is not None}

    @property
    def is_running(self) -> bool:
        """Return whether somebody has asked for changes in the last 15 seconds."""
        with self._lock:
            return bool(self._running) and self._is_wanted()

    @property
    def _is_synced(self) -> bool:
        return self._synced == set(self._queries)

    @property
    def _is_closed(self) -> bool:
        return self._asked == float("-inf")

    def _start(self) -> None:
        self._asked = time.monotonic()
        for query in set(self._queries) - self._running:
            self._running.add(query)
            name = f"kinetic-watch-{self._namespace}-{query.kind}"
            threading.Thread(target=self._follow, args=(query,), name=name, daemon=True).start()

    def _is_wanted(self) -> bool:
        return time.monotonic() - self._asked < _IDLE_SECONDS

    def _follow(self, query: Query) -> None:
        self._versions[query], waits, refused, parts = "", pauses(), 0, SharedParts()
        try:
            while self._is_wanted():
                try:
                    if not self._versions[query]:
                        self._list(query, parts)
                    self._watch(query, parts)
                    waits, refused = pauses(), 0
                except Expired:
                    self._versions[query] = ""
                    count("watch.relists", kind=query.kind)
                except Exception as exc:  # noqa: BLE001  a thread that dies of it would leave everybody waiting
                    if not self._is_wanted():
                        return
                    self._broken.add(query)
                    refused += getattr(exc, "status", None) is not None
                    if refused >= _REFUSED_WATCHES:  # as where this account may list, and not watch
                        self._versions[query] = ""
                    _LOG.warning("watching the %ss of %s, trying again: %s", query.kind, self._namespace, exc)
                    if query not in self._synced:
                        self._tell_trouble(exc)
                    time.sleep(next(waits))
        finally:
            with self._lock:
                self._running.discard(query)
                self._synced.discard(query)
                self._broken.discard(query)

    def _tell_trouble(self, exc: Exception) -> None:
        """Report why there is no first list to those who wait for it."""
        with self._lock:
            self._trouble = exc if isinstance(exc, ClusterError) else ClusterError(repr(exc))
            self._lock.notify_all()

    def _list(self, query: Query, parts: SharedParts) -> None:
        kind = query.kind
        try:
            listing = self._api.list(
                kind, self._namespace, query.selectors, parts.make_object, self._page_size
            )
        except ClusterError as exc:
            if kind != "Event" or exc.status != 403:
                raise
            listing = {"items": [], "metadata": {"resourceVersion": ""}}  # less is told without events
        present = {item["metadata"]["name"] for item in listing["items"]}
        with self._lock:
            for gone in self._absent(kind, present):
                self._apply("DELETED", kind, gone)
            for item in listing["items"]:
                self._apply("ADDED", kind, item)
            self._synced.add(query)
            self._trouble = None
            self._lock.notify_all()
        self._versions[query] = str(listing["metadata"]["resourceVersion"])

    def _absent(self, kind: str, present: set[str]) -> list[Object]:
        """Return the objects that were deleted while the watch was interrupted."""
        found = [
            item
            for known in self._known.values()
            for item in known.of_kind(kind)
            if item["metadata"]["name"] not in present
        ]
        return [item for item in found if kind == "Job" or not _has_ended(item)]

    def _watch(self, query: Query, parts: SharedParts) -> None:
        version = self._versions[query]
        if not version:
            time.sleep(_IDLE_SECONDS)
            return
        where = query.kind, self._namespace, query.selectors
        for event, item in self._api.watch(*where, version, WATCH_SECONDS, parts.make_object):
            self._broken.discard(query)
            if event != "BOOKMARK":
                with self._lock:
                    self._apply(event, query.kind, item)
            # A broken watch goes on from here, so that earlier events are not seen again.
            self._versions[query] = str(item["metadata"]["resourceVersion"])
            if not self._is_wanted():
                return

    def _apply(self, event: str, kind: str, item: Object) -> None:
        job_id = _job_id(kind, item)
        if job_id is None:
            return
        known = self._known.setdefault(job_id, _Known())
        name = item["metadata"]["name"]
        if kind == "Event":
            known.refusals[item["involvedObject"]["name"]] = item
        elif kind == "Job" and event == "DELETED":
            known.jobs.pop(name, None)
        elif kind == "Job":
            known.jobs[name] = item
        elif event != "DELETED":
            known.pods[name] = item
        elif not _has_ended(item):
            known.pods.pop(name, None)  # one that ended is evidence, as long as its job is there
        if not known.jobs and event == "DELETED" and kind != "Event":
            self._known.pop(job_id, None)
        self._sequence += 1
        self._changes.append((self._sequence, job_id))
        for wake in self._wakers:
            wake()


class NamespaceWatch:
    """A client's watch of one namespace: of a single job, as long as only that one is asked for.

    Whoever waits for one job reads nothing of ten thousand others. Whoever asks for a second job while the
    first is watched, or for all, will ask for more: from then on all jobs share one watch, until nobody has
    asked for 15 seconds.
    """

    def __init__(self, api: ClusterApi, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._lock = threading.Lock()
        self._wakers: set[Callable[[], None]] = set()
        self._all = WatchCache(api, namespace)
        self._single: WatchCache | None = None
        self._queries: tuple[Query, ...] = ()

    def tell(self, wake: Callable[[], None]) -> None:
        """Register `wake` as `WatchCache.tell` does."""
        with self._lock:
            self._wakers.add(wake)
            for cache in filter(None, (self._all, self._single)):
                cache.tell(wake)

    def changes(
        self, since: object | None, only: JobReference | None = None
    ) -> tuple[object, set[str] | None]:
        """Return a token for now, and the ids of jobs that changed since another; None if any may have.

        `only`: the job that the caller asks for, if it asks for one alone. Raises as `WatchCache.changes`.
        """
        cache = self._cache_for(only)
        known = since if isinstance(since, _Token) and since.cache is cache else None
        number, changed = cache.changes(known.number if known else None)
        return _Token(cache, number), changed

    def get(self, job_id: str) -> tuple[Object, list[Object]] | None:
        """Return a job and its pods as `WatchCache.get` does."""
        found = None if (single := self._single) is None else single.get(job_id)
        return found or self._all.get(job_id)

    def jobs(self) -> dict[str, tuple[Object, list[Object]]] | None:
        """Return all jobs as `WatchCache.jobs` does; if a single one is watched, all are from now on."""
        if (single := self._single) is not None and single.is_running:
            self.changes(None)
        return self._all.jobs()

    def close(self) -> None:
        """End the threads as `WatchCache.close` does."""
        with self._lock:
            for cache in filter(None, (self._all, self._single)):
                cache.close()

    def _cache_for(self, only: JobReference | None) -> WatchCache:
        queries = ALL_JOBS if only is None else queries_of(only)
        with self._lock:
            single = self._single
            if single is not None and queries == self._queries:
                return single
            if only is None or self._all.is_running or (single is not None and single.is_running):
                self._single = None
                if single is not None:
                    single.close()
                return self._all
            self._single, self._queries = WatchCache(self._api, self._namespace, queries), queries
            for wake in self._wakers:
                self._single.tell(wake)
            return self._single


class _Token(NamedTuple):
    """Moment of a cache: the number of its last change."""

    cache: WatchCache
    number: int


def _job_id(kind: str, item: Object) -> str | None:
    """Return the id of the job an object belongs to; None if it belongs to none."""
    if kind != "Event":
        found: str | None = (item["metadata"].get("labels") or {}).get(JOB_ID)
        return found
    name, prefix = item["involvedObject"].get("name") or "", JOB_NAME.format("")
    return _CHOICE.sub("", name.removeprefix(prefix)) if name.startswith(prefix) else None


def with_refusal(job: Object, pods: Sequence[Object], refusal: Object | None) -> Object:
    """Return the Job with the reason for which it has no pods, from an event of its own time."""
    if pods or not refusal or not _is_about(refusal, job):
        return job
    status = job.get("status") or {}
    condition = {"type": FAILED_CREATE, "status": "True", "message": refusal.get("message") or ""}
    return {**job, "status": {**status, "conditions": [*status.get("conditions", ()), condition]}}


def _is_about(event: Object, job: Object) -> bool:
    """Return whether an event of the Job's name, or of its pods' controller's, is of this Job's time."""
    about, whom = job["metadata"], event["involvedObject"]
    if whom.get("kind") == "Job" and whom.get("uid"):
        return bool(whom["uid"] == about.get("uid"))
    at = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    to_the_second = len("2026-01-01T00:00:00")
    return not at or str(at)[:to_the_second] >= str(about.get("creationTimestamp") or "")[:to_the_second]


def _has_ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
