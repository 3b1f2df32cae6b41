"""Triggers: of a job, through the process's shared watch, and of the build of an image."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cache, cached_property
from typing import Any
from weakref import WeakSet

from airflow.triggers.base import BaseTrigger, TriggerEvent
from airflow.utils.net import get_hostname

from airflow_provider import telemetry
from airflow_provider.config import config
from airflow_provider.job_of_task import (
    CLEARED_WHILE_DEFERRED,
    ENDED,
    deployment,
    mark_spent,
    state_of,
    task_states,
)
from airflow_provider.orphans import reconciled
from airflow_provider.task_logs import Cursor, LineBudget, LogTail, StateLines
from airflow_provider.telemetry import StateBoard
from kinetic_core._runner import object_names
from kinetic_core.backends.base import Backend, backend_of
from kinetic_core.connections import Connections, default_connections
from kinetic_core.counters import listen
from kinetic_core.errors import (
    CloudError,
    ClusterError,
    ConfigurationError,
    ImageError,
    KineticError,
    StoreError,
)
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.observe import watch
from kinetic_core.jobs.watch import Subscription
from kinetic_core.store.protocol import ObjectStore


class ShortEvent(TriggerEvent):
    """Event whose line in the task's log says what happened only; the payload is for the next leg."""

    def __init__(self, payload: Mapping[str, Any]) -> None:
        super().__init__(payload)  # type: ignore[no-untyped-call]  # Airflow's is not annotated

    def __repr__(self) -> str:
        """Return the status and the job or build."""
        told = self.payload
        what = told.get("reference", {}).get("job_id") or told.get("build", {}).get("build_id", "")
        return f"{told['status']} {what}".rstrip()


