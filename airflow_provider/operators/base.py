"""What operators share: the legs of a task, what ends its work, and the wait while nobody answers.

Only a person, a timeout or a newer try ends a job (see ADR 45). A worker that is told to stop asks Airflow
for the task's state, where that is safe; unless somebody has ended the task, the job lives on.
"""

from __future__ import annotations

import asyncio
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from airflow.sdk import BaseOperator

from airflow_provider.access import Access, ImpersonationChain
from airflow_provider.airflow_sdk import AirflowException, AirflowFailException, AirflowTaskTimeout
from airflow_provider.config import config

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider.job_of_task import Origin, TaskIdentity
    from airflow_provider.task_logs import LogTail
    from airflow_provider.triggers.base import ConnectedTrigger
    from airflow_provider.waiting_alert import AlertClock, WaitingAlert
    from kinetic_core.backends.base import Backend
    from kinetic_core.connections import Connections
    from kinetic_core.errors import ImageBuilding
    from kinetic_core.job import JobObservation, JobReference

Answer = TypeVar("Answer")

DEFERRAL_KEY = "kinetic_deferral"
"""XCom with the data for a leg after a failed trigger, from which Airflow takes all other data."""
_BROKEN = "__fail__"
"""Name that Airflow gives the leg after a failed trigger."""


class _ToldWhileStarting(BaseException):  # so that nobody on the way takes it for an error of theirs
    """Airflow told the worker to stop while it was starting the job."""


class Failed(Exception):
    """Failure of the job, on its way to the method that Airflow has called."""

    def __init__(self, failure: BaseException) -> None:
        super().__init__(str(failure))
        self.failure = failure


def plainly(leg: Callable[..., Answer]) -> Callable[..., Answer]:
    """Make a leg raise a job's failure itself: its traceback then has no frames of ours but this one.

    Every error is one that Airflow can log.
    """

    @wraps(leg)
    def run(self: WorkOperator, *args: Any, **kwargs: Any) -> Answer:
        try:
            return leg(self, *args, **kwargs)
        except Failed as failed:
            raise _loggable(failed.failure) from None
        except Exception as error:
            if (told := _loggable(error)) is error:
                raise
            raise told from None

    return run


def _loggable(error: BaseException) -> BaseException:
    from airflow_provider.records import loggable

    return loggable(error)


