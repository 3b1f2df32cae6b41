"""What triggers share: the task's connection and deadline; of jobs and batches, the wait and its end."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider.access import ENVIRONMENT, Access
from airflow_provider.config import config
from airflow_provider.deployment import UsedPlace, deployment_name, noted_places
from airflow_provider.job_of_task import CLEARED_WHILE_DEFERRED, ENDED, state_of, task_states
from airflow_provider.threads import in_thread
from kinetic_core.backends.base import Backend, backend_of
from kinetic_core.connections import Connections, default_connections
from kinetic_core.errors import CloudError, ClusterError, KineticError, StoreError
from kinetic_core.job import JobReference

if TYPE_CHECKING:
    from airflow_provider.orphans import SharedSearch

_LOOKUP_SECONDS = 5.0
"""Seconds between requests for a task's state by a killed trigger while Airflow does not answer."""
SETTLED_SECONDS = 2.0
"""Seconds between a trigger's last line and its event: Airflow drops a line that arrives after the event."""


class ShortEvent(TriggerEvent):
    """Event whose line in the task's log says what happened only; the payload is for the next leg."""

    def __init__(self, payload: Mapping[str, Any]) -> None:
        super().__init__(payload)  # type: ignore[no-untyped-call]  # Airflow's is not annotated

    def __repr__(self) -> str:
        """Return the status and the job or build."""
        told = self.payload
        what = told.get("reference", {}).get("job_id") or told.get("build", {}).get("build_id", "")
        return f"{told['status']} {what}".rstrip()


Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")
Opened = TypeVar("Opened")
_requests: set[asyncio.Future[Any]] = set()
"""Requests to Airflow on their way. Python keeps none that nobody waits for any more."""
_last_acts: set[asyncio.Future[None]] = set()
"""Tasks of cancelled triggers. Older Airflows cancel twice, and the loop alone would forget the tasks."""


