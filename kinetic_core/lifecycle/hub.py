"""One watch per backend and namespace for every observer in this process.

A hub is a daemon thread that lives while somebody is subscribed. It asks the backend what changed,
computes the verdict of those jobs and calls their subscribers. Events are hints: what is handed out is
always a fresh observation. A look that fails is tried again after a while; it neither fails the job nor
keeps the others waiting. Of a store that goes on refusing, whoever asked for it is told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kinetic_core.cluster.names import NODE_SILENT
from kinetic_core.cluster.parts import part_of
from kinetic_core.errors import StoreRefused
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.leases import LeaseWatch
from kinetic_core.lifecycle.settling import look
from kinetic_core.model.job import JobObservation, JobReference, PartObservation
from kinetic_core.model.states import JobStatus

_RETRY_SECONDS = 2.0
_UNSEEN_SECONDS = 5.0
"""How often the store is asked for the outcome of a job of which Kubernetes does not see the end."""
_UNWATCHED_SECONDS = 10.0
"""How often is asked why a part of a batch has not started: its pods are not watched."""
_REFUSED_SECONDS = 15.0
"""For how long a store may refuse what it is asked before those who asked for it are told."""
_LOG = logging.getLogger(__name__)

Callback = Callable[[JobObservation], None]
Look = Callable[[Backend, JobReference], JobObservation]


@dataclass(eq=False)
class Subscription:
    """One observer of one job. `close()` ends it; a callback that runs at that moment is the last."""

    reference: JobReference
    callback: Callback
    hub: JobHub
    look: Look
    refused: Callable[[StoreRefused], None] | None = None
    last: JobObservation | None = None
    closed: bool = False

    def close(self) -> None:
        self.closed = True
        self.hub.unsubscribe(self)


@dataclass(eq=False)
class JobHub:
    """The subscribers of one backend and namespace, and the thread that serves them."""

    backend: Backend
    namespace: str
    _subscriptions: dict[str, list[Subscription]] = field(default_factory=dict)
    _held: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _wake: threading.Event = field(default_factory=threading.Event)
    _look_at: dict[str, float] = field(default_factory=dict)
    """When (monotonic) a job must be looked at although nothing says that it changed."""
    _refused: dict[str, float] = field(default_factory=dict)
    """Since when (monotonic) the store has refused whoever looks at a job."""
    _thread: threading.Thread | None = None
    _leases: LeaseWatch = field(init=False)

    def __post_init__(self) -> None:
        self._leases = LeaseWatch(self.backend)

    def subscribe(
        self,
        reference: JobReference,
        callback: Callback,
        look: Look = look,
        refused: Callable[[StoreRefused], None] | None = None,
    ) -> Subscription:
        """`look` says what is known of what the reference names: the same for all who subscribe to it.

        `refused` is called when the store goes on refusing to say more.
        """
        subscription = Subscription(reference, callback, self, look, refused)
        with self._lock:
            self._subscriptions.setdefault(reference.job_id, []).append(subscription)
            self._look_at[reference.job_id] = 0.0
            self._start()
        self._wake.set()
        return subscription

    def watched(self) -> set[str]:
        """The ids of the jobs that somebody in this process observes."""
        with self._lock:
            return set(self._subscriptions)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the thread alive inside. At the end of an interpreter no new one can be started."""
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
            name = f"kinetic-hub-{self.namespace}"
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

    def _run(self) -> None:
        token: object | None = None
        pace, pause = self.backend.pace(self.namespace, self._wake.set), 0.0
        while self._has_work(pause):
            try:
                token, changed = self.backend.changes(self.namespace, token)
                self._serve(changed)
                pause = pace
            except Exception as exc:  # noqa: BLE001  a thread that dies of it would leave everybody waiting
                _LOG.warning("cannot look at the jobs of %s, trying again: %r", self.backend.key, exc)
                token, pause = None, _RETRY_SECONDS

    def _has_work(self, pause: float) -> bool:
        """Wait for the next look; False, ending the thread, when nobody is subscribed any more."""
        if pause:
            self._wake.wait(pause)
        self._wake.clear()
        with self._lock:
            if not self._subscriptions and not self._held:
                self._thread = None
                return False
            return True

    def _serve(self, changed: set[str] | None) -> None:
        now = time.monotonic()
        with self._lock:
            asked = {job_id for job_id, when in self._look_at.items() if when <= now}
            wanted = set(self._subscriptions) if changed is None else self._with_inputs(changed) | asked
            due = {job_id: list(self._subscriptions[job_id]) for job_id in wanted & set(self._subscriptions)}
            for job_id in due:
                self._look_at.pop(job_id, None)
        for job_id, subscriptions in due.items():
            self._tell(job_id, subscriptions)

    def _with_inputs(self, changed: set[str]) -> set[str]:
        """The inputs, too, of batches that share a Job which changed."""
        groups = {part[0] for job_id in changed if (part := part_of(job_id))}
        if not groups:
            return changed
        watched = ((job_id, some[0].reference) for job_id, some in self._subscriptions.items())
        return changed | {job_id for job_id, reference in watched if reference.group_id in groups}

    def _tell(self, job_id: str, subscriptions: list[Subscription]) -> None:
        try:
            observation = subscriptions[0].look(self.backend, subscriptions[0].reference)
            self._refused.pop(job_id, None)
        except Exception as exc:  # noqa: BLE001  one job's trouble must not keep the others waiting
            _LOG.warning("cannot look at %s, trying again: %r", job_id, exc)
            self._look_again(job_id, _RETRY_SECONDS)
            if isinstance(exc, StoreRefused) and self._goes_on_refusing(job_id):
                for subscription in subscriptions:
                    if subscription.refused is not None and not subscription.closed:
                        subscription.refused(exc)
            return
        if observation.reason == NODE_SILENT:
            self._look_again(job_id, _UNSEEN_SECONDS)
            self._look_at_lease(subscriptions[0].reference, observation.attempt)
        elif observation.moves_on_at is not None:
            self._look_again(job_id, max(observation.moves_on_at - time.time(), _RETRY_SECONDS))
        elif subscriptions[0].reference.backend == "pathways" and not observation.is_terminal:
            self._look_again(job_id, _UNSEEN_SECONDS)  # its pods stay after the end
        elif isinstance(observation, PartObservation) and observation.status is JobStatus.PENDING:
            self._look_again(job_id, _UNWATCHED_SECONDS)
        for subscription in subscriptions:
            if subscription.closed or subscription.last == observation:
                continue
            subscription.last = observation
            try:
                subscription.callback(observation)
            except Exception:  # noqa: BLE001  an observer's own mistake must not blind the others
                _LOG.exception("an observer of %s failed", job_id)

    def _goes_on_refusing(self, job_id: str) -> bool:
        """Whether it is time to say so."""
        now = time.monotonic()
        return now - self._refused.setdefault(job_id, now) >= _REFUSED_SECONDS

    def _look_at_lease(self, reference: JobReference, attempt: int) -> None:
        try:
            self._leases.look(reference, attempt)
        except Exception as exc:  # noqa: BLE001  looked at again soon
            _LOG.warning("cannot look at the lease of %s, trying again: %r", reference.job_id, exc)

    def _look_again(self, job_id: str, seconds: float) -> None:
        with self._lock:
            if job_id in self._subscriptions:
                self._look_at[job_id] = time.monotonic() + seconds


_hubs: dict[tuple[str, str], JobHub] = {}
_hubs_lock = threading.Lock()


def hub_for(backend: Backend, namespace: str) -> JobHub:
    """This process's hub of a backend and namespace: sharing it is what keeps watching cheap."""
    with _hubs_lock:
        return _hubs.setdefault((backend.key, namespace), JobHub(backend, namespace))