class ConnectedTrigger(BaseTrigger):
    """Trigger for a task with `conn_id`, which is read again here, because a trigger's row holds no secret.

    `deferred_at` and `deadline`, None for never, are Unix seconds.
    """

    def __init__(self, deferred_at: float, deadline: float | None, conn_id: str | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's is not annotated
        self.deferred_at = deferred_at
        self.deadline = deadline
        self.conn_id = conn_id

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
        own = {"deferred_at": self.deferred_at, "deadline": self.deadline, "conn_id": self.conn_id}
        return f"{type(self).__module__}.{type(self).__qualname__}", {**arguments, **own}

    async def _hold(self) -> None:
        """Wait until an event can be sent: one that comes too soon makes the scheduler fail the task."""
        await asyncio.sleep(max(0.0, self.deferred_at + config().event_delay - time.time()))

    async def _client(self) -> Connections:
        """Return the client of the task's connection, which triggers of this process share.

        A connection that cannot be read now is read again later, so that no job is lost.
        """
        if not self.conn_id:
            return await asyncio.to_thread(default_connections)
        from asgiref.sync import sync_to_async

        from airflow_provider.hooks.kinetic import clients

        while True:
            try:
                return await sync_to_async(clients.get)(self.conn_id)
            except KineticError as error:
                self.log.warning("%s; trying again", error)
            await asyncio.sleep(self.outage_interval)


_LOOKUP_SECONDS = 5.0
"""Seconds between requests for a task's state by a killed trigger while Airflow does not answer."""
_LINES_A_LOOK = 50
_SETTLED_SECONDS = 2.0
"""Seconds between a trigger's last line and its event: Airflow drops a line that arrives after the event."""
_LOOK_SECONDS = 1.0
"""Seconds between two looks at the log of a job that prints."""
_UNFOLLOWED_SECONDS = 60.0

_stats = telemetry.Stats(telemetry.IN_TRIGGERS)
_board = StateBoard(_stats, cache(get_hostname))
_followed: WeakSet[KineticJobTrigger] = WeakSet()
_last_acts: set[asyncio.Future[None]] = set()
"""Tasks of cancelled triggers. Older Airflows cancel twice, and the loop alone would forget the tasks."""


class KineticJobTrigger(ConnectedTrigger):
    """Trigger that fires once, when the job has ended or at `deadline` (Unix seconds, None for never).

    At the deadline it cancels the job. `cursor` says how much of the job's log is in the task's log already;
    the event carries it on. `conn_id` names the task's connection, which is read again here, because a
    trigger's row holds no secret. `silent`: the job's pods write to the task's log themselves. May run twice
    at once and be moved between triggerers: before the deadline it changes nothing but the log.
    """

    def __init__(
        self,
        reference: dict[str, Any],
        cursor: list[int],
        deferred_at: float,
        deadline: float | None = None,
        conn_id: str | None = None,
        silent: bool = False,
    ) -> None:
        super().__init__(deferred_at, deadline, conn_id)
        self.reference = reference
        self.cursor = cursor
        self.silent = silent
        self._fired = False
        self._shown_at = float("-inf")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and arguments with which another triggerer continues."""
        return self._named(reference=self.reference, cursor=self.cursor, silent=self.silent)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Show the job's lines until it ends, then yield one event."""
        try:
            status = await self._watch()
        except asyncio.CancelledError:
            if not hasattr(BaseTrigger, "on_kill"):  # an older Airflow: being cancelled is all we learn
                await self.on_kill()
            raise
        self._fired = True
        yield ShortEvent(
            {
                "status": status,
                "reference": self.reference,
                "cursor": self.cursor,
                "deadline": self.deadline,
                "silent": self.silent,
            }
        )

    async def on_kill(self) -> None:
        """Cancel the job if a person marked the task or cleared it.

        Airflow also calls this when it merely moves the trigger to another triggerer, so the task's own state
        decides. As long as the state is unknown nothing is cancelled, and Airflow is asked again, if need be
        for longer than it waits for this. A newer try of the task ends the job itself, or adopts it.
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
        backend = await asyncio.to_thread(backend_of, reference, await self._client())
        await asyncio.to_thread(cancel, backend, reference)
        if was_cleared:  # the function runs again, also if the job has ended
            await asyncio.to_thread(mark_spent, backend, reference)

    async def _watch(self) -> str:
        """Show the job's lines until it has "ended" or its time is up: "timeout"."""
        reference = JobReference.from_dict(self.reference)
        news: asyncio.Queue[JobObservation] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def notice(observation: JobObservation) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.put_nowait, observation)

        listen(_count)
        backend, subscription = await self._subscribed(reference, notice)
        whose = "its pods write their lines here" if self.silent else "showing its lines from here on"
        self.log.info("no worker is held while %s runs; %s", reference.job_id, whose)
        try:
            async with reconciled(backend, reference.namespace, _states, _deployment):
                ended = await self._show_until_over(
                    news, StateLines(reference), LogTail(backend, reference, Cursor.from_list(self.cursor))
                )
                if ended:
                    await self._until_store_answers(backend.store, reference)
                else:
                    await self._cancel_overdue(backend, reference)
        finally:
            subscription.close()
            _board.gone(self)
            _followed.discard(self)
        await self._hold()
        await asyncio.sleep(max(0.0, self._shown_at + _SETTLED_SECONDS - time.monotonic()))
        return "ended" if ended else "timeout"

    async def _cancel_overdue(self, backend: Backend, reference: JobReference) -> None:
        """Cancel the job now: a worker may have no free slot for minutes. The worker cancels again."""
        self.log.warning("execution_timeout has passed: cancelling %s", reference.job_id)
        try:
            await asyncio.to_thread(cancel, backend, reference)
        except (KineticError, OSError) as error:
            self.log.warning("cannot cancel %s here, a worker will: %s", reference.job_id, error)

    async def _subscribed(
        self, reference: JobReference, notice: Callable[[JobObservation], None]
    ) -> tuple[Backend, Subscription]:
        """Return the job's backend and a subscription; an outage is retried and breaks no trigger."""
        connections = await self._client()
        while True:
            try:
                backend = await asyncio.to_thread(backend_of, reference, connections)
                return backend, await asyncio.to_thread(watch, backend, reference, notice)
            except (ClusterError, StoreError, CloudError) as error:
                if not error.is_passing:
                    raise
                self.log.warning("cannot watch %s, trying again: %s", reference.job_id, error)
            await asyncio.sleep(self.outage_interval)

    async def _show_until_over(
        self, news: asyncio.Queue[JobObservation], states: StateLines, tail: LogTail
    ) -> bool:
        """Show why the job waits and what it prints; return True at the job's end, False at the deadline."""
        shortest, longest = _LOOK_SECONDS, config().log_poll_interval
        pause = float("inf")  # a job that does not run prints nothing: its next state wakes us
        while True:
            remaining = self.remaining
            if remaining <= 0:
                return False
            try:
                seen = await asyncio.wait_for(news.get(), min(pause, remaining, states.due))
            except TimeoutError:
                if line := states.late():
                    self.log.info("%s", line)
                if pause < remaining:
                    pause = shortest if await self._show_lines(tail) else min(pause * 1.5, longest)
                    pause = pause if self in _followed else _UNFOLLOWED_SECONDS
                continue
            _board.seen(self, seen)
            if seen.is_terminal:  # its last lines are for the task's last leg
                return True
            pause = shortest if seen.status is JobStatus.RUNNING else float("inf")
            if line := states.line(seen):
                self.log.info("%s", line)

    async def _until_store_answers(self, store: ObjectStore, reference: JobReference) -> None:
        """Wait for the store, until the deadline at most: a worker needs it to collect the outcome."""
        while self.remaining > 0:
            try:
                await asyncio.to_thread(store.find, object_names.result(reference.job_id))
            except StoreError as error:
                if not error.is_passing:
                    return  # the worker says so
                self.log.warning("%s has ended; waiting for its store: %s", reference.job_id, error)
            else:
                return
            await asyncio.sleep(min(self.outage_interval, max(0.0, self.remaining)))

    async def _show_lines(self, tail: LogTail) -> bool:
        """Show the lines that the job has printed meanwhile. A log that cannot be read now is shown later."""
        if self.silent:
            return False
        if len(_followed) < config().followed_jobs:
            _followed.add(self)
        if self not in _followed:
            return False
        try:
            lines = await asyncio.to_thread(tail.live, min(_LINES_A_LOOK, _budget().left()))
        except (KineticError, OSError) as error:
            self.log.debug("cannot read the log now: %s", error)
            return False
        _budget().spend(len(lines))
        for line in lines:
            self.log.info("%s", line)
            self._shown_at = time.monotonic()
        self.cursor = tail.cursor.to_list()
        return bool(lines)

    async def _state(self) -> str:
        """Return the task instance's state, "" if Airflow does not answer.

        The request is never abandoned: Airflow 3.1 would take its late answer for that of the next request,
        and its triggerer would end.
        """
        from asgiref.sync import sync_to_async

        instance = self.task_instance
        if instance is None:
            return "deferred"
        try:
            return await sync_to_async(state_of)(
                instance.dag_id, instance.run_id, instance.task_id, instance.map_index
            )
        except Exception as error:  # noqa: BLE001  whatever it is, it must not kill a healthy job
            self.log.warning("cannot see the task's state, so its job is left alone for now: %r", error)
            return ""


