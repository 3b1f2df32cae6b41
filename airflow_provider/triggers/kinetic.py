"""Triggers: of a job, through the process's shared watch, and of the build of an image."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, Unpack
from weakref import WeakSet

from airflow.triggers.base import TaskFailedEvent, TaskSuccessEvent, TriggerEvent
from airflow.utils.net import get_hostname

from airflow_provider import telemetry
from airflow_provider.access import Access, GoogleKeywords
from airflow_provider.config import config
from airflow_provider.ending import SUCCESS, End, Ending, NeedsWorker, end_of
from airflow_provider.job_of_task import mark_spent
from airflow_provider.records import KEY, count_end, record_of_cancelled, store, stored_value
from airflow_provider.task_logs import Cursor, LineBudget, LogTail, StateLines
from airflow_provider.telemetry import StateBoard
from airflow_provider.threads import in_thread, start_apart
from airflow_provider.triggers.base import (
    SETTLED_SECONDS,
    ConnectedTrigger,
    NoConnection,
    ShortEvent,
    WorkTrigger,
    asked,
)
from airflow_provider.waiting_alert import AlertClock
from airflow_provider.xcom import Signatures
from kinetic_core._runner import object_names
from kinetic_core.backends.base import Backend
from kinetic_core.connections import Connections
from kinetic_core.counters import listen
from kinetic_core.errors import ClusterError, ConfigurationError, ImageError, KineticError, StoreError
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs.cancel import cancel, drop_payloads
from kinetic_core.jobs.observe import watch
from kinetic_core.retry import Reminders

_LINES_A_LOOK = 50
_LOOK_SECONDS = 1.0
"""Seconds between two looks at the log of a job that prints."""
_UNFOLLOWED_SECONDS = 60.0
_REMOVAL_SECONDS = 10.0
"""Seconds for which jobs that have ended are gathered, to be removed with one request."""

_stats = telemetry.Stats(telemetry.IN_TRIGGERS)
_board = StateBoard(_stats, cache(get_hostname))
_followed: WeakSet[KineticJobTrigger] = WeakSet()
_signatures = Signatures()


class News:
    """What a watch tells of a job, in its order, passed from the watch's thread to the trigger's event loop.

    An `asyncio.Queue`, and the task with which `asyncio.wait_for` waits for it, would be a third of what a
    trigger keeps in memory.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._seen: list[JobObservation | KineticError] = []
        self._waiter: asyncio.Future[None] | None = None

    def tell(self, seen: JobObservation | KineticError) -> None:
        """Pass an observation or a refusal on, in any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._add, seen)

    def _add(self, seen: JobObservation | KineticError) -> None:
        self._seen.append(seen)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self, seconds: float) -> JobObservation | KineticError | None:
        """Return what is told next; None if that is nothing within `seconds`, which may be infinite."""
        if not self._seen:
            self._waiter = self._loop.create_future()
            timer = None if seconds == float("inf") else self._loop.call_later(seconds, self._wake)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        return self._seen.pop(0) if self._seen else None


class Removals:
    """Remover of what only ended jobs needed, their Kubernetes objects and payloads, for many jobs at once.

    A triggerer that ends too soon leaves them: a Job for a week, a payload until the bucket's rules remove
    it; on this machine `kinetic reap` removes both.
    """

    def __init__(
        self,
        seconds: float = _REMOVAL_SECONDS,
        remove: Callable[[Connections, Iterable[JobReference]], object] = drop_payloads,
    ) -> None:
        self._seconds, self._remove = seconds, remove
        self._gathered: dict[Connections, list[JobReference]] = {}
        self._removing: asyncio.Task[None] | None = None

    def add(self, connections: Connections, reference: JobReference) -> None:
        """Have a job's objects removed within some seconds, by the running event loop."""
        self._gathered.setdefault(connections, []).append(reference)
        if self._removing is None or self._removing.done():
            self._removing = start_apart(self._run())

    async def _run(self) -> None:
        while self._gathered:
            await asyncio.sleep(self._seconds)
            gathered, self._gathered = self._gathered, {}
            for connections, references in gathered.items():
                await in_thread(self._remove, connections, references)


_removals = Removals()


