"""`KineticOperator`: a task that runs a Python function as a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout
from airflow.sdk import BaseOperator
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_provider.identity import TaskIdentity
from airflow_provider.links import LogsLink, OutputsLink, WorkloadLink
from airflow_provider.options import OPTION_NAMES, check_options, run_options

PATIENCE = 2.0
"""Seconds a worker stays with a new job before it defers: a shorter job needs no second leg."""


class KineticOperator(BaseOperator):
    """Runs `python_callable(*op_args, **op_kwargs)` as a job and returns its value.

    The function, its project and its arguments are packaged; the options are those of
    `kinetic_core.run`, `job_retries` being attempts inside the job besides Airflow's own `retries`.
    `conn_id` names a connection of type `kinetic`, which says where jobs run, and as whom, instead of the
    environment. With `deferrable` (the default) no worker slot is held while the job runs.
    `execution_timeout` bounds the task from its first start, waiting included.

    A plain value becomes the task's XCom. Anything else becomes a reference, which another kinetic task
    takes as an argument and gets as the value.
    """

    template_fields: Sequence[str] = (
        "op_args",
        "op_kwargs",
        "accelerator",
        "backend",
        "memory",
        "container_image",
        "output_dir",
        "project",
        "zone",
        "cluster",
        "namespace",
        "conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"op_args": "py", "op_kwargs": "py"}
    shallow_copy_attrs: Sequence[str] = ("python_callable", "op_args", "op_kwargs")
    operator_extra_links = (WorkloadLink(), LogsLink(), OutputsLink())
    ui_color = "#e8f0fe"
    custom_operator_name = "@task.kinetic"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        accelerator: Any = None,
        backend: str | None = None,
        spot: bool | None = None,
        memory: str | int | None = None,
        timeout: float | None = None,
        job_retries: int | None = None,
        container_image: str | None = None,
        base_image_repo: str | None = None,
        requirements: Any = None,
        capture_env_vars: Sequence[str] | None = None,
        volumes: Mapping[str, Any] | None = None,
        output_dir: str | None = None,
        project: str | None = None,
        zone: str | None = None,
        cluster: str | None = None,
        namespace: str | None = None,
        infrastructure_retries: int | None = None,
        cpu: float | None = None,
        disk: str | int | None = None,
        reservation: str | None = None,
        priority_class: str | None = None,
        job_queue: str | None = None,
        service_account: str | None = None,
        node_selector: Mapping[str, str] | None = None,
        tolerations: Sequence[Mapping[str, Any]] | None = None,
        labels: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        run_as_root: bool | None = None,
        cache_volume: str | None = None,
        lease: float | None = None,
        security_context: Mapping[str, Any] | None = None,
        conn_id: str | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.python_callable = python_callable
        self.op_args = op_args or ()
        self.op_kwargs = op_kwargs or {}
        self.accelerator = accelerator
        self.backend = backend
        self.spot = spot
        self.memory = memory
        self.timeout = timeout
        self.job_retries = job_retries
        self.container_image = container_image
        self.base_image_repo = base_image_repo
        self.requirements = requirements
        self.capture_env_vars = capture_env_vars
        self.volumes = volumes
        self.output_dir = output_dir
        self.project = project
        self.zone = zone
        self.cluster = cluster
        self.namespace = namespace
        self.infrastructure_retries = infrastructure_retries
        self.cpu = cpu
        self.disk = disk
        self.reservation = reservation
        self.priority_class = priority_class
        self.job_queue = job_queue
        self.service_account = service_account
        self.node_selector = node_selector
        self.tolerations = tolerations
        self.labels = labels
        self.secrets = secrets
        self.run_as_root = run_as_root
        self.cache_volume = cache_volume
        self.lease = lease
        self.security_context = security_context
        self.conn_id = conn_id
        self.deferrable = deferrable
        self._check()

    def execute(self, context: Any) -> Any:
        """Start the job, or find the one an earlier leg or try started; wait for it or defer."""
        with self._connected():
            return self._execute(context)

    def _execute(self, context: Any, deadline: float | None = None) -> Any:
        """`deadline`, in Unix seconds, is that of an earlier leg."""
        from airflow_provider.arguments import call_of
        from airflow_provider.task_logs import LogTail
        from airflow_provider.telling import tell_start, traced_start
        from airflow_provider.waiting import describe, wait_with_log
        from kinetic_core.errors import ImageBuilding, InvalidRequest

        self._identity = TaskIdentity.of(context)
        if deadline is None and self.execution_timeout is not None:
            deadline = time.time() + self.execution_timeout.total_seconds()
        patience = PATIENCE if self.deferrable else None
        try:
            options = run_options(self._options())
            call = call_of(self.python_callable, self.op_args, self.op_kwargs, context, KNOWN_CONTEXT_KEYS)
            started = traced_start(call, options, self._identity, self.log.info, patience)
        except InvalidRequest as error:
            raise AirflowFailException(str(error)) from error
        except ImageBuilding as building:
            self.log.info("%s", building)
            self._defer_for_image(building.build, deadline)
        reference, observation = started.reference, started.observation
        self._reference = reference
        tell_start(context, self._identity, started)
        verb = "adopted" if started.adopted else "started"
        self.log.info("%s a job on %s: %s", verb, reference.accelerator, describe(reference, observation))
        tail = LogTail(reference)
        if not observation.is_terminal:
            ended = wait_with_log(reference, tail, self.log.info, observation, patience)
            if ended is None:
                self._defer(reference, tail.cursor.to_list(), deadline)
            observation = ended
        return self._finish(context, reference, tail, observation)

    def execute_after_build(self, context: Any, event: Mapping[str, Any]) -> Any:
        """The leg after that of an image: the trigger says what became of it."""
        from kinetic_core.errors import ImageError

        if event["status"] == "built":
            return self._execute(context, event["deadline"])
        if event["status"] == "timeout":
            raise AirflowTaskTimeout(f"execution_timeout has passed: {event['message']}")
        raise ImageError(event["message"])

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> Any:
        """The last leg: the trigger says that the job has ended, or that its time is up."""
        from airflow_provider.task_logs import Cursor, LogTail
        from kinetic_core.lifecycle.observing import observe
        from kinetic_core.model.job import JobReference

        reference = JobReference.from_dict(event["reference"])
        self._reference = reference
        observation = observe(reference)
        tail = LogTail(reference, Cursor.from_list(event["cursor"]))
        if observation.is_terminal:
            return self._finish(context, reference, tail, observation)
        if event["status"] == "timeout":
            self.on_kill()
            self._show_rest(tail, observation.attempt)
            raise AirflowTaskTimeout(f"{reference.job_id} was cancelled: execution_timeout has passed")
        return self._defer(reference, event["cursor"], event["deadline"])

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """Airflow's entry to every leg but the first. If the trigger broke, the job is not left to itself."""
        with self._connected():
            return self._resume(next_method, next_kwargs, context)

    def _resume(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        if next_method != "__fail__":
            return super().resume_execution(next_method, next_kwargs, context)
        from airflow_provider.task_logs import LogTail
        from kinetic_core.lifecycle.observing import observe

        self._identity = TaskIdentity.of(context)
        reference = self._job()
        if reference is not None:
            observation = observe(reference)
            if observation.is_terminal:
                self.log.warning("the trigger failed, but %s has ended", reference.job_id)
                return self._finish(context, reference, LogTail(reference), observation)
            self.log.error("cancelling %s: its trigger failed", reference.job_id)
            self.on_kill()
        return super().resume_execution(next_method, next_kwargs, context)

    def on_kill(self) -> None:
        """The task was killed while a worker has it: the job goes too."""
        from kinetic_core.lifecycle.ending import cancel

        with self._connected():
            reference = self._job()
            if reference is not None and not self._cancelled:
                self.log.info("cancelling %s", reference.job_id)
                cancel(reference)
                self._cancelled = True

    @property
    def job(self) -> Any:
        """The reference of the task's job, as far as this process knows of one; for links."""
        return self._reference

    _identity: TaskIdentity | None = None
    _reference: Any = None
    _cancelled: bool = False
    _settings: Any = None

    def _connected(self) -> AbstractContextManager[None]:
        """Inside, settings are those of the task's connection. It is read once: no kill waits for it."""
        if not self.conn_id:
            return nullcontext()
        from airflow_provider.hooks.kinetic import KineticHook
        from kinetic_core.configuration import using

        if self._settings is None:
            self._settings = KineticHook(self.conn_id).get_conn()
        return using(self._settings)

    def _check(self) -> None:
        check_options(self._options())

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in OPTION_NAMES}

    def _job(self) -> Any:
        """The reference of the job, also when it was created but not yet reported to this process."""
        from airflow_provider.adoption import latest

        if self._reference is None and self._identity is not None:
            self._reference = latest(run_options(self._options()), self._identity)
        return self._reference

    def _defer(self, reference: Any, cursor: list[int], deadline: float | None) -> NoReturn:
        from airflow_provider.triggers.job import KineticJobTrigger

        trigger = KineticJobTrigger(
            reference=reference.to_dict(),
            cursor=cursor,
            deferred_at=time.time(),
            deadline=deadline,
            conn_id=self.conn_id,
        )
        self.defer(trigger=trigger, method_name="execute_complete")

    def _defer_for_image(self, build: dict[str, str], deadline: float | None) -> NoReturn:
        from airflow_provider.triggers.build import KineticBuildTrigger

        trigger = KineticBuildTrigger(
            build=build, deferred_at=time.time(), deadline=deadline, conn_id=self.conn_id
        )
        self.defer(trigger=trigger, method_name="execute_after_build")

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
        tell_end(context, reference, observation, outcome)
        mapped_over = context["ti"].map_index in (None, -1) and any(
            True for _ in self.iter_mapped_dependants()
        )
        value = value_for_xcom(
            reference, outcome, multiple_outputs=bool(self.multiple_outputs), mapped_over=mapped_over
        )
        if self.outlets:
            publish(reference, outcome.digest, self.outlets, context["outlet_events"])
        drop_payloads([reference])
        return value

    def _show_rest(self, tail: Any, attempt: int) -> None:
        """The evidence comes before the verdict."""
        for line in tail.rest(attempt):
            self.log.info("%s", line)
