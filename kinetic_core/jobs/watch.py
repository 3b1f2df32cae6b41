"""Watch of jobs: one per backend and namespace for every observer of one client.

A JobWatch has a daemon thread that lives while somebody is subscribed. It asks the backend what changed,
observes those jobs, or reconciles them if a subscriber follows them, and calls their subscribers. Events are
hints: subscribers always get a fresh observation. An error is retried after a while; it neither fails the
job nor delays other jobs. If the cluster or the store keeps refusing, subscribers that asked for it are told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kinetic_core._runner import object_names
from kinetic_core._runner.notes import LONGEST_NOTE, ForgedNote, decode_note
from kinetic_core.backends.base import Backend, Found
from kinetic_core.backends.kubernetes.chunks import chunk_of
from kinetic_core.backends.kubernetes.names import LEASE_SECONDS, NODE_SILENT
from kinetic_core.backends.kubernetes.objects import Pod
from kinetic_core.errors import ClusterError, InvalidRequest, KineticError, ObjectNotFound, StoreRefused
from kinetic_core.job import ChunkObservation, JobObservation, JobReference, JobStatus
from kinetic_core.jobs.decide import ON_WORKER, OWN_POD
from kinetic_core.jobs.facts import observed
from kinetic_core.jobs.lanes import is_lane
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.jobs.signing import outcome_key, variable
from kinetic_core.retry import Refusals, Reminders

_MARGIN = 1.1
_MARGIN_SECONDS = 5.0
"""Seconds beyond the lease's own time, for a slower clock there, and for processes to end."""
_LOG = logging.getLogger(__name__)


@dataclass
class LeaseWatch:
    """State of one observer about the leases of attempts on silent nodes.

    The Job says how long a lease lasts; the pod has signed that its attempt took one; the generation of the
    object in the store says whether it was renewed, so that a writer of the store cannot hide a renewal.
    """

    backend: Backend
    clock: Callable[[], float] = time.monotonic
    _seen: dict[tuple[str, int], tuple[str, float]] = field(default_factory=dict)
    """Generation of a lease, and when it was first seen (monotonic), by job and attempt."""

    def reconcile(self, reference: JobReference, attempt: int) -> None:
        """Release the attempt's pod if its lease has run out; an attempt without a lease is left alone."""
        found = self.backend.get(reference.namespace, reference.job_id)
        lasts = variable(found[0], LEASE_SECONDS) if found is not None else ""
        if found is None or not lasts:
            return
        key, now = (reference.job_id, attempt), self.clock()
        lease = self.backend.store.find(object_names.lease(*key))
        if lease is None:
            return
        seen, since = self._seen.setdefault(key, (lease.generation, now))
        if seen != lease.generation:
            self._seen[key] = lease.generation, now
        elif now - since > float(lasts) * _MARGIN + _MARGIN_SECONDS and self._is_its_own(found, key):
            self._let_go(reference, attempt)

    def _is_its_own(self, found: Found, key: tuple[str, int]) -> bool:
        """Return whether that attempt's pod has taken the lease; a pod that has not may still begin."""
        name, secret = object_names.lease(*key), outcome_key(found[0])
        try:
            told = decode_note(secret or b"", name, self.backend.store.read_range(name, 0, LONGEST_NOTE))
        except ObjectNotFound:
            return False
        except ForgedNote as exc:
            _LOG.warning("%s; its pod is left alone", exc)
            return False
        return {told["pod"]} == {pod["metadata"]["uid"] for pod in found[1] if Pod(pod).attempt == key[1]}

    def _let_go(self, reference: JobReference, attempt: int) -> None:
        try:
            self.backend.let_go(reference.namespace, reference.job_id, attempt)
        except ClusterError as exc:
            if exc.status != 403:
                raise
            _LOG.warning(
                "%s: the lease of attempt %d has run out, and this account may not replace its pod: its role "
                "needs 'delete' on pods and 'patch' on pods/status (docs/guides/clusters.md)",
                reference.job_id,
                attempt + 1,
            )