class KineticJobTrigger(WorkTrigger):
    """Trigger that fires once, when the job has ended or at `deadline` (Unix seconds, None for never).

    `ending` says in which states the trigger ends the task itself (see `Ending`); None leaves it to a worker.
    `cursor` says how much of the job's log is in the task's log already; the event carries it on. `silent`:
    the job's pods write to the task's log themselves. `alert` is a task's `WaitingAlert`, as plain data.
    Before the deadline it changes nothing but the log.
    """

    first_look_seconds = 5.0
    """Seconds that a job runs before its log is first read: to follow it asks the pod's node twice.

    Of a job that is over sooner, the end of the task shows the lines that the runner has stored.
    """

    def __init__(
        self,
        reference: dict[str, Any],
        cursor: list[int],
        deferred_at: float,
        deadline: float | None = None,
        conn_id: str | None = None,
        silent: bool = False,
        ending: dict[str, Any] | None = None,
        alert: dict[str, Any] | None = None,
        **google: Unpack[GoogleKeywords],
    ) -> None:
        super().__init__(reference, deferred_at, deadline, Access.of(conn_id, **google))
        self.ending = ending
        self.alert = alert
        self.cursor = cursor
        self.silent = silent
        self._shown_at = float("-inf")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and arguments with which another triggerer continues."""
        known = {"ending": self.ending, "alert": self.alert}
        more = {name: value for name, value in known.items() if value is not None}
        return self._named(reference=self.reference, cursor=self.cursor, silent=self.silent, **more)

    def _event(self, status: str) -> TriggerEvent:
        return ShortEvent(
            {
                "status": status,
                "reference": self.reference,
                "cursor": self.cursor,
                "deadline": self.deadline,
                "silent": self.silent,
            }
        )

    def _cancel(self, backend: Backend, reference: JobReference) -> None:
        cancel(backend, reference)

    def _cancel_for_task(self, backend: Backend, reference: JobReference, *, was_cleared: bool) -> None:
        cancel(backend, reference)
        if was_cleared:  # the function runs again, also if the job has ended
            mark_spent(backend, reference)

    async def _tell_cancelled(self, backend: Backend, reference: JobReference) -> None:
        value = await asked(stored_value, self.task_instance, KEY)
        record = await in_thread(record_of_cancelled, value, backend, reference)
        if record is not None:
            await asked(store, self.task_instance, KEY, record.to_dict())

    async def _watch(self) -> TriggerEvent:
        """Show the job's lines until it has ended or its time is up; return the event that says so."""
        reference = JobReference.from_dict(self.reference)
        news = News()
        listen(_count)
        backend, subscription = await self._attached(
            reference, lambda backend: watch(backend, reference, news.tell, refused=news.tell)
        )
        whose = "its pods write their lines here" if self.silent else "showing its lines from here on"
        self.log.info("no worker is held while %s runs; %s", reference.job_id, whose)
        try:
            with self._reconciled(backend, reference):
                ended = await self._show_until_over(
                    news,
                    StateLines(reference),
                    LogTail(backend, reference, Cursor.from_list(self.cursor)),
                    AlertClock(self.alert, backend, reference),
                )
                if ended is None:
                    await self._cancel_overdue(backend, reference)
        finally:
            subscription.close()
            _board.gone(self)
            _followed.discard(self)
        event = await self._end(backend, reference, ended) if ended is not None else None
        if event is None:
            if ended is not None:
                await self._until_store_answers(backend, reference, object_names.result(reference.job_id))
            await self._hold()
            event = self._event("timeout" if ended is None else "ended")
        await asyncio.sleep(max(0.0, self._shown_at + SETTLED_SECONDS - time.monotonic()))
        return event

    async def _end(
        self, backend: Backend, reference: JobReference, observation: JobObservation
    ) -> TriggerEvent | None:
        """End the task of a job that has ended; None if only a worker can. See ADR 0065.

        Nothing resumes, so the event is not held. A trigger without an id is one of `dag.test()`, which takes
        no event but one for a worker.
        """
        if self.ending is None or self.trigger_id is None:
            return None
        try:
            ending = Ending.from_dict(self.ending)
            cursor = Cursor.from_list(self.cursor)
            told = backend, reference, observation, ending, cursor, self.access
            if (end := await self._answer_of_store(reference, end_of, *told)) is None:
                return None
            await self._push(end)
            if end.state == SUCCESS:
                await in_thread(mark_spent, backend, reference)
                _removals.add(backend.connections, reference)
        except NeedsWorker as reason:
            self.log.info("a worker ends this task: %s", reason)
            return None
        except Exception as error:  # noqa: BLE001  a worker meets it again, and says what is wrong
            self.log.warning("a worker ends this task, because its trigger could not: %r", error)
            return None
        _budget().spend(len(end.lines))
        for line in end.lines:
            self.log.info("%s", line)
        for line in end.evidence:
            self.log.error("%s", line)
        self._shown_at = time.monotonic()
        count_end(end.record, end.fenced, self._tags, _stats)
        return TaskSuccessEvent() if end.state == SUCCESS else TaskFailedEvent()

    @property
    def _tags(self) -> dict[str, str]:
        instance = self.task_instance
        return {} if instance is None else {"dag_id": instance.dag_id, "task_id": instance.task_id}

    async def _push(self, end: End) -> None:
        """Push the record and the value of the task, as a worker would. Raises NeedsWorker.

        The event's own `xcoms` would be encoded twice, and read as text by the next task.
        """
        await asked(self._push_now, end)

    def _push_now(self, end: End) -> None:
        from airflow.sdk.execution_time.xcom import XCom

        instance, value = self.task_instance, end.value
        assert instance is not None  # noqa: S101  a triggerer sets it
        if end.reference is not None:
            value = _signatures.signed_if_possible(end.reference)
            if value is None:
                raise NeedsWorker("no secret signs references yet")
        place = {"dag_id": instance.dag_id, "run_id": instance.run_id, "task_id": instance.task_id}
        store(instance, KEY, end.record.to_dict())
        if value is not None:
            XCom.set(key="return_value", value=value, map_index=instance.map_index, **place)

    async def _show_until_over(
        self, news: News, states: StateLines, tail: LogTail, clock: AlertClock
    ) -> JobObservation | None:
        """Show why the job waits and what it prints; return how it ended, None at the deadline.

        A refusal to say how the job is does not end the wait: somebody may permit it.
        """
        shortest, longest = _LOOK_SECONDS, config().log_poll_interval
        pause = float("inf")  # a job that does not run prints nothing: its next state wakes us
        attempt, reminders = 0, Reminders()
        while True:
            remaining = self.remaining
            if remaining <= 0:
                return None
            seen = await news.next(min(pause, remaining, states.due, clock.due))
            if seen is None:
                if clock.due == 0:
                    await clock.send(self.log.warning)
                if line := states.late():
                    self.log.info("%s", line)
                if pause < remaining:
                    pause = shortest if await self._show_lines(tail, attempt) else min(pause * 1.5, longest)
                    pause = pause if self in _followed else _UNFOLLOWED_SECONDS
                continue
            if isinstance(seen, KineticError):
                if not isinstance(seen, ClusterError | StoreError):
                    raise seen  # the client was closed: nothing more comes
                if reminders.are_due(type(seen)):
                    self.log.warning("cannot see how the job is, asking again: %s", seen)
                continue
            _board.seen(self, seen)
            clock.see(seen)
            attempt = seen.attempt
            if seen.is_terminal:  # its last lines are shown by whoever ends the task
                return seen
            is_running = seen.status is JobStatus.RUNNING
            pause = min(pause, self.first_look_seconds) if is_running else float("inf")
            if line := states.line(seen):
                self.log.info("%s", line)

    async def _show_lines(self, tail: LogTail, last_attempt: int) -> bool:
        """Show the lines that the job has printed meanwhile. A log that cannot be read now is shown later."""
        if self.silent:
            return False
        if len(_followed) < config().followed_jobs:
            _followed.add(self)
        if self not in _followed:
            return False
        try:
            limit = min(_LINES_A_LOOK, _budget().left())
            lines = await in_thread(tail.live, limit, last_attempt)
        except (KineticError, OSError) as error:
            self.log.debug("cannot read the log now: %s", error)
            return False
        _budget().spend(len(lines))
        for line in lines:
            self.log.info("%s", line)
            self._shown_at = time.monotonic()
        self.cursor = tail.cursor.to_list()
        return bool(lines)