class WorkOperator(BaseOperator):
    """Operator of a job or a batch: it starts or adopts the work, and defers until the work has ended.

    A task that is cleared in a later leg is resumed by Airflow with the event of the try before. To clear
    means to run again, so every leg gets the number of the try that deferred, and ignores another try's
    event. With SQLite, which reuses the ids of deleted triggers, a task may even get the event of another
    task.
    """

    python_callable: Callable[..., Any]
    op_args: Collection[Any]
    op_kwargs: Mapping[str, Any]
    conn_id: str | None
    gcp_conn_id: str | None
    impersonation_chain: ImpersonationChain
    deferrable: bool
    waiting_alert: WaitingAlert | None

    _identity: TaskIdentity | None = None
    _origin: Origin | None = None
    _reference: JobReference | None = None
    _is_starting: bool = False
    _is_told: bool = False
    _is_leaving: bool = False
    _has_timed_out: bool = False
    _has_said_cancelling: bool = False
    _broken: int = 0
    _resumed_at: float | None = None
    _connections: Connections | None = None

    @cached_property
    def outage_interval(self) -> float:
        """Return the seconds between requests to a cluster or a store that does not answer."""
        return config().outage_interval

    @cached_property
    def build_interval(self) -> float:
        """Return the seconds between requests for the state of an image's build, in a worker that waits."""
        return config().build_poll_interval

    @cached_property
    def submit_patience(self) -> float:
        """Return the seconds for which a submission is repeated while cluster or store do not answer."""
        return config().submit_patience

    @cached_property
    def trigger_retries(self) -> int:
        """Return the number of triggers of one try that may fail and be replaced."""
        return config().trigger_retries

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """Return the run options, by name."""

    @abstractmethod
    def _execute(
        self, context: Context, deadline: float | None, build: Mapping[str, str] | None = None
    ) -> Any:
        """Run one leg. `deadline` is in Unix seconds, None for never. `build`: the awaited image."""

    @abstractmethod
    def _cancel(self, *, was_cleared: bool = False) -> None:
        """Cancel the work, also work that was created but not yet reported to this process."""

    @abstractmethod
    def _owns(self, identity: TaskIdentity, reference: JobReference) -> bool:
        """Return whether a try of the task can have started the job or batch."""

    @abstractmethod
    def _defer(
        self,
        context: Context,
        reference: JobReference,
        cursor: list[int],
        deadline: float | None,
        *,
        silent: bool,
    ) -> NoReturn:
        """Leave the work, of which the task's log has the lines up to `cursor`, to a trigger."""

    @abstractmethod
    def _after_broken_trigger(self, context: Context, told: Mapping[str, Any]) -> Any:
        """Continue after a failed trigger, of which Airflow has `told`."""

    @plainly
    def execute(self, context: Context) -> Any:
        """Start the job, or adopt that of an earlier leg or try; wait for it or defer."""
        limit = self.execution_timeout
        deadline = None if limit is None else time.time() + limit.total_seconds()
        return self._execute(context, deadline)

    @plainly
    def execute_after_build(
        self,
        context: Context,
        event: Mapping[str, Any],
        try_number: int,
        run_began: str | None = None,
        broken: int = 0,
    ) -> Any:
        """Continue after the build of an image, whose end the trigger's `event` reports."""
        from kinetic_core.errors import ImageError

        del run_began  # no job is called by it so far
        if try_number != context["ti"].try_number or "reference" in event:  # of a job, not a build
            return self._begin_anew(context)
        self._broken = broken
        self._note_build(context, ended=event.get("ended", time.time()), sent=event.get("sent"))
        if event["status"] == "built":
            has_shown = event.get("shown", (context["ti"].map_index or 0) < 1)
            return self._execute(context, event["deadline"], event.get("build") if has_shown else None)
        if event["status"] == "timeout":
            raise AirflowTaskTimeout(f"execution_timeout has passed: {event['message']}")
        raise ImageError(event["message"])

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Enter every leg but the first, as Airflow asks; a failed trigger is no reason to end a job."""
        self._resumed_at = time.time()
        if next_method == _BROKEN:
            return self._after_broken_trigger(context, next_kwargs or {})
        return super().resume_execution(next_method, next_kwargs, context)

    def on_kill(self) -> None:
        """Stop the task: its `execution_timeout` is over, or the worker is told to stop; in the main thread.

        A signal does not say who sent it: Airflow, because somebody ended the task, or the machine's end.
        This handler cannot ask Airflow, because it may have interrupted another request to Airflow; the
        question waits until that is done. Starting a job is interrupted at once, as Airflow gives a worker
        five seconds: a job created later would belong to nobody.
        """
        if isinstance(sys.exc_info()[1], AirflowTaskTimeout):
            if not self._has_timed_out:
                self._cancel_overdue()
            return
        self._is_told = True
        if self._is_starting:
            raise _ToldWhileStarting

    def _cancel_overdue(self) -> None:
        """Cancel the work, whose time is up; Airflow then calls `on_kill`, which has nothing left to do.

        Raises AirflowTaskTimeout, which says why, if the work cannot be cancelled now. The next try ends it
        or, after the last one, the search for orphans.
        """
        from kinetic_core.errors import KineticError

        self._has_timed_out = True
        try:
            self._cancel()
        except KineticError as error:
            what = "execution_timeout has passed, and what this task has started cannot be cancelled now"
            raise AirflowTaskTimeout(f"{what}: {error}") from error

    def _say_cancelling(self, work_id: str) -> None:
        """Say that the work is being cancelled, unless this leg or the trigger before it has said so."""
        if not self._has_said_cancelling:
            self.log.info("Cancelling %s", work_id)
        self._has_said_cancelling = True

    def _obey(self, context: Context) -> None:
        """Once told to stop, cancel the job if somebody has ended the task, else see to it that it lives on.

        Raises AirflowFailException after cancelling; Airflow, which has ended the task, ignores it.
        """
        if not self._is_told:
            return
        from airflow_provider.job_of_task import CLEARED, ENDED

        self._is_told = False
        state = self._state(context)
        if state in ENDED:
            self._cancel(was_cleared=state == CLEARED)
            if state != CLEARED:
                self._tell_cancelled(context)
            raise AirflowFailException(
                self._named(context, "somebody has ended the task; its job, if it had one, is cancelled")
            )
        self.log.warning("This worker has been told to stop; nobody has ended the task, so its job lives on")
        self._is_leaving = True

    def _tell_cancelled(self, context: Context) -> None:
        """Record the end of the work that was cancelled because somebody ended the task, if that is known."""

    def _state(self, context: Context) -> str:
        """Return the task's state from Airflow; "" while Airflow does not answer."""
        from airflow_provider.job_of_task import state_of

        ti = context["ti"]
        try:
            return state_of(ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
        except Exception as error:  # noqa: BLE001  whatever it is, it must not kill a healthy job
            self.log.warning("Cannot read the state of the task from Airflow, so its job lives on: %r", error)
            return ""

    def _resumed(
        self, context: Context, event: Mapping[str, Any], try_number: int | None, run_began: str | None
    ) -> JobReference | None:
        """Return the reference in an event, and take this try's identity.

        None for the event of another try's, or another task's trigger: SQLite may give the id of a row anew.
        """
        from airflow_provider.job_of_task import TaskIdentity
        from kinetic_core.job import JobReference

        if try_number not in (None, context["ti"].try_number):
            return None
        self._identity = TaskIdentity.of(context, run_began)
        try:
            reference = JobReference.from_dict(event.get("reference") or {})
        except TypeError:  # a sensor's or a build's trigger sends none that is whole
            return None
        return reference if self._owns(self._identity, reference) else None

    def _begin_anew(self, context: Context) -> object:
        self.log.info(
            "this event is another task's or try's: beginning try %d anew", context["ti"].try_number
        )
        return self.execute(context)

    @property
    def _may_defer(self) -> bool:
        return self.deferrable and self._broken <= self.trigger_retries

    def _submitted(self, context: Context, start: Callable[[], Answer], deadline: float | None) -> Answer:
        """Return what `start` starts; see `_start`. Raises AirflowFailException for what can never run."""
        from kinetic_core.errors import InvalidRequest

        left = float("inf") if deadline is None else deadline - time.time()
        try:
            return self._answered(
                lambda: self._started(context, start),
                context,
                None,
                deadline,
                patience=min(self.submit_patience, left),
            )
        except InvalidRequest as error:
            raise AirflowFailException(self._named(context, error)) from error

    def _started(self, context: Context, start: Callable[[], Answer]) -> Answer:
        """Start, and repeat whenever the worker was told to stop meanwhile and nobody has ended the task."""
        while True:
            self._obey(context)
            try:
                self._is_starting = True
                return start()
            except _ToldWhileStarting:
                pass
            finally:
                self._is_starting = False

    def _remember(self, place: JobReference) -> None:
        """Record the place of a job for the search for orphans before the job exists.

        If this worker dies as soon as the job is there, a triggerer knows where to look for it. A worker that
        is told to stop meanwhile obeys afterwards, because half a question to Airflow would confuse the next
        one. Raises _ToldWhileStarting then.
        """
        from airflow_provider.deployment import remember

        assert self._identity is not None  # noqa: S101  every leg begins with it
        self._is_starting = False
        remember(place, self._access, self._identity.team)
        self._is_starting = True
        if self._is_told:
            raise _ToldWhileStarting

    def _leave_to_next_try(self, context: Context) -> None:
        """Raise for Airflow's retry if this worker is told to stop and a retry is left; else stay."""
        ti = context["ti"]
        if not self._is_leaving or ti.try_number > ti.max_tries:
            return
        text = "this worker has been told to stop; the job lives on, and the next try adopts it"
        raise AirflowException(self._named(context, text))

    def _answered(
        self,
        ask: Callable[[], Answer],
        context: Context,
        tail: LogTail | None,
        deadline: float | None,
        *,
        silent: bool = False,
        patience: float = float("inf"),
    ) -> Answer:
        """Return the result of `ask`. While it gets no answer, defer the task, or ask again in the worker.

        An outage of the cluster's API or of the store fails no task and loses no job. `tail` is None before
        there is a job to defer for. Raises the last error after `patience` seconds without an answer.
        """
        from kinetic_core.errors import CloudError, ClusterError, StoreError

        give_up = time.monotonic() + patience
        while True:
            try:
                return ask()
            except (ClusterError, StoreError, CloudError) as error:
                if not error.is_passing or time.monotonic() >= give_up:
                    raise
                if tail is not None and self._may_defer:
                    self.log.warning("%s; deferring until there is an answer", error)
                    self._defer(context, self._known_job, tail.cursor.to_list(), deadline, silent=silent)
                self.log.warning("%s; asking again in %g s", error, self.outage_interval)
            self._pause(context, min(self.outage_interval, give_up - time.monotonic()))

    def _pause(self, context: Context, seconds: float) -> None:
        """Wait in this worker; raise if it is told to stop, and may."""
        over = time.monotonic() + seconds
        while (left := over - time.monotonic()) > 0:
            self._obey(context)
            self._leave_to_next_try(context)
            time.sleep(min(0.5, left))

    def _note_broken(self, context: Context, told: Mapping[str, Any]) -> float | None:
        """Count and report a failed trigger; return the deadline of this try."""
        deadline, broken = self._kept_of_deferral(context)
        self._broken = broken + 1
        trace = "\n".join(map(str, told.get("traceback") or ()))
        then = "another one waits" if self._may_defer else "waiting in this worker"
        said = told.get("error"), trace
        self.log.warning("trigger %d of this try broke, %s: %s\n%s", self._broken, then, *said)
        return deadline

    def _kept_of_deferral(self, context: Context) -> tuple[float | None, int]:
        """Return the deadline of this try, and how many of its triggers failed."""
        from airflow_provider.records import pulled

        kept = pulled(context["ti"], DEFERRAL_KEY)
        if not isinstance(kept, dict) or kept.get("try_number") != context["ti"].try_number:
            return None, 0
        return kept["deadline"], int(kept["broken"])

    def _execute_with_image(self, context: Context, building: ImageBuilding, deadline: float | None) -> Any:
        """Run the leg again once its image is built. Raises TaskDeferred, unless this worker must wait."""
        self.log.info("%s", building)
        self._note_build(context, page=building.build["page"])
        if self._may_defer:
            self._defer_for_image(context, building.build, deadline)
        try:
            self._wait_for_image(context, building, deadline)
        finally:
            self._note_build(context, ended=time.time())
        return self._execute(context, deadline)

    def _note_build(
        self, context: Context, ended: float | None = None, page: str = "", sent: float | None = None
    ) -> None:
        """Record that this try waits for its image, whose build has that page, or no more with `ended`.

        `sent`: when the trigger that waited for the build sent its event.
        """
        from airflow_provider.records import BUILD_KEY, BuildWait, pulled, push

        ti, now = context["ti"], time.time()
        wait = BuildWait.from_value(pulled(ti, BUILD_KEY))
        if wait is None or wait.try_number != ti.try_number:
            wait = BuildWait(ti.try_number, now if ended is None else ended, page=page)
        if ended is not None:
            wait = replace(wait, ended=ended, resumed=now, sent=sent)
        push(ti, BUILD_KEY, asdict(wait))

    def _wait_for_image(self, context: Context, building: ImageBuilding, deadline: float | None) -> None:
        """Wait in this worker until the image is built. Raises ImageError, AirflowTaskTimeout.

        Of a mapped task, the instance that has started the build shows its log: workers know nothing of each
        other.
        """
        from kinetic_core.images.cloud_build import Following

        following = Following.of(building.build, self._client())
        shows = building.is_own or context["ti"].map_index in (None, -1)
        say = self.log.info if shows else self.log.debug
        while self._answered(lambda: following.look(say), context, None, deadline) is None:
            if deadline is not None and time.time() >= deadline:
                raise AirflowTaskTimeout(self._named(context, f"execution_timeout has passed: {building}"))
            self._pause(context, self.build_interval)

    def _defer_for_image(self, context: Context, build: dict[str, str], deadline: float | None) -> NoReturn:
        from airflow_provider.triggers.kinetic import KineticBuildTrigger

        trigger = KineticBuildTrigger(
            build=build, deferred_at=time.time(), deadline=deadline, **self._access.to_dict()
        )
        self._defer_to(context, trigger, "execute_after_build")

    def _defer_to(self, context: Context, trigger: ConnectedTrigger, leg: str) -> NoReturn:
        from airflow_provider.records import push

        assert self._identity is not None  # noqa: S101  every leg begins with it
        number, run_began = self._identity.try_number, self._identity.run_began
        kwargs: dict[str, Any] = {"try_number": number, "run_began": run_began}
        if self._broken:  # a worker of an earlier version of this provider does not know it
            kwargs["broken"] = self._broken
        if trigger.deadline is not None or self._broken:  # else a leg after a broken trigger misses nothing
            kept = {"try_number": number, "deadline": trigger.deadline, "broken": self._broken}
            push(context["ti"], DEFERRAL_KEY, kept)
        self.defer(trigger=trigger, method_name=leg, kwargs=kwargs)

    def _alert(self, context: Context) -> dict[str, Any] | None:
        """Return the task's alert for whoever waits for the work, None if it has none."""
        if self.waiting_alert is None:
            return None
        return self.waiting_alert.for_task(context["ti"], self._name_of_instance(context))

    def _look_at(self, seen: JobObservation | None, clock: AlertClock) -> None:
        """Send the alert from this worker, which waits itself, if it is due."""
        clock.see(seen)
        if clock.due == 0:
            asyncio.run(clock.send(self.log.warning))

    @property
    def _known_job(self) -> JobReference:
        """Return the reference of the work that this leg has started, or was told of."""
        assert self._reference is not None  # noqa: S101  set before anything waits for the job
        return self._reference

    @property
    def _access(self) -> Access:
        """Return the names of the task's connections. Raises InvalidRequest."""
        return Access.of(self.conn_id, self.gcp_conn_id, self.impersonation_chain)

    def _client(self) -> Connections:
        """Return the client of the task's connections, which are read once so that no kill waits for them."""
        if self._connections is None:
            from airflow_provider.hooks.kinetic import clients

            self._connections = clients.get(self._access)
        return self._connections

    def _backend(self) -> Backend:
        """Return the backend of the task's job."""
        from kinetic_core.backends.base import backend_of

        return backend_of(self._known_job, self._client())

    def _name_of_instance(self, context: Context) -> str:
        """Return the name of an instance of a mapped task; "" for other tasks."""
        from airflow_provider.airflow_sdk import redact
        from airflow_provider.records import instance_name

        return instance_name(context["ti"], self.python_callable, self.op_args, self.op_kwargs, redact)

    def _named(self, context: Context, text: object) -> str:
        from airflow_provider.records import named

        return named(self._name_of_instance(context), text)