_RETRY_SECONDS = 2.0
_UNSEEN_SECONDS = 5.0
"""Seconds between requests for the outcome of a job whose end Kubernetes cannot see."""
_CALL_SECONDS = 0.2
"""Seconds between looks for the outcome of a call: its Job does not change when its worker has run it."""
_LONGEST_CALL_SECONDS, _CALL_SHARE = 5.0, 0.02
"""The same for a call that takes long: a fiftieth of the time since its submission, and at most so much."""
_STARTING_SECONDS = 0.5
"""Seconds between looks at a call whose worker has not started, which changes nothing of the call either."""
_UNWATCHED_SECONDS = 10.0
"""Seconds between requests for the pods of a chunk that has not started: they are not watched."""
_REFUSALS = (StoreRefused, ClusterError)
"""Errors of which subscribers are told if they neither pass nor end: somebody must permit something."""

Callback = Callable[[JobObservation], None]
Ask = Callable[[Backend, JobReference], JobObservation]


@dataclass(frozen=True)
class Kind:
    """Functions that observe and reconcile the thing a reference names."""

    observe: Ask
    reconcile: Ask


JOB = Kind(observed, reconcile)


@dataclass(eq=False)
class Subscription:
    """Subscription of one observer to one job. A callback that runs during `close()` is the last.

    A job is reconciled if one of its subscriptions `follows` it, else only observed.
    """

    reference: JobReference
    callback: Callback
    watch: JobWatch
    kind: Kind
    follows: bool
    refused: Callable[[KineticError], None] | None = None
    last: JobObservation | None = None
    closed: bool = False

    def follow(self) -> None:
        """Have the job reconciled from now on, and call the callback again."""
        if not self.follows:
            self.follows, self.last = True, None
            self.watch.observe_now(self.reference.job_id)

    def close(self) -> None:
        self.closed = True
        self.watch.unsubscribe(self)