@cache
def _budget() -> LineBudget:
    """Return the budget of lines that all triggers of this process share."""
    return LineBudget(config().trigger_lines_per_second)


def _count(event: str, kinds: Mapping[str, str]) -> None:
    """Count an event of the core as a metric."""
    if event == "watch.relists":
        _stats.count(telemetry.RELISTS, kinds)


class Build(Protocol):
    """Build of an image, as `Following` of Cloud Build is one."""

    def look(self, say: Callable[[str], None]) -> str | None:
        """Say the new lines of its log; return a digest when it is built. Raises ImageError if it failed."""


@dataclass
class BuildFollower:
    """One follower of a build for all triggers of this process that wait for it.

    `lines` is the build's log so far, `end` how the build ended: `built`, or `failed` with the reason.
    `shown_by` has for each task, by DAG, run and id, the mapped instance that shows the lines: the first that
    waits here. If somebody ends that one early, another shows them.
    """

    build: Build
    lines: list[str] = field(default_factory=list)
    end: tuple[str, str] | None = None
    waiting: int = 0
    shown_by: dict[tuple[str, str, str], int] = field(default_factory=dict)

    async def follow(self, interval: float) -> None:
        """Look at the build every `interval` seconds until it ends."""
        while self.end is None:
            try:
                if await in_thread(self.build.look, self.lines.append) is not None:
                    self.end = "built", ""
            except (ImageError, ConfigurationError) as error:
                self.end = "failed", str(error)
            if self.end is None:
                await asyncio.sleep(interval)


