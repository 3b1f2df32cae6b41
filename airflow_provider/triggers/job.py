"""`KineticJobTrigger`: watches one job for a deferred task, through the process's one hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import cache
from typing import Any
from weakref import WeakSet

from airflow.triggers.base import BaseTrigger, TriggerEvent
from airflow.utils.net import get_hostname

from airflow_provider import metrics
from airflow_provider.board import StateBoard
from airflow_provider.origin import deployment
from airflow_provider.reconciling import reconciled
from airflow_provider.task_logs import Cursor, LineBudget, LogTail
from airflow_provider.triggers.connected import ConnectedTrigger
from airflow_provider.waiting import StateLines
from kinetic_core.counting import listen
from kinetic_core.errors import KineticError
from kinetic_core.lifecycle.backends import backend_of
from kinetic_core.lifecycle.ending import cancel
from kinetic_core.lifecycle.observing import watch
from kinetic_core.model.job import JobObservation, JobReference
from kinetic_core.model.states import JobStatus

_LOOKUPS, _LOOKUP_PAUSE_SECONDS = 40, 5.0
"""How often a killed trigger asks for its task's state, if Airflow fails to say."""
LINES_PER_SECOND = 200.0
"""For all triggers of a triggerer together: every line costs its event loop half a millisecond."""
_LINES_A_LOOK = 50
_LOOK_SECONDS = (1.0, 10.0)
_FOLLOWED = 100
"""Running jobs whose lines a triggerer shows meanwhile: each takes a thread and a connection to its node."""
_UNFOLLOWED_SECONDS = 60.0

_budget = LineBudget(LINES_PER_SECOND)
_stats = metrics.Stats(metrics.IN_TRIGGERS)
_board = StateBoard(_stats, cache(get_hostname))
_followed: WeakSet[KineticJobTrigger] = WeakSet()
_last_acts: set[asyncio.Future[None]] = set()
"""What cancelled triggers still do. Older Airflows cancel twice, and the loop alone would forget them."""


class KineticJobTrigger(ConnectedTrigger):
    """Fires once, when the job has ended or at `deadline` (Unix seconds, None for never).

    `cursor` says how much of the job's log is in the task's log already; the event carries it on. `conn_id`
    names the task's connection, which is read here again: a trigger's row holds no secret. `silent`: the
    job's pods write to the task's log themselves. May run twice at once and be moved between triggerers: it
    changes nothing but the log.
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

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """What another triggerer needs to go on."""
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
        yield TriggerEvent(  # type: ignore[no-untyped-call]
            {
                "status": status,
                "reference": self.reference,
                "cursor": self.cursor,
                "deadline": self.deadline,
                "silent": self.silent,
            }
        )

    async def on_kill(self) -> None:
        """A person marked the task or cleared it: cancel the job.

        Airflow also calls this when it merely moves the trigger to another triggerer, so the task's own
        state decides. As long as that is unknown nothing is cancelled, and it is asked for again: longer
        than Airflow waits for this, if need be.
        """
        last = asyncio.ensure_future(self._cancel_unless_deferred())
        _last_acts.add(last)
        last.add_done_callback(_last_acts.discard)
        await asyncio.shield(last)

    async def _cancel_unless_deferred(self) -> None:
        if self._fired:
            return
        for _ in range(_LOOKUPS):
            is_deferred = await self._is_deferred()
            if is_deferred is not None:
                break
            await asyncio.sleep(_LOOKUP_PAUSE_SECONDS)
        if is_deferred is not False:
            return
        reference = JobReference.from_dict(self.reference)
        self.log.info("the task is no longer waiting: cancelling %s", reference.job_id)
        with await self._connected():
            await asyncio.to_thread(cancel, reference)

    async def _watch(self) -> str:
        """Show the job's lines until it has "ended" or its time is up: "timeout"."""
        with await self._connected():
            return await self._watch_connected()

    async def _watch_connected(self) -> str:
        reference = JobReference.from_dict(self.reference)
        news: asyncio.Queue[JobObservation] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def notice(observation: JobObservation) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.put_nowait, observation)

        listen(_count)
        backend = await asyncio.to_thread(backend_of, reference)
        subscription = await asyncio.to_thread(watch, reference, notice)
        whose = "its pods write their lines here" if self.silent else "showing its lines from here on"
        self.log.info("no worker is held while %s runs; %s", reference.job_id, whose)
        try:
            async with reconciled(backend, reference.namespace, _states, _deployment):
                ended = await self._show_until_over(
                    news, StateLines(reference), LogTail(reference, Cursor.from_list(self.cursor))
                )
        finally:
            subscription.close()
            _board.gone(self)
            _followed.discard(self)
        await self._hold()
        return "ended" if ended else "timeout"

    async def _show_until_over(
        self, news: asyncio.Queue[JobObservation], states: StateLines, tail: LogTail
    ) -> bool:
        """True when the job has ended, False at the deadline. Meanwhile why it waits, and what it prints."""
        shortest, longest = _LOOK_SECONDS
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
            if seen.is_terminal:
                await self._show_lines(tail)
                return True
            pause = shortest if seen.status is JobStatus.RUNNING else float("inf")
            if line := states.line(seen):
                self.log.info("%s", line)

    async def _show_lines(self, tail: LogTail) -> bool:
        """Show what the job has printed meanwhile. A log that cannot be read now is shown later."""
        if self.silent:
            return False
        if len(_followed) < _FOLLOWED:
            _followed.add(self)
        if self not in _followed:
            return False
        try:
            lines = await asyncio.to_thread(tail.live, min(_LINES_A_LOOK, _budget.left()))
        except (KineticError, OSError) as error:
            self.log.debug("cannot read the log now: %s", error)
            return False
        _budget.spend(len(lines))
        for line in lines:
            self.log.info("%s", line)
        self.cursor = tail.cursor.to_list()
        return bool(lines)

    async def _is_deferred(self) -> bool | None:
        """Whether the task instance still waits for this trigger; None if Airflow does not say.

        The question is never given up half-way: Airflow 3.1 would take its late answer for that of the next
        question, whoever asks it, and its triggerer ends.
        """
        instance = self.task_instance
        if instance is None:
            return True
        mapped = instance.map_index is not None and instance.map_index >= 0
        index = instance.map_index if mapped else None
        try:
            states = await _states(instance.dag_id, instance.run_id, [instance.task_id], index)
        except Exception as error:  # noqa: BLE001  whatever it is, it must not kill a healthy job
            self.log.warning("cannot see the task's state, so its job is left alone for now: %r", error)
            return None
        key = f"{instance.task_id}_{instance.map_index}" if mapped else instance.task_id
        return str(states.get(key)) == "deferred"


async def _states(
    dag_id: str, run_id: str, task_ids: list[str], map_index: int | None = None
) -> Mapping[str, object]:
    """The states of task instances of a DAG run, as Airflow names them; without those that are gone."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    from asgiref.sync import sync_to_async

    ask = sync_to_async(RuntimeTaskInstance.get_task_states)
    states = await ask(dag_id=dag_id, task_ids=task_ids, run_ids=[run_id], map_index=map_index)
    found: Mapping[str, object] = states.get(run_id, {})
    return found


async def _deployment() -> str:
    from asgiref.sync import sync_to_async

    return await sync_to_async(deployment)()


def _count(event: str, kinds: Mapping[str, str]) -> None:
    """What the core counts, as metrics."""
    if event == "watch.relists":
        _stats.count(metrics.RELISTS, kinds)