@dataclass(eq=False)
class JobWatch:
    """Subscribers of one backend and namespace, and the thread that serves them."""

    backend: Backend
    namespace: str
    clock: Callable[[], float] = time.monotonic
    _subscriptions: dict[str, list[Subscription]] = field(default_factory=dict)
    _held: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _wake: threading.Event = field(default_factory=threading.Event)
    _look_at: dict[str, float] = field(default_factory=dict)
    """Time of the clock at which a job must be observed even without a change."""
    _refused: dict[str, Refusals] = field(default_factory=dict)
    """Refusals of requests about a job."""
    _thread: threading.Thread | None = None
    _pace: float = 1.0
    _only: JobReference | None = None
    _leases: LeaseWatch = field(init=False)
    _unseen: Refusals = field(init=False)
    """Refusals of requests for what has changed."""
    _reminders: Reminders = field(default_factory=Reminders)

    def __post_init__(self) -> None:
        self._leases = LeaseWatch(self.backend, self.clock)
        self._unseen = Refusals(self.clock)

    def subscribe(
        self,
        reference: JobReference,
        callback: Callback,
        kind: Kind = JOB,
        refused: Callable[[KineticError], None] | None = None,
        *,
        follows: bool = True,
    ) -> Subscription:
        """Call `callback` with an observation of the reference's job now and after every change.

        All subscribers of a reference name the same `kind`; the job is reconciled if one of them `follows`
        it. `refused` is called when the cluster or the store keeps refusing to say how the job is, or the
        client is closed.
        """
        subscription = Subscription(reference, callback, self, kind, follows, refused)
        with self._lock:
            self._subscriptions.setdefault(reference.job_id, []).append(subscription)
            self._look_at[reference.job_id] = 0.0
            self._start()
        self._wake.set()
        return subscription

    def observe_now(self, job_id: str) -> None:
        """Observe a job with subscribers now, without waiting for a change."""
        self._look_again(job_id, 0.0)
        self._wake.set()

    def observe_calls(self, worker_id: str) -> None:
        """Observe the jobs with subscribers that are calls on this worker now."""
        with self._lock:
            for job_id, subscriptions in self._subscriptions.items():
                if subscriptions[0].reference.worker == worker_id:
                    self._look_at[job_id] = 0.0
        self._wake.set()

    def watched(self) -> set[str]:
        """Return the ids of the jobs that somebody in this process observes."""
        with self._lock:
            return set(self._subscriptions)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the thread alive inside the context: none can be started at the end of an interpreter."""
        with self._lock:
            self._held += 1
            self._start()
        try:
            yield
        finally:
            with self._lock:
                self._held -= 1
            self._wake.set()

    def _start(self) -> None:
        if self._thread is None:
            name = f"kinetic-watch-{self.namespace}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def unsubscribe(self, subscription: Subscription) -> None:
        with self._lock:
            others = self._subscriptions.get(subscription.reference.job_id, [])
            if subscription in others:
                others.remove(subscription)
            if not others:
                self._subscriptions.pop(subscription.reference.job_id, None)
                self._look_at.pop(subscription.reference.job_id, None)
                self._refused.pop(subscription.reference.job_id, None)
        self._wake.set()

    def close(self) -> None:
        """End every subscription, and tell the subscribers that asked for it."""
        with self._lock:
            ended = [each for some in self._subscriptions.values() for each in some]
            self._subscriptions.clear()
        self._wake.set()
        for subscription in ended:
            subscription.closed = True
            if subscription.refused is not None:
                job_id = subscription.reference.job_id
                subscription.refused(InvalidRequest(f"the client that waits for {job_id} was closed"))

    def _run(self) -> None:
        token: object | None = None
        self._pace, pause = self.backend.pace(self.namespace, self._wake.set), 0.0
        while self._has_work(pause):
            try:
                token, changed = self.backend.changes(self.namespace, token, self._only)
                self._unseen.end()
                self._serve(changed)
                pause = self._pause()
            except Exception as exc:  # noqa: BLE001  a thread that dies of it would leave everybody waiting
                self._remind(f"cannot look at the jobs of {self.backend.key}", exc)
                token, pause = None, _RETRY_SECONDS
                with self._lock:
                    everybody = [each for some in self._subscriptions.values() for each in some]
                _tell_if_refused(everybody, exc, self._unseen)

    def _pause(self) -> float:
        """Return the seconds until a job must be observed, at most those between two looks for changes."""
        with self._lock:
            due = min(self._look_at.values(), default=float("inf"))
        return min(self._pace, max(due - self.clock(), 0.001))

    def _has_work(self, pause: float) -> bool:
        """Wait for the next observation; return False, ending the thread, without any subscribers."""
        if pause:
            self._wake.wait(pause)
        self._wake.clear()
        with self._lock:
            if not self._subscriptions and not self._held:
                self._thread = None
                return False
            self._only = self._single_job()
            return True

    def _single_job(self) -> JobReference | None:
        """Return the only job with subscribers, unless it is part of a batch, which has more."""
        if self._held or len(self._subscriptions) != 1:
            return None
        ((first, *_),) = self._subscriptions.values()
        return None if first.reference.group_id else first.reference

    def _serve(self, changed: set[str] | None) -> None:
        now = self.clock()
        with self._lock:
            asked = {job_id for job_id, when in self._look_at.items() if when <= now}
            wanted = set(self._subscriptions) if changed is None else self._with_inputs(changed) | asked
            due = {job_id: list(self._subscriptions[job_id]) for job_id in wanted & set(self._subscriptions)}
            for job_id in due:
                self._look_at.pop(job_id, None)
        for job_id, subscriptions in due.items():
            if not all(each.closed for each in subscriptions):  # a cancelled batch closes thousands at once
                self._tell(job_id, subscriptions)

    def _with_inputs(self, changed: set[str]) -> set[str]:
        """Add the inputs of batches that share a changed Job."""
        groups = {part[0] for job_id in changed if (part := chunk_of(job_id))}
        if not groups:
            return changed
        watched = ((job_id, some[0].reference) for job_id, some in self._subscriptions.items())
        return changed | {job_id for job_id, reference in watched if reference.group_id in groups}

    def _tell(self, job_id: str, subscriptions: list[Subscription]) -> None:
        follows = any(subscription.follows for subscription in subscriptions)
        kind, reference = subscriptions[0].kind, subscriptions[0].reference
        try:
            observation = (kind.reconcile if follows else kind.observe)(self.backend, reference)
            self._refused.pop(job_id, None)
        except Exception as exc:  # noqa: BLE001  one job's trouble must not keep the others waiting
            self._remind(f"cannot look at {job_id}", exc)
            self._look_again(job_id, _RETRY_SECONDS)
            _tell_if_refused(subscriptions, exc, self._refused.setdefault(job_id, Refusals(self.clock)))
            return
        if observation.reason == NODE_SILENT:
            self._look_again(job_id, _UNSEEN_SECONDS)
            if follows:
                self._reconcile_lease(reference, observation.attempt)
        elif reference.worker and not observation.is_terminal:
            has_begun = observation.reason in (ON_WORKER, OWN_POD)
            soon = min(_CALL_SECONDS, self._pace) if has_begun else _STARTING_SECONDS
            if has_begun and is_lane(reference):  # what its inputs have come to, segments say
                soon = _LONGEST_CALL_SECONDS
            age = time.time() - (observation.created_at or time.time())
            self._look_again(job_id, min(max(soon, age * _CALL_SHARE), _LONGEST_CALL_SECONDS))
        elif observation.moves_on_at is not None:
            self._look_again(job_id, max(observation.moves_on_at - time.time(), _RETRY_SECONDS))
        elif reference.backend == "pathways" and not observation.is_terminal:
            self._look_again(job_id, _UNSEEN_SECONDS)  # its pods stay after the end
        elif isinstance(observation, ChunkObservation) and observation.status is JobStatus.PENDING:
            self._look_again(job_id, _UNWATCHED_SECONDS)
        for subscription in subscriptions:
            if subscription.closed or subscription.last == observation:
                continue
            subscription.last = observation
            try:
                subscription.callback(observation)
            except Exception:  # noqa: BLE001  an observer's own mistake must not blind the others
                _LOG.exception("an observer of %s failed", job_id)

    def _reconcile_lease(self, reference: JobReference, attempt: int) -> None:
        try:
            self._leases.reconcile(reference, attempt)
        except Exception as exc:  # noqa: BLE001  tried again soon
            self._remind(f"cannot reconcile the lease of {reference.job_id}", exc)

    def _remind(self, what: str, error: Exception) -> None:
        """Log what is tried again: each kind of error now and then as a warning, the others for debugging."""
        level = logging.WARNING if self._reminders.are_due(type(error)) else logging.DEBUG
        _LOG.log(level, "%s, trying again: %r", what, error)

    def _look_again(self, job_id: str, seconds: float) -> None:
        with self._lock:
            if job_id in self._subscriptions:  # somebody may have asked for an earlier look meanwhile
                known = self._look_at.get(job_id, float("inf"))
                self._look_at[job_id] = min(known, self.clock() + seconds)


def _tell_if_refused(subscriptions: Iterable[Subscription], error: Exception, refusals: Refusals) -> None:
    """Tell the subscribers that asked for it of an error, if it is a refusal that goes on."""
    if not isinstance(error, _REFUSALS) or not refusals.go_on(error):
        return
    for subscription in subscriptions:
        if subscription.refused is not None and not subscription.closed:
            subscription.refused(error)


def watch_for(backend: Backend, namespace: str) -> JobWatch:
    """Return the client's watch of a backend and namespace, which all its observers share."""
    key = (JobWatch, backend.key, namespace)
    return backend.connections.get(key, lambda: JobWatch(backend, namespace))