_builds: dict[tuple[str, str], tuple[BuildFollower, asyncio.Task[None]]] = {}
"""Builds that somebody waits for, by project and id."""


@asynccontextmanager
async def followed(
    key: tuple[str, str], build: Build, interval: float
) -> AsyncIterator[tuple[BuildFollower, asyncio.Task[None]]]:
    """Follow a build inside the context, once however many are inside; the first one's `build` counts."""
    if key not in _builds:
        follower = BuildFollower(build)
        _builds[key] = follower, asyncio.ensure_future(follower.follow(interval))
    follower, task = _builds[key]
    follower.waiting += 1
    try:
        yield follower, task
    finally:
        follower.waiting -= 1
        if not follower.waiting:
            task.cancel()
            _builds.pop(key, None)


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
        **google: Unpack[GoogleKeywords],
    ) -> None:
        super().__init__(deferred_at, deadline, Access.of(conn_id, **google))
        self.build = build

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and arguments with which another triggerer continues."""
        return self._named(build=self.build)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Show the build's log until it ends, then yield one event; `shown`: this task has shown the log."""
        try:
            status, message, shown = await self._follow(await self._client())
        except NoConnection as error:
            status, message, shown = "timeout", str(error), False
        ended = time.time()
        await self._hold()
        told = {"status": status, "message": message, "deadline": self.deadline, "build": self.build}
        yield ShortEvent({**told, "shown": shown, "ended": ended, "sent": time.time()})

    def shows(self, follower: BuildFollower) -> bool:
        """Return whether this task shows the build's log: of a mapped task, only one instance does."""
        instance = self.task_instance
        if instance is None:
            return True
        task = instance.dag_id, instance.run_id, instance.task_id
        return follower.shown_by.setdefault(task, instance.map_index) == instance.map_index

    def leave(self, follower: BuildFollower) -> None:
        """Let another instance show the build's log, because this one no longer waits for its end."""
        instance = self.task_instance
        if instance is not None and follower.end is None and self.shows(follower):
            del follower.shown_by[instance.dag_id, instance.run_id, instance.task_id]

    async def _follow(self, connections: Connections) -> tuple[str, str, bool]:
        """Return `built`, `failed` with the reason, or `timeout`, and whether this task has shown the log.

        Requests without an answer are repeated.

        Raises what looking at the build has raised otherwise: then Airflow has a broken trigger.
        """
        from kinetic_core.images.cloud_build import Following

        following = await in_thread(Following.of, self.build, connections)
        shown, pause = 0, config().build_poll_interval
        key = self.build["project"], self.build["build_id"]
        async with followed(key, following, pause) as (follower, task):
            try:
                while self.remaining > 0:
                    await asyncio.wait({task}, timeout=min(pause, self.remaining))
                    if self.shows(follower):
                        for line in follower.lines[shown:]:
                            self.log.info("%s", line)
                        shown = len(follower.lines)
                    if follower.end is not None:
                        return *follower.end, self.shows(follower)
                    if task.done():
                        task.result()
            finally:
                self.leave(follower)
        return "timeout", "the image is still being built", False