async def asked(question: Callable[Asked, Answer], *args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
    """Return the answer of a function that asks Airflow, called in a thread.

    A caller that is cancelled leaves at once, and its request goes on until there is an answer. Airflow 3.1
    would take the late answer to an abandoned request for that to the next one, and its triggerer would end.
    """
    from asgiref.sync import sync_to_async

    asking = asyncio.ensure_future(sync_to_async(question)(*args, **kwargs))
    _requests.add(asking)
    asking.add_done_callback(_requests.discard)
    return await asyncio.shield(asking)


async def _client_of(access: Access) -> Connections:
    """Return the client of a connection. Raises KineticError if the connection cannot be read now."""
    if access == ENVIRONMENT:
        return await in_thread(default_connections)
    from airflow_provider.hooks.kinetic import clients

    return await asked(clients.get, access)


class NoConnection(Exception):
    """The task's connection could not be read until the deadline; the text says why."""


class ConnectedTrigger(BaseTrigger):
    """Trigger for a task with connections, which are read again here: a trigger's row holds no secret.

    `deferred_at` and `deadline`, None for never, are Unix seconds.
    """

    def __init__(self, deferred_at: float, deadline: float | None, access: Access) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's is not annotated
        self.deferred_at = deferred_at
        self.deadline = deadline
        self.access = access

    @cached_property
    def outage_interval(self) -> float:
        """Return the seconds between requests to what does not answer."""
        return config().outage_interval

    @property
    def remaining(self) -> float:
        """Return the seconds until the deadline."""
        return float("inf") if self.deadline is None else self.deadline - time.time()

    def _named(self, **arguments: Any) -> tuple[str, dict[str, Any]]:
        """Serialize this trigger for Airflow, with the arguments of its subclass."""
        own = {"deferred_at": self.deferred_at, "deadline": self.deadline, **self.access.to_dict()}
        return f"{type(self).__module__}.{type(self).__qualname__}", {**arguments, **own}

    async def _hold(self) -> None:
        """Wait until an event can be sent: one that comes too soon makes the scheduler fail the task.

        A trigger without an id is one of `dag.test()`, which has no scheduler.
        """
        delay = config().event_delay
        left = self.deferred_at + delay - time.time()
        if self.trigger_id is None or left <= 0:
            return
        if left >= SETTLED_SECONDS:
            reason = f"Airflow's scheduler may fail a task that is resumed within {delay:g} s of its deferral"
            self.log.info("a worker goes on in %.0f s: %s", left, reason)
        await asyncio.sleep(left)

    async def _client(self) -> Connections:
        """Return the client of the task's connection, which triggers of this process share.

        A connection that cannot be read now is read again later, so that no job is lost. Raises NoConnection
        at the deadline: somebody may have removed the connection.
        """
        while True:
            try:
                return await _client_of(self.access)
            except KineticError as error:
                if self.remaining <= 0:
                    raise NoConnection(str(error)) from error
                self.log.warning("%s; trying again", error)
            await asyncio.sleep(min(self.outage_interval, max(0.0, self.remaining)))


async def _states_of_tasks(dag_id: str, run_id: str, task_ids: list[str]) -> Mapping[str, object]:
    """Return the states of the tasks of a DAG run, as Airflow says."""
    return await asked(task_states, dag_id, run_id, task_ids)


async def _own_deployment() -> str:
    """Return the name of this Airflow."""
    return await asked(deployment_name)


def _shared_backend(reference: JobReference, connections: Connections) -> Backend:
    """Return the backend of a job or batch, one for all that live in the same place, as their watch is."""
    place = reference.backend, reference.store_uri, reference.namespace, reference.cluster
    key = (_shared_backend, place, connections.settings)
    return connections.get(key, lambda: backend_of(reference, connections))


@dataclass(frozen=True)
class _NotedPlace:
    """Place that some task has noted, reached with that task's connections."""

    used: UsedPlace

    @property
    def reference(self) -> JobReference:
        return self.used.reference

    async def backend(self) -> Backend:
        return await in_thread(_shared_backend, self.reference, await _client_of(self.used.access))


async def _noted() -> list[_NotedPlace]:
    """Return the places where jobs of this Airflow have run."""
    return [_NotedPlace(each) for each in await asked(noted_places)]


class WorkTrigger(ConnectedTrigger):
    """Trigger of a job or a batch, which fires once and cancels the work if somebody ends the task before.

    At the deadline it cancels the work, too. It may run twice at once and be moved between triggerers.
    `reference` names the job or batch.
    """

    def __init__(
        self, reference: dict[str, Any], deferred_at: float, deadline: float | None, access: Access
    ) -> None:
        super().__init__(deferred_at, deadline, access)
        self.reference = reference
        self._fired = False

    @abstractmethod
    async def _watch(self) -> TriggerEvent:
        """Show the progress until the work has ended or its time is up; return the event that says so."""

    @abstractmethod
    def _cancel(self, backend: Backend, reference: JobReference) -> None:
        """Cancel the work, whose time is up."""

    @abstractmethod
    def _cancel_for_task(self, backend: Backend, reference: JobReference, *, was_cleared: bool) -> None:
        """Cancel the work, whose task somebody has marked or cleared."""

    @abstractmethod
    def _event(self, status: str) -> TriggerEvent:
        """Return the event with which a worker goes on: the work has "ended", or "timeout"."""

    async def _tell_cancelled(self, backend: Backend, reference: JobReference) -> None:
        """Record the end of the work that was cancelled for its task, which nobody else does."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Show the progress until the work ends, then yield one event."""
        from airflow_provider.orphans import reconciled_elsewhere

        try:
            with reconciled_elsewhere(_noted, _states_of_tasks, _own_deployment):
                event = await self._watch()
        except NoConnection as error:
            self.log.warning("execution_timeout has passed, and %s: a worker ends this task", error)
            await self._hold()
            event = self._event("timeout")
        except asyncio.CancelledError:
            if not hasattr(BaseTrigger, "on_kill"):  # an older Airflow: being cancelled is all we learn
                await self.on_kill()
            raise
        self._fired = True
        yield event

    async def on_kill(self) -> None:
        """Cancel the work if a person marked the task or cleared it.

        Airflow also calls this when it merely moves the trigger to another triggerer, so the task's own state
        decides. As long as the state is unknown nothing is cancelled, and Airflow is asked again, if need be
        for longer than it waits for this. A newer try of the task ends the work itself, or adopts it.
        """
        last = asyncio.ensure_future(self._cancel_if_ended())
        _last_acts.add(last)
        last.add_done_callback(_last_acts.discard)
        await asyncio.shield(last)

    async def _cancel_if_ended(self) -> None:
        if self._fired:
            return
        give_up = time.monotonic() + config().kill_patience
        while not (state := await self._state()) and time.monotonic() < give_up:
            await asyncio.sleep(_LOOKUP_SECONDS)
        was_cleared = state in CLEARED_WHILE_DEFERRED
        if not was_cleared and state not in ENDED:
            return
        reference = JobReference.from_dict(self.reference)
        self.log.info("the task is no longer waiting: cancelling %s", reference.job_id)
        try:
            backend = await in_thread(_shared_backend, reference, await self._client())
        except NoConnection as error:
            self.log.warning("%s is not cancelled: %s", reference.job_id, error)
            return
        await in_thread(self._cancel_for_task, backend, reference, was_cleared=was_cleared)
        if was_cleared or self.task_instance is None:
            return
        try:
            await self._tell_cancelled(backend, reference)
        except Exception as error:  # noqa: BLE001  the page asks the cluster then
            self.log.warning("how %s ended is not recorded: %r", reference.job_id, error)

    async def _state(self) -> str:
        """Return the task instance's state, "" if Airflow does not answer."""
        instance = self.task_instance
        if instance is None:
            return "deferred"
        try:
            return await asked(
                state_of, instance.dag_id, instance.run_id, instance.task_id, instance.map_index
            )
        except Exception as error:  # noqa: BLE001  whatever it is, it must not kill healthy work
            self.log.warning("cannot see the task's state, so what it runs is left alone for now: %r", error)
            return ""

    async def _attached(
        self, reference: JobReference, attach: Callable[[Backend], Opened]
    ) -> tuple[Backend, Opened]:
        """Return the work's backend and what `attach` opens; an outage is retried and breaks no trigger."""
        connections = await self._client()
        while True:
            try:
                backend = await in_thread(_shared_backend, reference, connections)
                return backend, await in_thread(attach, backend)
            except (ClusterError, StoreError, CloudError) as error:
                if not error.is_passing:
                    raise
                self.log.warning("cannot watch %s, trying again: %s", reference.job_id, error)
            await asyncio.sleep(self.outage_interval)

    def _reconciled(self, backend: Backend, reference: JobReference) -> SharedSearch:
        """Search the work's namespace for orphans now and then, inside the context."""
        from airflow_provider.orphans import reconciled  # a worker makes triggers, and searches for nothing

        return reconciled(backend, reference, _states_of_tasks, _own_deployment)

    async def _cancel_overdue(self, backend: Backend, reference: JobReference) -> None:
        """Cancel the work now: a worker may have no free slot for minutes. The worker cancels again."""
        self.log.warning("execution_timeout has passed: cancelling %s", reference.job_id)
        try:
            await in_thread(self._cancel, backend, reference)
        except (KineticError, OSError) as error:
            self.log.warning("cannot cancel %s here, a worker will: %s", reference.job_id, error)

    async def _until_store_answers(self, backend: Backend, reference: JobReference, key: str) -> None:
        """Wait until the store answers for the object `key`, which a worker reads next, or the deadline."""
        try:
            await self._answer_of_store(reference, backend.store.find, key)
        except StoreError as error:  # the worker says so
            self.log.debug("the store of %s refuses: %s", reference.job_id, error)

    async def _answer_of_store(
        self,
        reference: JobReference,
        ask: Callable[Asked, Answer],
        *args: Asked.args,
        **kwargs: Asked.kwargs,
    ) -> Answer | None:
        """Return what `ask` returns, called in a thread; None if the store does not answer by the deadline.

        Raises StoreError if the store refuses for good.
        """
        while self.remaining > 0:
            try:
                return await in_thread(ask, *args, **kwargs)
            except StoreError as error:
                if not error.is_passing:
                    raise
                self.log.warning("%s has ended; waiting for its store: %s", reference.job_id, error)
            await asyncio.sleep(min(self.outage_interval, max(0.0, self.remaining)))
        return None