@cache
def _budget() -> LineBudget:
    """Return the budget of lines that all triggers of this process share."""
    return LineBudget(config().trigger_lines_per_second)


async def _states(dag_id: str, run_id: str, task_ids: list[str]) -> Mapping[str, object]:
    from asgiref.sync import sync_to_async

    return await sync_to_async(task_states)(dag_id, run_id, task_ids)


async def _deployment() -> str:
    from asgiref.sync import sync_to_async

    return await sync_to_async(deployment)()


def _count(event: str, kinds: Mapping[str, str]) -> None:
    """Count an event of the core as a metric."""
    if event == "watch.relists":
        _stats.count(telemetry.RELISTS, kinds)


class KineticBuildTrigger(ConnectedTrigger):
    """Trigger that fires once, when the image is built, cannot be built, or at the deadline.

    `build` is that of an `ImageBuilding`. The build belongs to no task: it goes on when the task is killed,
    and others may wait for it too.
    """

    def __init__(
        self,
        build: dict[str, str],
        deferred_at: float,
        deadline: float | None = None,
        conn_id: str | None = None,
    ) -> None:
        super().__init__(deferred_at, deadline, conn_id)
        self.build = build

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and arguments with which another triggerer continues."""
        return self._named(build=self.build)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Show the build's log until it ends, then yield one event."""
        status, message = await self._follow(await self._client())
        await self._hold()
        yield ShortEvent(
            {"status": status, "message": message, "deadline": self.deadline, "build": self.build}
        )

    @property
    def _is_first(self) -> bool:
        """Return whether this task shows the build's log: of a mapped task, only the first instance does."""
        return self.task_instance is None or self.task_instance.map_index < 1

    async def _follow(self, connections: Connections) -> tuple[str, str]:
        """Return `built`, `failed` with the reason, or `timeout`; requests without an answer are repeated."""
        from kinetic_core.images.cloud_build import Following

        following = await asyncio.to_thread(Following.of, self.build, connections)
        while self.remaining > 0:
            lines: list[str] = []
            try:
                digest = await asyncio.to_thread(following.look, lines.append)
            except (ImageError, ConfigurationError) as error:
                return "failed", str(error)
            finally:
                for line in lines if self._is_first else ():
                    self.log.info("%s", line)
            if digest is not None:
                return "built", ""
            await asyncio.sleep(min(config().build_poll_interval, max(0.0, self.remaining)))
        return "timeout", "the image is still being built"
