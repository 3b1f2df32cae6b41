"""`KineticOperator`: a task that runs a Python function as a job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Unpack

from airflow.sdk import BaseOperatorLink
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_provider.access import ACCESS, Access, ImpersonationChain
from airflow_provider.airflow_sdk import AirflowFailException, AirflowTaskTimeout
from airflow_provider.config import config, default_deferrable
from airflow_provider.links.kinetic import JobLink
from airflow_provider.operators.base import Answer, Failed, WorkOperator, plainly
from airflow_provider.options import (
    TASK_OPTIONS,
    GivenFields,
    check_options,
    is_open,
    is_template,
    refuse_options,
    rendered_options,
    takes_options,
)
from airflow_provider.waiting_alert import check_alert
from kinetic_core.data.data import Data

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider.ending import Ending
    from airflow_provider.job_of_task import Started, TaskIdentity
    from airflow_provider.lineage import Lineage
    from airflow_provider.option_types import TaskKeywords
    from airflow_provider.records import JobRecord
    from airflow_provider.task_logs import LogTail, RemoteLog
    from airflow_provider.waiting_alert import WaitingAlert
    from kinetic_core.job import JobObservation, JobReference
    from kinetic_core.jobs.collect import Outcome


class KineticOperator(WorkOperator):
    """Operator that runs `python_callable(*op_args, **op_kwargs)` as a job and returns its value.

    The function, its project and its arguments are packaged; the options are those of
    `kinetic_core.run`, `job_retries` being attempts inside the job besides Airflow's own `retries`.
    `conn_id` names a connection of type `kinetic`, which says where jobs run, and as whom, instead of the
    environment; `gcp_conn_id` and `impersonation_chain` say whose credentials Google's services get, as in
    Google's own operators. With `deferrable` no worker slot is held while the job runs; the default is True,
    or what `AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE` is set to.
    `execution_timeout` bounds the task from its first start, waiting included. `waiting_alert` says whom to
    tell, once, that the job has waited too long. Every option of the job may be a template, or come from
    another task.

    A plain value becomes the task's XCom. Any other value becomes a reference; another kinetic task takes the
    reference as an argument and gets the value.
    """

    template_fields: Sequence[str] = GivenFields(("op_args", "op_kwargs", *TASK_OPTIONS, *ACCESS))
    template_fields_renderers: ClassVar[dict[str, str]] = {"op_args": "py", "op_kwargs": "py"}
    shallow_copy_attrs: Sequence[str] = ("python_callable", "op_args", "op_kwargs")
    operator_extra_links: Collection[BaseOperatorLink] = (JobLink(),)
    ui_color = "#e8f0fe"
    custom_operator_name = "@task.kinetic"

    _starter: TaskIdentity | None = None
    _known_ending: Ending | None = None
    record: JobRecord | None = None
    """Record of the task's job, once it has ended, as far as this process knows it."""

    @takes_options
    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        conn_id: str | None = None,
        gcp_conn_id: str | None = None,
        impersonation_chain: ImpersonationChain = None,
        deferrable: bool = default_deferrable(),
        waiting_alert: WaitingAlert | None = None,
        **options: Unpack[TaskKeywords],
    ) -> None:
        refuse_options(options)
        given: dict[str, Any] = {**options}
        of_job = {name: given.pop(name, None) for name in TASK_OPTIONS}
        super().__init__(**given)
        self.python_callable = python_callable
        self.op_args = op_args or ()
        self.op_kwargs = op_kwargs or {}
        for name, value in of_job.items():
            setattr(self, name, value)
        self.conn_id = conn_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        self.deferrable = deferrable
        self.waiting_alert = waiting_alert
        self._check()

    def render_template(self, content: Any, *args: Any, **kwargs: Any) -> Any:
        """Render templates as Airflow does, fill in the path of a `Data`, and leave other paths alone.

        Airflow 3.1 would take a path for the output of another task.
        """
        if isinstance(content, os.PathLike):
            return content
        if isinstance(content, Data) and is_template(content.path):
            path = super().render_template(content.path, *args, **kwargs)
            return Data(path, content.fuse, content.hf_trust_remote_code, shard=content.shard)
        return super().render_template(content, *args, **kwargs)

    def _check(self) -> None:
        check_options(self._options())
        if not is_open(self.impersonation_chain):
            Access.of(impersonation_chain=self.impersonation_chain)
        check_alert(self.waiting_alert)

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in TASK_OPTIONS}

    @property
    def failure_class(self) -> str:
        """Return the class of the job's failure; "" if it has not failed, as far as this process knows."""
        end = None if self.record is None else self.record.end
        return "" if end is None else end.failure_class

    @property
    def job(self) -> JobReference | None:
        """Return the reference of the task's job, as far as this process knows one; for links."""
        return self._reference

    def get_openlineage_facets_on_start(self) -> Lineage:
        """Return the lineage that is known before the job ends, for OpenLineage's provider."""
        from airflow_provider.lineage import before_the_end

        return before_the_end(self, self.python_callable, self._data())

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Lineage:
        """Return the lineage of the task's end, also of one that fails, for OpenLineage's provider."""
        from airflow_provider.lineage import of_job

        del task_instance
        lineage = self.get_openlineage_facets_on_start()
        return lineage if self.record is None else of_job(lineage, self._client(), self.record)

    def _data(self) -> list[Any]:
        """Return everything in which there may be data that the job reads."""
        return [self.op_args, self.op_kwargs, self._options()]

    @plainly
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
        from airflow_provider.task_logs import Cursor, LogTail, remote_log
        from kinetic_core.job import JobStatus
        from kinetic_core.jobs.observe import observe

        reference = self._resumed(context, event, try_number, run_began)
        if reference is None:
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
            self._has_said_cancelling = True
            self._time_out(context, tail, observation.attempt)
        if not observation.is_terminal and self._may_defer:
            self._defer(context, reference, tail.cursor.to_list(), deadline, silent=silent)
        return self._finish(context, tail, self._wait(context, tail, observation, deadline), deadline)

    def _execute(
        self, context: Context, deadline: float | None, build: Mapping[str, str] | None = None
    ) -> Any:
        """Run one leg. `deadline` is in Unix seconds, None for never.

        `build`: the awaited image's, if this task's trigger has shown its log.
        """
        from airflow_provider.job_of_task import TaskIdentity
        from airflow_provider.records import tell_start
        from airflow_provider.task_logs import LogTail, describe, remote_log
        from kinetic_core.errors import ImageBuilding

        self._identity = TaskIdentity.of(context)
        remote = remote_log(context)
        try:
            started = self._start(context, remote, deadline)
        except ImageBuilding as building:
            return self._execute_with_image(context, building, deadline)
        reference, observation = started.reference, started.observation
        self._reference = reference
        self._starter = started.starter
        tell_start(context, self._identity, started, self._access)
        verb = "adopted" if started.adopted else "started"
        self.log.info("%s a job on %s: %s", verb, reference.hardware, describe(reference, observation))
        silent = remote is not None and reference.backend != "local" and not started.adopted
        tail = LogTail(self._backend(), reference, remote=remote, silent=silent)
        ended = self._wait(context, tail, observation, deadline, silent=silent, build=build)
        return self._finish(context, tail, ended, deadline)

    def _start(self, context: Context, remote: RemoteLog | None, deadline: float | None) -> Started:
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
        except InvalidRequest as error:
            raise AirflowFailException(self._named(context, error)) from error
        asked = call, options, client, self._identity, self.log.info, remote, self._origin, self._remember
        return self._submitted(context, lambda: traced_start(*asked), deadline)

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
        from airflow_provider.waiting_alert import AlertClock

        reference = self._known_job
        alert = None if self._may_defer else self._alert(context)  # else the trigger sends it
        clock = AlertClock(alert, self._backend(), reference)
        while not observation.is_terminal:
            if not self._may_defer:
                self._leave_to_next_try(context)
            left = None if deadline is None else max(0.0, deadline - time.time())
            patience = self._patience(context) if self._may_defer else left
            if patience != 0:
                try:
                    ended = wait_with_log(
                        reference,
                        tail,
                        self.log.info,
                        observation,
                        patience,
                        is_told_to_stop=lambda: self._is_told,
                        look=partial(self._look_at, clock=clock),
                    )
                except AirflowTaskTimeout:  # Airflow's own clock, which began before ours
                    self._time_out(context, tail, observation.attempt)
                if ended is not None:
                    return ended
            self._obey(context)
            if self._may_defer:
                if build is not None:
                    show_build_again(build, self._client(), self.log.info)
                self._defer(context, reference, tail.cursor.to_list(), deadline, silent=silent)
            if deadline is not None and time.time() >= deadline:
                self._time_out(context, tail, observation.attempt)
        return observation

    def _patience(self, context: Context) -> float:
        """Return the seconds to wait for a job before deferring: none if its trigger can end the task.

        A call on a warm worker may take less time than a trigger needs to start.
        """
        from airflow_provider.ending import SUCCESS

        ends_by_trigger = SUCCESS in self._ending(context).states
        return 0.0 if ends_by_trigger and not self._known_job.worker else config().defer_after

    def _ending(self, context: Context) -> Ending:
        """Return the part that the task's trigger has in the task's end."""
        from airflow_provider.ending import FAILED, SUCCESS, Ending, Installation, needs_worker
        from airflow_provider.task_logs import remote_log

        assert self._identity is not None  # noqa: S101  every leg begins with it
        if self._known_ending is None:
            reasons = dict(needs_worker(self, context["ti"], Installation.here()))
            remote = remote_log(context)
            self._known_ending = Ending(
                states=tuple(state for state in (SUCCESS, FAILED) if state not in reasons),
                run_began=self._known_starter.run_began,
                try_number=self._known_starter.try_number,
                name=self._name_of_instance(context),
                pushes=self.do_xcom_push,
                signs=not self._identity.team,
                log="" if remote is None else remote.uri,
            )
            if SUCCESS in reasons:
                self.log.info("a worker ends this task after its job: %s", reasons[SUCCESS])
        return self._known_ending

    def _time_out(self, context: Context, tail: LogTail, attempt: int) -> NoReturn:
        """Cancel the job, report its end to Airflow if that is known now, and raise AirflowTaskTimeout."""
        from airflow_provider.records import tell_end
        from kinetic_core.errors import KineticError
        from kinetic_core.jobs.collect import collect
        from kinetic_core.jobs.observe import observe

        self._cancel_overdue()
        self._show_rest(tail, attempt)
        reference, backend, text = self._known_job, self._backend(), "execution_timeout has passed"
        try:
            outcome = collect(backend, reference, allow_pickle=False)
            ended = replace(observe(backend, reference), message=text)
            starter, access = self._known_starter, self._access
            self.record = tell_end(
                context, starter, backend, reference, ended, outcome, access, self._resumed_at
            )
        except KineticError as error:
            self.log.warning("how %s ended is not on its page: %s", reference.job_id, error)
        raise AirflowTaskTimeout(self._named(context, f"{reference.job_id} was cancelled: {text}"))

    def _cancel(self, *, was_cleared: bool = False) -> None:
        """Cancel the job, also one that was created but not yet reported to this process.

        A result that is there already is kept for the next try, unless the task was cleared to run again.
        """
        from airflow_provider.job_of_task import mark_cleared
        from kinetic_core.jobs.cancel import cancel

        reference = self._job()
        if reference is not None:
            self._say_cancelling(reference.job_id)
            backend = self._backend()
            cancel(backend, reference)
            if was_cleared:
                mark_cleared(backend, reference)

    def _tell_cancelled(self, context: Context) -> None:
        """Record the end of the cancelled job; Airflow gives this worker little time, so it may fail."""
        from airflow_provider.records import KEY, pulled, push, record_of_cancelled

        reference = self._job()
        if reference is None:
            return
        try:
            record = record_of_cancelled(pulled(context["ti"], KEY), self._backend(), reference)
            if record is not None:
                push(context["ti"], KEY, record.to_dict())
        except Exception as error:  # noqa: BLE001  the page asks the cluster then
            self.log.warning("how %s ended is not recorded: %r", reference.job_id, error)

    def _job(self, recorded: str = "") -> JobReference | None:
        """Return the reference of the job, also when it was created but not yet reported to this process."""
        from airflow_provider.job_of_task import latest

        if self._reference is None and self._identity is not None:
            options = rendered_options(self._options())
            self._reference = latest(options, self._client(), self._identity, self._origin, recorded)
        return self._reference

    def _owns(self, identity: TaskIdentity, reference: JobReference) -> bool:
        """Return whether a try of the task can have started the job or batch."""
        return identity.owns(reference.job_id, reference.spec_digest)

    @property
    def _known_starter(self) -> TaskIdentity:
        """Return the try that has started the job of this leg."""
        starter = self._starter or self._identity
        assert starter is not None  # noqa: S101  every leg begins with it
        return starter

    @plainly
    def _after_broken_trigger(self, context: Context, told: Mapping[str, Any]) -> Any:
        """Continue after a failed trigger: the job may have ended; otherwise it gets another trigger.

        The trigger's arguments are lost. Its class may belong to another version of this provider; starting
        anew could then cancel the job, because its call would look different.
        """
        from airflow_provider.task_logs import LogTail, remote_log
        from kinetic_core.jobs.observe import observe

        self._identity, recorded = self._recorded(context)
        deadline = self._note_broken(context, told)
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
        from airflow_provider.records import KEY, JobRecord, pulled

        record = JobRecord.from_value(pulled(context["ti"], KEY))
        if record is not None:
            identity = TaskIdentity.of(context, record.run_began)
            if identity.owns(record.reference.job_id, record.reference.spec_digest):
                return identity, record.reference.job_id
        return TaskIdentity.of(context), ""

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
            **self._access.to_dict(),
            silent=silent,
            ending=self._ending(context).to_dict(),
            alert=self._alert(context),
        )
        self._defer_to(context, trigger, "execute_complete")

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
        starter, access = self._known_starter, self._access
        self.record = tell_end(
            context, starter, backend, reference, observation, outcome, access, self._resumed_at
        )
        if not outcome.succeeded:
            raise Failed(failure_of(outcome, self._name_of_instance(context)))
        value = answered(lambda: self._value(context, reference, outcome))
        if self.outlets:
            events = context["outlet_events"]
            answered(lambda: publish(backend.connections, reference, outcome.digest, self.outlets, events))
        answered(lambda: mark_spent(backend, reference, self._identity))
        if self._starter is None:  # else this task's retries find the job only by its Kubernetes Job
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
            team=self._known_starter.team,
        )

    def _show_rest(self, tail: LogTail, attempt: int) -> None:
        """Show the rest of the log, so that the evidence comes before the verdict."""
        for line in tail.rest(attempt, config().final_log_lines):
            self.log.info("%s", line)
