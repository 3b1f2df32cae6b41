"""`KineticBatchOperator`: a task that runs a Python function over many inputs, as one batch."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Unpack
from urllib.parse import unquote

from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_provider.access import ImpersonationChain
from airflow_provider.airflow_sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
)
from airflow_provider.batch_inputs import mapped_parameter
from airflow_provider.batch_values import BatchValues, allow_in_xcom
from airflow_provider.config import default_deferrable
from airflow_provider.operators.base import Answer, plainly
from airflow_provider.operators.kinetic import KineticOperator
from airflow_provider.options import (
    BATCH_OPTIONS,
    GivenFields,
    check_batch_options,
    check_workers,
    is_template,
    rendered_batch_options,
    rendered_options,
    takes_batch_options,
)
from kinetic_core.data.data import Data
from kinetic_core.errors import InvalidRequest
from kinetic_core.option_checks import many_on_workers

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider.batch_of_task import BatchWatch, StartedBatch
    from airflow_provider.batch_record import Cause
    from airflow_provider.job_of_task import TaskIdentity
    from airflow_provider.lineage import Lineage
    from airflow_provider.option_types import BatchOperatorKeywords
    from airflow_provider.waiting_alert import WaitingAlert
    from kinetic_core.batches.definition import Plan
    from kinetic_core.job import JobReference
    from kinetic_core.options import RunOptions
    from kinetic_core.retry import Reminders

allow_in_xcom()

_WAIT_SECONDS = 1.0


class KineticBatchOperator(KineticOperator):
    """Operator that calls `python_callable` for each element of one of its arguments, as one batch.

    The parameter `over`, by default the function's first, gets a list, the output of another task, a
    generator or a function of the DAG that makes one, or the address of a file of JSON lines
    (`gs://bucket/inputs.jsonl`); all other arguments are the same in every call. All inputs are one task
    instance, one batch of at most `max_concurrent` jobs at once, and one deferral. An empty list skips the
    task.

    The task's value is a sequence of the inputs' values, which downstream tasks index, iterate or expand
    over; nothing of it is read before (see BatchValues). The task fails if more than `max_failures` inputs
    have no value. A retry, and a task that somebody clears, runs only inputs without a value, unless the call
    has changed or `rerun` is "all". `job_retries` are attempts of each input.

    With `warm`, `max_concurrent` workers run the inputs, each input in a process of its own.

    Takes the options of KineticOperator besides, but each input must be one pod: no slices of several hosts,
    no `lease` and no list of accelerators on a cluster.
    """

    template_fields: Sequence[str] = GivenFields((*KineticOperator.template_fields, *BATCH_OPTIONS))
    operator_extra_links = ()
    custom_operator_name = "@task.kinetic_batch"

    _batch: JobReference | None = None
    _size: int = 0
    _failed: int | None = None
    _run_seconds: float | None = None
    _causes: tuple[Cause, ...] = ()

    @takes_batch_options
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
        **options: Unpack[BatchOperatorKeywords],
    ) -> None:
        given: dict[str, Any] = {**options}
        for name in BATCH_OPTIONS:
            setattr(self, name, given.pop(name, None))
        if given.get("multiple_outputs"):
            raise InvalidRequest(
                "multiple_outputs=: a batch has one value for each input, and no names for them"
            )
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            conn_id=conn_id,
            gcp_conn_id=gcp_conn_id,
            impersonation_chain=impersonation_chain,
            deferrable=deferrable,
            waiting_alert=waiting_alert,
            **given,
        )

    def _check(self) -> None:
        super()._check()
        asked = self._batch_options()
        check_batch_options(asked)
        check_workers(self._options(), asked)
        over = asked["over"]
        if over is None or (isinstance(over, str) and not is_template(over)):
            mapped_parameter(self.python_callable, over)

    def _batch_options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in BATCH_OPTIONS}

    @property
    def failure_class(self) -> str:
        """Return the class of the commonest failure of inputs; "" if none has failed, or none is known."""
        return self._causes[0].reason if self._causes else ""

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Lineage:
        """Return the lineage of the task's end, also of one that fails, for OpenLineage's provider."""
        from airflow_provider.lineage import of_batch

        del task_instance
        lineage = self.get_openlineage_facets_on_start()
        if self._batch is None:
            return lineage
        return of_batch(
            lineage, self._client(), self._batch, self._size, self._failed, run_seconds=self._run_seconds
        )

    def _data(self) -> list[Any]:
        """Return everything in which there may be data that the jobs read: also a file of their inputs."""
        over = mapped_parameter(self.python_callable, self._batch_options()["over"])
        address = self._arguments(over).get(over)
        if not isinstance(address, str):
            return super()._data()
        return [*super()._data(), Data(unquote(address.removeprefix("file://")))]

    @plainly
    def execute_complete(
        self,
        context: Context,
        event: Mapping[str, Any],
        try_number: int | None = None,
        run_began: str | None = None,
        broken: int = 0,
    ) -> Any:
        """Continue after the batch's end, or after its time is up, which the trigger's `event` reports."""
        from airflow_provider.records import origin_of

        reference = self._resumed(context, event, try_number, run_began)
        if reference is None:
            return self._begin_anew(context)
        assert self._identity is not None  # noqa: S101  every leg begins with it
        self._batch, self._size, self._broken = reference, int(event["size"]), broken
        self._origin = origin_of(self._identity)
        deadline = event["deadline"]
        if event["status"] == "timeout" and not self._had_ended(context, deadline):
            self._has_said_cancelling = True
            self._end_at_deadline(context)
        return self._finish_batch(context, deadline)

    def _had_ended(self, context: Context, deadline: float | None) -> bool:
        """Return whether every input had ended by itself when the batch was cancelled at its deadline.

        A triggerer that was down until then has not seen that.
        """
        from kinetic_core._runner.wire import CANCELLED, DROPPED
        from kinetic_core.batches.outcomes import StoredBatch

        states = self._read(StoredBatch(self._backend(), self._known_batch).states, context, deadline)
        return len(states) == self._size and not {CANCELLED, DROPPED} & set(states.values())

    def _execute(
        self, context: Context, deadline: float | None, build: Mapping[str, str] | None = None
    ) -> Any:
        """Run one leg; see KineticOperator."""
        from airflow_provider.batch_record import tell
        from airflow_provider.job_of_task import TaskIdentity
        from airflow_provider.task_logs import show_build_again
        from kinetic_core.errors import ImageBuilding

        self._identity = TaskIdentity.of(context)
        try:
            started = self._start_batch(context, deadline)
        except ImageBuilding as building:
            return self._execute_with_image(context, building, deadline)
        reference = self._batch = started.reference
        self._size = started.size
        tell(context, self._identity, reference, started.size, self._access)
        verb = "adopted" if started.adopted else "started"
        self.log.info("%s %s: %d inputs on %s", verb, reference.job_id, started.size, reference.hardware)
        if self._may_defer:
            if not (started.adopted and self._is_over()):
                if build is not None:
                    show_build_again(build, self._client(), self.log.info)
                self._defer_for_batch(context, deadline)
        else:
            self._wait_for_batch(context, deadline)
        return self._finish_batch(context, deadline)

    def _start_batch(self, context: Context, deadline: float | None) -> StartedBatch:
        """Start or adopt the batch, and repeat that as the job of a single task is."""
        from airflow_provider.batch_inputs import elements
        from airflow_provider.batch_of_task import start_or_adopt_batch
        from airflow_provider.records import origin_of
        from airflow_provider.telemetry import span, steps
        from airflow_provider.xcom import Signatures, call_of

        assert self._identity is not None  # noqa: S101  every leg begins with it
        try:
            asked = rendered_batch_options(self._batch_options())
            options = rendered_options(self._options())
            self._check_workers(options, asked)
            client = self._client()
            over = mapped_parameter(self.python_callable, asked.get("over"))
            given = self._arguments(over)
            verify = Signatures().verified
            found = elements(given.pop(over), over, context, client, verify)
            call = call_of(self.python_callable, (), given, context, KNOWN_CONTEXT_KEYS - {over}, verify)
            self._origin = origin_of(self._identity)
        except InvalidRequest as error:
            raise AirflowFailException(self._named(context, error)) from error
        if not found:
            raise AirflowSkipException(f"{over} is empty: there is nothing to run")
        items = [{**(call.kwargs or {}), over: each} for each in found]
        plan = self._plan(asked, context)
        identity, origin = self._identity, self._origin

        def start() -> StartedBatch:
            with span("submit"), steps(self.log.info) as progress:
                return start_or_adopt_batch(
                    call,
                    items,
                    options,
                    client,
                    identity,
                    plan,
                    all_again=asked["rerun"] == "all",
                    progress=progress,
                    origin=origin,
                    announce=self._remember,
                )

        return self._submitted(context, start, deadline)

    def _check_workers(self, options: RunOptions, asked: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for rendered options that do not go with warm workers."""
        if options.warm is None:
            return
        given = {
            "budget": options.budget,
            "cancel_running_on_fail": asked["cancel_running_on_fail"],
            "hang_after": options.pod.hang_after,
            "reuse": options.reuse,
        }
        was_said = self._batch_options()["max_concurrent"] is not None
        most = asked["max_concurrent"] if was_said else None
        many_on_workers(given, most, "a batch", options.accelerator)

    def _plan(self, asked: Mapping[str, Any], context: Context) -> Plan:
        """Return the plan of the batch, which gets its id when it is started."""
        from airflow_provider.telemetry import trace_environment
        from kinetic_core.batches.definition import Plan

        stops_at_first = asked["fail_fast"] and asked["max_failures"] == 0
        return Plan(
            group_id="",
            is_new=False,
            input_mode="kwargs",
            max_concurrent=asked["max_concurrent"],
            fail_fast=stops_at_first,
            cancel_running=stops_at_first and asked["cancel_running_on_fail"],
            name=context["ti"].task_id,
            tags={},
            environment=trace_environment(),
        )

    def _arguments(self, over: str) -> dict[str, Any]:
        """Return the function's arguments by name. Raises InvalidRequest if they do not fit."""
        try:
            bound = inspect.signature(self.python_callable).bind_partial(*self.op_args, **self.op_kwargs)
        except TypeError as error:
            raise InvalidRequest(f"the arguments do not fit the function: {error}") from error
        given = dict(bound.arguments)
        for parameter in inspect.signature(self.python_callable).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                given |= given.pop(parameter.name, {})
            elif (
                parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY)
                and parameter.name in given
            ):
                raise InvalidRequest(f"{parameter.name}: a batch gives each argument by its name")
        if over not in given:
            raise InvalidRequest(f"{over} is not given: it says what the batch runs over")
        return given

    def _is_over(self) -> bool:
        """Return whether nothing of the batch lives any more; False while that is not known."""
        from airflow_provider.batch_of_task import is_over
        from kinetic_core.errors import KineticError

        try:
            return is_over(self._backend(), self._known_batch)
        except KineticError as error:
            self.log.info("%s; a trigger will look", error)
            return False

    def _wait_for_batch(self, context: Context, deadline: float | None) -> None:
        """Wait in this worker until the batch has ended or, cancelling it, until the deadline."""
        from airflow_provider.batch_of_task import BatchWatch
        from airflow_provider.waiting_alert import AlertClock
        from kinetic_core.retry import Reminders

        clock = AlertClock(self._alert(context), self._backend(), self._known_batch)
        watch = self._answered(
            lambda: BatchWatch.open(self._backend(), self._known_batch, self._limits()),
            context,
            None,
            deadline,
        )
        reminders = Reminders()
        try:
            while not self._is_seen_over(watch, reminders):
                self._leave_to_next_try(context)
                if deadline is not None and time.time() >= deadline:
                    self._end_at_deadline(context)
                self._look_at(watch.state, clock)
                time.sleep(_WAIT_SECONDS)
                self._obey(context)
        except AirflowTaskTimeout:
            self._end_at_deadline(context)
        finally:
            watch.close()

    def _is_seen_over(self, watch: BatchWatch, reminders: Reminders) -> bool:
        """Return whether every input has ended; a batch that cannot be stopped now is stopped later."""
        from kinetic_core.errors import CloudError, ClusterError, StoreError

        try:
            return watch.look(self.log.info)
        except (ClusterError, StoreError, CloudError) as error:
            if not error.is_passing:
                raise
            if reminders.are_due(type(error)):
                self.log.warning("cannot stop the batch now, trying again: %s", error)
            return False

    def _end_at_deadline(self, context: Context) -> NoReturn:
        """Cancel the batch, record how its inputs have ended, and raise AirflowTaskTimeout."""
        from airflow_provider.batch_record import TIMEOUT

        self._cancel_overdue()
        self._record_cancelled(context, TIMEOUT)
        raise AirflowTaskTimeout(f"{self._known_batch.job_id} was cancelled: {TIMEOUT}")

    def _tell_cancelled(self, context: Context) -> None:
        from airflow_provider.batch_record import MARKED

        if self._batch is not None:
            self._record_cancelled(context, MARKED)

    def _record_cancelled(self, context: Context, ended_by: str) -> None:
        """Record the end of the cancelled batch; Airflow may give this worker little time, so it may fail."""
        from airflow_provider.batch_record import KEY, record_of_cancelled
        from airflow_provider.records import pulled, push

        assert self._identity is not None  # noqa: S101  every leg begins with it
        ti, reference, number = context["ti"], self._known_batch, self._identity.try_number
        try:
            record = record_of_cancelled(pulled(ti, KEY), self._backend(), reference, number, ended_by)
            if record is not None:
                self._failed, self._causes = record.failed, record.causes
                self._run_seconds = record.run_seconds
                push(ti, KEY, record.to_dict())
        except Exception as error:  # noqa: BLE001  the batch is cancelled, whatever its record says
            self.log.warning("how %s ended is not recorded: %r", reference.job_id, error)

    def _limits(self) -> dict[str, Any]:
        asked = rendered_batch_options(self._batch_options())
        return {
            "max_failures": asked["max_failures"] if asked["fail_fast"] else None,
            "cancel_running": bool(asked["cancel_running_on_fail"]),
        }

    def _defer_for_batch(self, context: Context, deadline: float | None) -> NoReturn:
        from airflow_provider.triggers.batch import KineticBatchTrigger

        trigger = KineticBatchTrigger(
            reference=self._known_batch.to_dict(),
            size=self._size,
            origin="" if self._origin is None else self._origin.to_text(),
            limits=self._limits(),
            deferred_at=time.time(),
            deadline=deadline,
            **self._access.to_dict(),
            alert=self._alert(context),
        )
        self._defer_to(context, trigger, "execute_complete")

    def _finish_batch(self, context: Context, deadline: float | None) -> BatchValues:
        """Return the task's value, or raise its failure, from what the inputs have left in the store."""
        from airflow_provider.batch_of_task import drop_jobs, end_lanes
        from airflow_provider.batch_record import SAMPLE, causes, failure_lines, first_failure, tell
        from airflow_provider.xcom import Signatures
        from kinetic_core.batches.outcomes import SUCCEEDED, StoredBatch
        from kinetic_core.batches.snapshot import batch_times

        self._obey(context)
        reference, asked = self._known_batch, rendered_batch_options(self._batch_options())
        batch = StoredBatch(self._backend(), reference)
        states = self._read(batch.states, context, deadline)
        failed = [index for index in range(self._size) if states.get(index) != SUCCEEDED]
        self._failed = len(failed)
        assert self._identity is not None  # noqa: S101  every leg begins with it
        errors = self._read(lambda: batch.failures(failed[:SAMPLE]), context, deadline)
        self._causes = causes(failed, errors)
        times = self._read(
            lambda: batch_times(batch.backend.store, reference, self._size, time.time(), is_over=True),
            context,
            deadline,
        )
        self._run_seconds = times.run_seconds
        ended: dict[str, Any] = {"failed": failed, "errors": errors, "times": times}
        tell(context, self._identity, reference, self._size, self._access, **ended)
        text = f"{len(failed)} of {self._size} inputs of {reference.job_id} have no value"
        for line in failure_lines(failed, errors):
            self.log.error("%s", line)
        end_lanes(batch)
        most = asked["max_failures"]
        if len(failed) > most:
            raise AirflowException(
                self._named(context, f"{text} (max_failures={most}): {first_failure(failed, errors)}")
            )
        if failed:
            self.log.warning("%s, which max_failures=%d allows", text, most)
        else:
            self.log.info("all %d inputs of %s have a value", self._size, reference.job_id)
        signatures = Signatures(team=self._identity.team)
        signed = self._answered(
            lambda: BatchValues.of(reference, self._size, failed, self._access, signatures),
            context,
            None,
            deadline,
        )
        if not failed:
            drop_jobs(batch)
        return signed

    def _read(self, ask: Callable[[], Answer], context: Context, deadline: float | None) -> Answer:
        """Return what the batch has left. While nobody answers, a trigger waits, or else this worker."""
        from kinetic_core.errors import CloudError, ClusterError, StoreError

        try:
            return ask()
        except (ClusterError, StoreError, CloudError) as error:
            if not error.is_passing:
                raise
            if self._may_defer:
                self.log.warning("%s; deferring until there is an answer", error)
                self._defer_for_batch(context, deadline)
        return self._answered(ask, context, None, deadline)

    def _cancel(self, *, was_cleared: bool = False) -> None:
        """Cancel the batch, also one that was created but not yet reported to this process."""
        from airflow_provider.batch_of_task import cancel_batch, cancel_unless_superseded, living_batches
        from kinetic_core.backends.base import backend_name, open_backend

        del was_cleared  # what has a value keeps it
        if self._batch is not None:
            self._say_cancelling(self._batch.job_id)
            cancel_unless_superseded(self._backend(), self._batch, self._origin)
        elif self._origin is not None:
            options = rendered_options(self._options())
            connections = self._client().with_settings(options.settings(self._client().settings))
            backend = open_backend(backend_name(options.backend, 1, connections), connections)
            for group_id in sorted(living_batches(backend, connections.settings.namespace, self._origin)):
                self.log.info("Cancelling %s", group_id)
                cancel_batch(backend, group_id)

    @plainly
    def _after_broken_trigger(self, context: Context, told: Mapping[str, Any]) -> Any:
        """Continue after a failed trigger: the batch may have ended; otherwise it gets another trigger."""
        return self._execute(context, self._note_broken(context, told))

    def _owns(self, identity: TaskIdentity, reference: JobReference) -> bool:
        from airflow_provider.batch_of_task import may_own

        return may_own(identity, reference.job_id, reference.spec_digest)

    @property
    def job(self) -> JobReference | None:
        """Return the reference of the batch, as far as this process knows one."""
        return self._batch

    @property
    def _known_batch(self) -> JobReference:
        assert self._batch is not None  # noqa: S101  set before anything waits for the batch
        return self._batch

    @property
    def _known_job(self) -> JobReference:
        return self._known_batch
