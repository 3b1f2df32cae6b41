"""The legs of a task that runs a job: what a worker does before and after the triggerer waits."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout
from airflow.sdk import BaseOperator
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_provider.identity import TaskIdentity
from airflow_provider.options import rendered_options

PATIENCE = 2.0
"""Seconds a worker stays with a new job, or an image, before it defers: less needs no second leg."""


class _KilledWhileStarting(BaseException):  # so that nobody on the way takes it for an error of theirs
    """Airflow has killed the task while its worker was starting the job."""


class JobTask(BaseOperator):
    """Starts or adopts the job of a task, defers until it has ended, and makes its outcome the task's.

    A task that is cleared in a later leg is resumed by Airflow with the event of the try before. To clear
    means to run again, so every leg is told the try that deferred, and puts another one's event aside. With
    SQLite, which uses the ids of deleted triggers again, it may even get the event of another task.
    """

    python_callable: Callable[..., Any]
    op_args: Collection[Any]
    op_kwargs: Mapping[str, Any]
    conn_id: str | None
    deferrable: bool

    _identity: TaskIdentity | None = None
    _reference: Any = None
    _cancelled: bool = False
    _is_starting: bool = False
    _settings: Any = None

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """The run options, by name."""

    @property
    def job(self) -> Any:
        """The reference of the task's job, as far as this process knows of one; for links."""
        return self._reference

    def execute(self, context: Any) -> Any:
        """Start the job, or find the one an earlier leg or try started; wait for it or defer."""
        limit = self.execution_timeout
        deadline = None if limit is None else time.time() + limit.total_seconds()
        with self._connected():
            return self._execute(context, deadline)

    def execute_after_build(self, context: Any, event: Mapping[str, Any], try_number: int) -> Any:
        """The leg after that of an image: the trigger says what became of it."""
        from kinetic_core.errors import ImageError

        if try_number != context["ti"].try_number:
            return self._begin_anew(context)
        if event["status"] == "built":
            return self._execute(context, event["deadline"], event.get("build"))
        if event["status"] == "timeout":
            raise AirflowTaskTimeout(f"execution_timeout has passed: {event['message']}")
        raise ImageError(event["message"])

    def execute_complete(self, context: Any, event: Mapping[str, Any], try_number: int | None = None) -> Any:
        """The last leg: the trigger says that the job has ended, or that its time is up."""
        from airflow_provider.remote_logs import remote_log
        from airflow_provider.task_logs import Cursor, LogTail
        from kinetic_core.errors import ClusterError
        from kinetic_core.lifecycle.observing import observe
        from kinetic_core.model.job import JobReference

        if try_number not in (None, context["ti"].try_number):
            return self._begin_anew(context)
        self._identity = TaskIdentity.of(context)
        reference = JobReference.from_dict(event["reference"])
        if not self._identity.owns(reference.job_id, reference.spec_digest):
            self.log.warning("Airflow gave this task the event of another one's trigger")
            return self._begin_anew(context)
        self._reference = reference
        tail = LogTail(reference, Cursor.from_list(event["cursor"]), remote=remote_log(context))
        try:
            observation = observe(reference)
            if observation.is_terminal:
                return self._finish(context, reference, tail, observation)
        except ClusterError as error:
            if not error.is_passing:
                raise
            self.log.warning("%s: deferred until the cluster answers", error)
            self._defer_again(event, tail)
        if event["status"] == "timeout":
            self.on_kill()
            self._show_rest(tail, observation.attempt)
            text = f"{reference.job_id} was cancelled: execution_timeout has passed"
            raise AirflowTaskTimeout(self._named(context, text))
        return self._defer_again(event, tail)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """Airflow's entry to every leg but the first. If the trigger broke, the job is not left to itself."""
        with self._connected():
            if next_method == "__fail__" and (ended := self._after_broken_trigger(context)) is not None:
                return self._finish(context, *ended)
            return super().resume_execution(next_method, next_kwargs, context)

    def on_kill(self) -> None:
        """The task was killed while a worker has it: the job goes too.

        Airflow calls this from a signal's handler and lets the worker go on for seconds. One that is about
        to create a job is stopped there, or it would create what nobody looks for.
        """
        from kinetic_core.lifecycle.ending import cancel

        if self._is_starting:
            raise _KilledWhileStarting
        with self._connected():
            reference = self._job()
            if reference is not None and not self._cancelled:
                self.log.info("cancelling %s", reference.job_id)
                cancel(reference)
                self._cancelled = True

    def _begin_anew(self, context: Any) -> Any:
        self.log.info("what this leg was told is not of this try: beginning anew")
        return self.execute(context)

    def _execute(self, context: Any, deadline: float | None, build: Mapping[str, str] | None = None) -> Any:
        """`deadline` is in Unix seconds, None for never. `build`: that of the image, if it was waited for."""
        from airflow_provider.remote_logs import remote_log
        from airflow_provider.task_logs import LogTail
        from airflow_provider.telling import tell_start
        from airflow_provider.used_places import remember
        from airflow_provider.waiting import describe, show_build_again, wait_with_log
        from kinetic_core.errors import ImageBuilding

        self._identity = TaskIdentity.of(context)
        patience = PATIENCE if self.deferrable else None
        remote = remote_log(context)
        try:
            started = self._start(context, patience, remote)
        except ImageBuilding as building:
            self.log.info("%s", building)
            self._defer_for_image(building.build, deadline)
        reference, observation = started.reference, started.observation
        self._reference = reference
        tell_start(context, self._identity, started, self.conn_id)
        remember(reference, self.conn_id)
        verb = "adopted" if started.adopted else "started"
        self.log.info("%s a job on %s: %s", verb, reference.hardware, describe(reference, observation))
        silent = remote is not None and reference.backend != "local" and not started.adopted
        tail = LogTail(reference, remote=remote, silent=silent)
        if not observation.is_terminal:
            ended = wait_with_log(reference, tail, self.log.info, observation, patience)
            if ended is None:
                if build is not None:
                    show_build_again(build, self.log.info)
                self._defer(reference, tail.cursor.to_list(), deadline, silent=silent)
            observation = ended
        return self._finish(context, reference, tail, observation)

    def _start(self, context: Any, build_patience: float | None, remote: Any) -> Any:
        """The job of this leg, and how it is."""
        from airflow_provider.arguments import call_of
        from airflow_provider.telling import traced_start
        from kinetic_core.errors import InvalidRequest

        assert self._identity is not None  # noqa: S101  every leg begins with it
        try:
            self._is_starting = True
            options = rendered_options(self._options())
            call = call_of(self.python_callable, self.op_args, self.op_kwargs, context, KNOWN_CONTEXT_KEYS)
            return traced_start(call, options, self._identity, self.log.info, build_patience, remote)
        except InvalidRequest as error:
            raise AirflowFailException(self._named(context, error)) from error
        except _KilledWhileStarting as killed:
            self._is_starting = False
            self.on_kill()
            raise AirflowFailException("the task was killed while its job was being started") from killed
        finally:
            self._is_starting = False

    def _connected(self) -> AbstractContextManager[None]:
        """Inside, settings are those of the task's connection. It is read once: no kill waits for it."""
        if not self.conn_id:
            return nullcontext()
        from airflow_provider.hooks.kinetic import KineticHook
        from kinetic_core.configuration import using

        if self._settings is None:
            self._settings = KineticHook(self.conn_id).get_conn()
        return using(self._settings)

    def _job(self) -> Any:
        """The reference of the job, also when it was created but not yet reported to this process."""
        from airflow_provider.adoption import latest

        if self._reference is None and self._identity is not None:
            self._reference = latest(rendered_options(self._options()), self._identity)
        return self._reference

    def _after_broken_trigger(self, context: Any) -> tuple[Any, Any, Any] | None:
        """What `_finish` takes of a job that has ended all the same; any other is cancelled."""
        from airflow_provider.remote_logs import remote_log
        from airflow_provider.task_logs import LogTail
        from kinetic_core.lifecycle.observing import observe

        self._identity = TaskIdentity.of(context)
        reference = self._job()
        if reference is None:
            return None
        observation = observe(reference)
        if observation.is_terminal:
            self.log.warning("the trigger failed, but %s has ended", reference.job_id)
            return reference, LogTail(reference, remote=remote_log(context)), observation
        self.log.error("cancelling %s: its trigger failed", reference.job_id)
        self.on_kill()
        return None

    def _defer(self, reference: Any, cursor: list[int], deadline: float | None, *, silent: bool) -> NoReturn:
        from airflow_provider.triggers.job import KineticJobTrigger

        trigger = KineticJobTrigger(
            reference=reference.to_dict(),
            cursor=cursor,
            deferred_at=time.time(),
            deadline=deadline,
            conn_id=self.conn_id,
            silent=silent,
        )
        self._defer_to(trigger, "execute_complete")

    def _defer_again(self, event: Mapping[str, Any], tail: Any) -> NoReturn:
        cursor, silent = tail.cursor.to_list(), event.get("silent", False)
        self._defer(self._reference, cursor, event["deadline"], silent=silent)

    def _defer_for_image(self, build: dict[str, str], deadline: float | None) -> NoReturn:
        from airflow_provider.triggers.build import KineticBuildTrigger

        trigger = KineticBuildTrigger(
            build=build, deferred_at=time.time(), deadline=deadline, conn_id=self.conn_id
        )
        self._defer_to(trigger, "execute_after_build")

    def _defer_to(self, trigger: Any, leg: str) -> NoReturn:
        assert self._identity is not None  # noqa: S101  every leg begins with it
        self.defer(trigger=trigger, method_name=leg, kwargs={"try_number": self._identity.try_number})

    def _finish(self, context: Any, reference: Any, tail: Any, observation: Any) -> Any:
        from airflow_provider.assets import publish
        from airflow_provider.results import value_for_xcom
        from airflow_provider.telling import tell_end
        from airflow_provider.waiting import describe
        from kinetic_core.lifecycle.collecting import collect
        from kinetic_core.lifecycle.ending import drop_payloads

        self._show_rest(tail, observation.attempt)
        self.log.info("%s", describe(reference, observation))
        outcome = collect(reference, allow_pickle=False)
        tell_end(context, reference, observation, outcome, self.conn_id)
        mapped_over = context["ti"].map_index in (None, -1) and any(
            True for _ in self.iter_mapped_dependants()
        )
        value = value_for_xcom(
            reference,
            outcome,
            multiple_outputs=bool(self.multiple_outputs),
            mapped_over=mapped_over,
            name=self._name_of_instance(context),
        )
        if self.outlets:
            publish(reference, outcome.digest, self.outlets, context["outlet_events"])
        drop_payloads([reference])
        return value

    def _name_of_instance(self, context: Any) -> str:
        """Of a mapped task; "" for others."""
        from airflow.providers.common.compat.sdk import redact

        from airflow_provider.mapped import instance_name

        return instance_name(context["ti"], self.python_callable, self.op_args, self.op_kwargs, redact)

    def _named(self, context: Any, text: object) -> str:
        from airflow_provider.mapped import named

        return named(self._name_of_instance(context), text)

    def _show_rest(self, tail: Any, attempt: int) -> None:
        """The evidence comes before the verdict."""
        for line in tail.rest(attempt):
            self.log.info("%s", line)
