"""`KineticOperator`: a task that runs a Python function as a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout
from airflow.sdk import BaseOperator
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_provider.identity import TaskIdentity
from airflow_provider.links import LogsLink, OutputsLink, WorkloadLink
from airflow_provider.options import OPTION_NAMES, check_options, run_options

PATIENCE = 2.0
"""Seconds a worker stays with a new job before it defers: a shorter job needs no second leg."""


class _KilledWhileStarting(BaseException):  # so that nobody on the way takes it for an error of theirs
    """Airflow has killed the task while its worker was starting the job."""


class KineticOperator(BaseOperator):
    """Runs `python_callable(*op_args, **op_kwargs)` as a job and returns its value.

    The function, its project and its arguments are packaged; the options are those of
    `kinetic_core.run`, `job_retries` being attempts inside the job besides Airflow's own `retries`.
    With `deferrable` (the default) no worker slot is held while the job runs. `execution_timeout` bounds
    the task from its first start, waiting included.

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
        self.deferrable = deferrable
        self._check()

    def execute(self, context: Any) -> Any:
        """Start the job, or find the one an earlier leg or try started; wait for it or defer."""
        from airflow_provider.task_logs import LogTail
        from airflow_provider.waiting import describe, wait_with_log

        self._identity = TaskIdentity.of(context)
        began = time.time()
        started = self._start(context)
        reference, observation = started.reference, started.observation
        self._reference = reference
        verb = "adopted" if started.adopted else "started"
        self.log.info("%s a job on %s: %s", verb, reference.accelerator, describe(reference, observation))
        tail = LogTail(reference)
        if not observation.is_terminal:
            patience = PATIENCE if self.deferrable else None
            ended = wait_with_log(reference, tail, self.log.info, observation, patience)
            if ended is None:
                limit = self.execution_timeout
                deadline = None if limit is None else began + limit.total_seconds()
                self._defer(reference, tail.cursor.to_list(), deadline)
            observation = ended
        return self._finish(context, reference, tail, observation)

    def execute_complete(self, context: Any, event: Mapping[str, Any], try_number: int | None = None) -> Any:
        """The second leg: the trigger says that the job has ended, or that its time is up.

        A task that is cleared in its second leg is resumed by Airflow with the event of the try before,
        `try_number`. To clear means to run again, so the event is put aside.
        """
        from airflow_provider.task_logs import Cursor, LogTail
        from kinetic_core.lifecycle.observing import observe
        from kinetic_core.model.job import JobReference

        if try_number not in (None, context["ti"].try_number):
            self.log.info("this is another try than the one that deferred: beginning anew")
            return self.execute(context)
        self._identity = TaskIdentity.of(context)
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
        """Airflow's entry to the second leg. If the trigger broke, the job is not left to itself."""
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
        """The task was killed while a worker has it: the job goes too.

        Airflow calls this from a signal's handler and lets the worker go on for seconds. One that is about
        to create a job is stopped there, or it would create what nobody looks for.
        """
        from kinetic_core.lifecycle.ending import cancel

        if self._is_starting:
            raise _KilledWhileStarting
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
    _is_starting: bool = False

    def _check(self) -> None:
        check_options(self._options())

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in OPTION_NAMES}

    def _start(self, context: Any) -> Any:
        """The job of this leg, and how it is."""
        from airflow_provider.adoption import start_or_adopt
        from airflow_provider.arguments import call_of
        from kinetic_core.errors import InvalidRequest

        assert self._identity is not None  # noqa: S101  set by `execute`
        try:
            self._is_starting = True
            options = run_options(self._options())
            call = call_of(self.python_callable, self.op_args, self.op_kwargs, context, KNOWN_CONTEXT_KEYS)
            return start_or_adopt(call, options, self._identity)
        except InvalidRequest as error:
            raise AirflowFailException(str(error)) from error
        except _KilledWhileStarting as killed:
            self._is_starting = False
            self.on_kill()
            raise AirflowFailException("the task was killed while its job was being started") from killed
        finally:
            self._is_starting = False

    def _job(self) -> Any:
        """The reference of the job, also when it was created but not yet reported to this process."""
        from airflow_provider.adoption import latest

        if self._reference is None and self._identity is not None:
            self._reference = latest(run_options(self._options()), self._identity)
        return self._reference

    def _defer(self, reference: Any, cursor: list[int], deadline: float | None) -> NoReturn:
        from airflow_provider.triggers.job import KineticJobTrigger

        trigger = KineticJobTrigger(
            reference=reference.to_dict(), cursor=cursor, deferred_at=time.time(), deadline=deadline
        )
        assert self._identity is not None  # noqa: S101  both legs begin with it
        kwargs = {"try_number": self._identity.try_number}
        self.defer(trigger=trigger, method_name="execute_complete", kwargs=kwargs)

    def _finish(self, context: Any, reference: Any, tail: Any, observation: Any) -> Any:
        from airflow_provider.results import value_for_xcom
        from airflow_provider.waiting import describe
        from kinetic_core.lifecycle.ending import drop_payloads

        self._show_rest(tail, observation.attempt)
        self.log.info("%s", describe(reference, observation))
        mapped_over = context["ti"].map_index in (None, -1) and any(
            True for _ in self.iter_mapped_dependants()
        )
        value = value_for_xcom(
            reference, multiple_outputs=bool(self.multiple_outputs), mapped_over=mapped_over
        )
        drop_payloads([reference])
        return value

    def _show_rest(self, tail: Any, attempt: int) -> None:
        """The evidence comes before the verdict."""
        for line in tail.rest(attempt):
            self.log.info("%s", line)
