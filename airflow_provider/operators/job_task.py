"""Legs of a task that runs a job: what a worker does before and after the triggerer waits.

Only a person, a timeout or a newer try ends a job (see ADR 45). A worker that is told to stop asks Airflow
for the task's state, where that is safe; unless somebody has ended the task, the job lives on.
"""

from __future__ import annotations

import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowTaskTimeout
from airflow.sdk import BaseOperator
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_provider.config import config
from airflow_provider.options import rendered_options

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider.job_of_task import Origin, Started, TaskIdentity
    from airflow_provider.task_logs import LogTail, RemoteLog
    from airflow_provider.triggers.kinetic import ConnectedTrigger
    from kinetic_core.backends.base import Backend
    from kinetic_core.connections import Connections
    from kinetic_core.job import JobObservation, JobReference
    from kinetic_core.jobs.collect import Outcome

Answer = TypeVar("Answer")

DEFERRAL_KEY = "kinetic_deferral"
"""XCom with the data for a leg after a failed trigger, from which Airflow takes all other data."""
_BROKEN = "__fail__"
"""Name that Airflow gives the leg after a failed trigger."""


class _ToldWhileStarting(BaseException):  # so that nobody on the way takes it for an error of theirs
    """Airflow told the worker to stop while it was starting the job."""


class _Failed(Exception):
    """Failure of the job, on its way to the method that Airflow has called."""

    def __init__(self, failure: BaseException) -> None:
        super().__init__(str(failure))
        self.failure = failure


def _plainly(leg: Callable[..., Answer]) -> Callable[..., Answer]:
    """Make a leg raise a job's failure itself: its traceback then has no frames of ours but this one."""

    @wraps(leg)
    def run(self: JobTask, *args: Any, **kwargs: Any) -> Answer:
        try:
            return leg(self, *args, **kwargs)
        except _Failed as failed:
            raise failed.failure from None

    return run


class JobTask(BaseOperator):
    """Task that starts or adopts its job, defers until the job has ended, and returns the job's outcome.

    A task that is cleared in a later leg is resumed by Airflow with the event of the try before. To clear
    means to run again, so every leg gets the number of the try that deferred, and ignores another try's
    event. With SQLite, which reuses the ids of deleted triggers, a task may even get the event of another
    task.
    """

    python_callable: Callable[..., Any]
    op_args: Collection[Any]
    op_kwargs: Mapping[str, Any]
    conn_id: str | None
    deferrable: bool

    _identity: TaskIdentity | None = None
    _starter: TaskIdentity | None = None
    _origin: Origin | None = None
    _reference: JobReference | None = None
    _is_starting: bool = False
    _is_told: bool = False
    _is_leaving: bool = False
    _broken: int = 0
    _connections: Connections | None = None

    @cached_property
    def outage_interval(self) -> float:
        """Return the seconds between requests to a cluster or a store that does not answer."""
        return config().outage_interval

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

    @property
    def job(self) -> JobReference | None:
        """Return the reference of the task's job, as far as this process knows one; for links."""
        return self._reference

    @_plainly
    def execute(self, context: Context) -> Any:
        """Start the job, or adopt that of an earlier leg or try; wait for it or defer."""
        limit = self.execution_timeout
        deadline = None if limit is None else time.time() + limit.total_seconds()
        return self._execute(context, deadline)

    @_plainly
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
        if try_number != context["ti"].try_number:
            return self._begin_anew(context)
        self._broken = broken
        if event["status"] == "built":
            return self._execute(context, event["deadline"], event.get("build"))
        if event["status"] == "timeout":
            raise AirflowTaskTimeout(f"execution_timeout has passed: {event['message']}")
        raise ImageError(event["message"])

    @_plainly
    def execute_complete(
        self,
        context: Context,
        event: Mapping[str, Any],
        try_number: int | None = None,
        run_began: str | None = None,
        broken: int = 0,
    ) -> Any:
        """Continue after the job's end, or after its time is up, which the trigger's `event` reports.

        `run_began` is the run's start as this try first read it: Airflow may have written another since.
        `broken`: how many triggers of this try have failed before.
        """
        from airflow_provider.job_of_task import TaskIdentity
        from airflow_provider.task_logs import Cursor, LogTail, remote_log
        from kinetic_core.job import JobReference, JobStatus
        from kinetic_core.jobs.observe import observe

        if try_number not in (None, context["ti"].try_number):
            return self._begin_anew(context)
        self._identity = TaskIdentity.of(context, run_began)
        reference = JobReference.from_dict(event["reference"])
        if not self._identity.owns(reference.job_id, reference.spec_digest):
            self.log.warning("Ignoring the event of another task's trigger")
            return self._begin_anew(context)
        self._reference = reference
        self._broken = broken
        deadline, silent = event["deadline"], event.get("silent", False)
        backend = self._backend()
        tail = LogTail(backend, reference, Cursor.from_list(event["cursor"]), remote_log(context))
        observation = self._answered(
            lambda: observe(backend, reference), context, tail, deadline, silent=silent
        )
        has_ended = observation.is_terminal and observation.status is not JobStatus.CANCELLED
        if event["status"] == "timeout" and not has_ended:  # the trigger has cancelled it, or could not
            self._time_out(context, tail, observation.attempt)
        if not observation.is_terminal and self._may_defer:
            self._defer(context, reference, tail.cursor.to_list(), deadline, silent=silent)
        return self._finish(context, tail, self._wait(context, tail, observation, deadline), deadline)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Enter every leg but the first, as Airflow asks; a failed trigger is no reason to end a job."""
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
            self._cancel()
            return
        self._is_told = True
        if self._is_starting:
            raise _ToldWhileStarting

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
            raise AirflowFailException(
                self._named(context, "somebody has ended the task; its job, if it had one, is cancelled")
            )
        self.log.warning("This worker has been told to stop; nobody has ended the task, so its job lives on")
        self._is_leaving = True

    def _state(self, context: Context) -> str:
        """Return the task's state from Airflow; "" while Airflow does not answer."""
        from airflow_provider.job_of_task import state_of

        ti = context["ti"]
        try:
            return state_of(ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
        except Exception as error:  # noqa: BLE001  whatever it is, it must not kill a healthy job
            self.log.warning("Cannot read the state of the task from Airflow, so its job lives on: %r", error)
            return ""

    def _cancel(self, *, was_cleared: bool = False) -> None:
        """Cancel the job, also one that was created but not yet reported to this process.

        A result that is there already is kept for the next try, unless the task was cleared to run again.
        """
        from airflow_provider.job_of_task import mark_spent
        from kinetic_core.jobs.cancel import cancel

        reference = self._job()
        if reference is not None:
            self.log.info("Cancelling %s", reference.job_id)
            backend = self._backend()
            cancel(backend, reference)
            if was_cleared:
                mark_spent(backend, reference)

    def _begin_anew(self, context: Context) -> object:
        self.log.info("Ignoring an event of another try; starting try %d", context["ti"].try_number)
        return self.execute(context)

    @property
    def _may_defer(self) -> bool:
        return self.deferrable and self._broken <= self.trigger_retries

    def _execute(
        self, context: Context, deadline: float | None, build: Mapping[str, str] | None = None
    ) -> Any:
        """Run one leg. `deadline` is in Unix seconds, None for never. `build`: the awaited image."""
        from airflow_provider.job_of_task import TaskIdentity
        from airflow_provider.orphans import remember
        from airflow_provider.records import tell_start
        from airflow_provider.task_logs import LogTail, describe, remote_log
        from kinetic_core.errors import ImageBuilding

        self._identity = TaskIdentity.of(context)
        remote = remote_log(context)
        try:
            # One instance of a mapped task shows the log of an image's build; the others wait quietly.
            quiet = (context["ti"].map_index or 0) > 0
            patience = (0.0 if quiet else config().defer_after) if self._may_defer else None
            started = self._start(context, patience, remote, deadline)
        except ImageBuilding as building:
            self.log.info("%s", building)
            self._defer_for_image(context, building.build, deadline)
        reference, observation = started.reference, started.observation
        self._reference = reference
        self._starter = started.starter
        tell_start(context, self._identity, started, self.conn_id)
        remember(reference, self.conn_id, self._identity.team)
        verb = "adopted" if started.adopted else "started"
        self.log.info("%s a job on %s: %s", verb, reference.hardware, describe(reference, observation))
        silent = remote is not None and reference.backend != "local" and not started.adopted
        tail = LogTail(self._backend(), reference, remote=remote, silent=silent)
        ended = self._wait(context, tail, observation, deadline, silent=silent, build=build)
        return self._finish(context, tail, ended, deadline)

    def _start(
        self, context: Context, build_patience: float | None, remote: RemoteLog | None, deadline: float | None
    ) -> Started:
        """Start or adopt the job of this leg, and return it with its observation.

        Repeated if the worker was told to stop meanwhile, and for `submit_patience` while cluster or store do
        not answer: the job's id is that of the try, so the next start finds a job that an interrupted one has
        created.
        """
        from airflow_provider.records import origin_of, traced_start
        from airflow_provider.xcom import call_of
        from kinetic_core.errors import InvalidRequest

        assert self._identity is not None  # noqa: S101  every leg begins with it
        try:
            options = rendered_options(self._options())
            call = call_of(self.python_callable, self.op_args, self.op_kwargs, context, KNOWN_CONTEXT_KEYS)
            self._origin = origin_of(self._identity)
            client = self._client()
            asked = call, options, client, self._identity, self.log.info, build_patience, remote, self._origin
            left = float("inf") if deadline is None else deadline - time.time()
            return self._answered(
                lambda: self._started(context, lambda: traced_start(*asked)),
                context,
                None,
                deadline,
                patience=min(self.submit_patience, left),
            )
        except InvalidRequest as error:
            raise AirflowFailException(self._named(context, error)) from error

    def _started(self, context: Context, start: Callable[[], Started]) -> Started:
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

    def _wait(
        self,
        context: Context,
        tail: LogTail,
        observation: JobObservation,
        deadline: float | None,
        *,
        silent: bool = False,
        build: Mapping[str, str] | None = None,
    ) -> JobObservation:
        """Return the final observation of the job. Raises TaskDeferred if the job does not end soon.

        A worker that may not defer waits until `deadline`. If it is told to stop, the next try adopts the
        job; after the last try, the worker stays for as long as it is allowed to live.
        """
        from airflow_provider.task_logs import show_build_again, wait_with_log

        while not observation.is_terminal:
            if not self._may_defer:
                self._leave_to_next_try(context)
            left = None if deadline is None else max(0.0, deadline - time.time())
            patience = config().defer_after if self._may_defer else left
            try:
                ended = wait_with_log(
                    self._known_job,
                    tail,
                    self.log.info,
                    observation,
                    patience,
                    is_told_to_stop=lambda: self._is_told,
                )
            except AirflowTaskTimeout:  # Airflow's own clock, which began before ours
                self._time_out(context, tail, observation.attempt)
            if ended is not None:
                return ended
            self._obey(context)
            if self._may_defer:
                if build is not None and (context["ti"].map_index or 0) < 1:
                    show_build_again(build, self._client(), self.log.info)
                self._defer(context, self._known_job, tail.cursor.to_list(), deadline, silent=silent)
            if deadline is not None and time.time() >= deadline:
                self._time_out(context, tail, observation.attempt)
        return observation

    def _leave_to_next_try(self, context: Context) -> None:
        """Raise for Airflow's retry if this worker is told to stop and a retry is left; else stay."""
        ti = context["ti"]
        if not self._is_leaving or ti.try_number > ti.max_tries:
            return
        text = "this worker has been told to stop; the job lives on, and the next try adopts it"
        raise AirflowException(self._named(context, text))

    def _time_out(self, context: Context, tail: LogTail, attempt: int) -> NoReturn:
        """Cancel the job, report its end to Airflow if that is known now, and raise AirflowTaskTimeout."""
        from airflow_provider.records import tell_end
        from kinetic_core.errors import KineticError
        from kinetic_core.jobs.collect import collect
        from kinetic_core.jobs.observe import observe

        self._cancel()
        self._show_rest(tail, attempt)
        reference, backend, text = self._known_job, self._backend(), "execution_timeout has passed"
        try:
            outcome = collect(backend, reference, allow_pickle=False)
            ended = replace(observe(backend, reference), message=text)
            tell_end(context, self._known_starter, backend, reference, ended, outcome, self.conn_id)
        except KineticError as error:
            self.log.warning("how %s ended is not on its page: %s", reference.job_id, error)
        raise AirflowTaskTimeout(self._named(context, f"{reference.job_id} was cancelled: {text}"))

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
            again = min(time.monotonic() + self.outage_interval, give_up)
            while time.monotonic() < again:
                self._obey(context)
                self._leave_to_next_try(context)
                time.sleep(min(0.5, self.outage_interval))

    @property
    def _known_job(self) -> JobReference:
        """Return the reference of the job that this leg has started, or was told of."""
        assert self._reference is not None  # noqa: S101  set before anything waits for the job
        return self._reference

    @property
    def _known_starter(self) -> TaskIdentity:
        """Return the try that has started the job of this leg."""
        starter = self._starter or self._identity
        assert starter is not None  # noqa: S101  every leg begins with it
        return starter

    def _client(self) -> Connections:
        """Return the client of the task's connection, which is read once so that no kill waits for it."""
        if self._connections is None:
            from airflow_provider.hooks.kinetic import clients

            self._connections = clients.get(self.conn_id)
        return self._connections

    def _backend(self) -> Backend:
        """Return the backend of the task's job."""
        from kinetic_core.backends.base import backend_of

        return backend_of(self._known_job, self._client())

    def _job(self, recorded: str = "") -> JobReference | None:
        """Return the reference of the job, also when it was created but not yet reported to this process."""
        from airflow_provider.job_of_task import latest

        if self._reference is None and self._identity is not None:
            options = rendered_options(self._options())
            self._reference = latest(options, self._client(), self._identity, self._origin, recorded)
        return self._reference

    @_plainly
    def _after_broken_trigger(self, context: Context, told: Mapping[str, Any]) -> Any:
        """Continue after a failed trigger: the job may have ended; otherwise it gets another trigger.

        The trigger's arguments are lost. Its class may belong to another version of this provider; starting
        anew could then cancel the job, because its call would look different.
        """
        from airflow_provider.task_logs import LogTail, remote_log
        from kinetic_core.jobs.observe import observe

        self._identity, recorded = self._recorded(context)
        deadline, broken = self._kept_of_deferral(context)
        self._broken = broken + 1
        trace = "\n".join(map(str, told.get("traceback") or ()))
        then = "another one waits" if self._may_defer else "waiting in this worker"
        said = told.get("error"), trace
        self.log.warning("trigger %d of this try broke, %s: %s\n%s", self._broken, then, *said)
        reference = self._answered(lambda: self._job(recorded), context, None, deadline)
        if reference is None:
            return self._execute(context, deadline)
        backend = self._backend()
        tail = LogTail(backend, reference, remote=remote_log(context))
        observation = self._answered(lambda: observe(backend, reference), context, tail, deadline)
        return self._finish(context, tail, self._wait(context, tail, observation, deadline), deadline)

    def _recorded(self, context: Context) -> tuple[TaskIdentity, str]:
        """Return this try with the run's start it first used, and the id of the job in the task's record.

        Airflow may have written another start of the run since, and the id may be of a call that has changed.
        A record of a job that this try may not wait for is ignored; its id is then "".
        """
        from airflow_provider.job_of_task import TaskIdentity
        from airflow_provider.records import KEY, JobRecord

        record = JobRecord.from_value(_pulled(context, KEY))
        if record is not None:
            identity = TaskIdentity.of(context, record.run_began)
            if identity.owns(record.reference.job_id, record.reference.spec_digest):
                return identity, record.reference.job_id
        return TaskIdentity.of(context), ""

    def _kept_of_deferral(self, context: Context) -> tuple[float | None, int]:
        """Return the deadline of this try, and how many of its triggers failed."""
        kept = _pulled(context, DEFERRAL_KEY)
        if not isinstance(kept, dict) or kept.get("try_number") != context["ti"].try_number:
            return None, 0
        return kept["deadline"], int(kept["broken"])

    def _defer(
        self,
        context: Context,
        reference: JobReference,
        cursor: list[int],
        deadline: float | None,
        *,
        silent: bool,
    ) -> NoReturn:
        from airflow_provider.triggers.kinetic import KineticJobTrigger

        trigger = KineticJobTrigger(
            reference=reference.to_dict(),
            cursor=cursor,
            deferred_at=time.time(),
            deadline=deadline,
            conn_id=self.conn_id,
            silent=silent,
        )
        self._defer_to(context, trigger, "execute_complete")

    def _defer_for_image(self, context: Context, build: dict[str, str], deadline: float | None) -> NoReturn:
        from airflow_provider.triggers.kinetic import KineticBuildTrigger

        trigger = KineticBuildTrigger(
            build=build, deferred_at=time.time(), deadline=deadline, conn_id=self.conn_id
        )
        self._defer_to(context, trigger, "execute_after_build")

    def _defer_to(self, context: Context, trigger: ConnectedTrigger, leg: str) -> NoReturn:
        assert self._identity is not None  # noqa: S101  every leg begins with it
        number, run_began = self._identity.try_number, self._identity.run_began
        kwargs: dict[str, Any] = {"try_number": number, "run_began": run_began}
        if self._broken:  # a worker of an earlier version of this provider does not know it
            kwargs["broken"] = self._broken
        if trigger.deadline is not None or self._broken:  # else a leg after a broken trigger misses nothing
            kept = {"try_number": number, "deadline": trigger.deadline, "broken": self._broken}
            context["ti"].xcom_push(key=DEFERRAL_KEY, value=kept)
        self.defer(trigger=trigger, method_name=leg, kwargs=kwargs)

    def _finish(
        self, context: Context, tail: LogTail, observation: JobObservation, deadline: float | None
    ) -> Any:
        """Return the task's value, or raise its failure, from the outcome of the finished job."""
        from airflow_provider.job_of_task import mark_spent
        from airflow_provider.records import failure_of, publish, tell_end
        from airflow_provider.task_logs import describe
        from kinetic_core.jobs.cancel import drop_payloads
        from kinetic_core.jobs.collect import collect

        reference, backend = self._known_job, self._backend()

        def answered(ask: Callable[[], Answer]) -> Answer:
            return self._answered(ask, context, tail, deadline)

        answered(lambda: self._show_rest(tail, observation.attempt))
        self.log.info("%s", describe(reference, observation))
        outcome = answered(lambda: collect(backend, reference, allow_pickle=False))
        self._obey(context)
        tell_end(context, self._known_starter, backend, reference, observation, outcome, self.conn_id)
        if not outcome.succeeded:
            raise _Failed(failure_of(outcome, self._name_of_instance(context)))
        value = answered(lambda: self._value(context, reference, outcome))
        if self.outlets:
            events = context["outlet_events"]
            answered(lambda: publish(backend.connections, reference, outcome.digest, self.outlets, events))
        answered(lambda: mark_spent(backend, reference))
        drop_payloads(backend.connections, [reference])
        return value

    def _value(self, context: Context, reference: JobReference, outcome: Outcome) -> object:
        """Return the task's value for a job that has succeeded."""
        from airflow_provider.xcom import value_for_xcom

        mapped_over = context["ti"].map_index in (None, -1) and any(
            True for _ in self.iter_mapped_dependants()
        )
        return value_for_xcom(
            reference,
            outcome,
            multiple_outputs=bool(self.multiple_outputs),
            mapped_over=mapped_over,
            name=self._name_of_instance(context),
        )

    def _name_of_instance(self, context: Context) -> str:
        """Return the name of an instance of a mapped task; "" for other tasks."""
        from airflow.providers.common.compat.sdk import redact

        from airflow_provider.records import instance_name

        return instance_name(context["ti"], self.python_callable, self.op_args, self.op_kwargs, redact)

    def _named(self, context: Context, text: object) -> str:
        from airflow_provider.records import named

        return named(self._name_of_instance(context), text)

    def _show_rest(self, tail: LogTail, attempt: int) -> None:
        """Show the rest of the log, so that the evidence comes before the verdict."""
        for line in tail.rest(attempt, config().final_log_lines):
            self.log.info("%s", line)


def _pulled(context: Context, key: str) -> object:
    """Pull an XCom of the task instance itself."""
    ti = context["ti"]
    mapped = ti.map_index is not None and ti.map_index >= 0
    return ti.xcom_pull(task_ids=ti.task_id, key=key, map_indexes=ti.map_index if mapped else -1)
