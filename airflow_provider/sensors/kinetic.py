"""`KineticJobSensor`: waits for a job that somebody else has started."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider.access import ACCESS, Access, ImpersonationChain
from airflow_provider.airflow_sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
)
from airflow_provider.config import default_deferrable

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context


class KineticJobSensor(BaseSensorOperator):
    """Sensor that succeeds when a job has succeeded, and fails when the job has ended in any other way.

    The job was started elsewhere: by a script, the command, another DAG or `KineticHook`. The sensor never
    cancels it. `conn_id` names the connection that finds the job; without it, the environment says where jobs
    are. `gcp_conn_id` and `impersonation_chain` are those of KineticOperator. With `deferrable` no worker
    slot is held, and a change is seen at once instead of every `poke_interval` seconds; the default is True,
    or what `AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE` says.

    `timeout` and `soft_fail` are those of every sensor. A failed job never succeeds later, so the task is not
    retried for it. Read the value with `KineticHook.result`.
    """

    template_fields: Sequence[str] = ("job_id", *ACCESS)

    def __init__(
        self,
        *,
        job_id: str,
        conn_id: str | None = None,
        gcp_conn_id: str | None = None,
        impersonation_chain: ImpersonationChain = None,
        deferrable: bool = default_deferrable(),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job_id = job_id
        self.conn_id = conn_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Wait for the job: in a trigger, or as every sensor does. Raises AirflowFailException."""
        if not self.deferrable:
            return super().execute(context)
        deadline = time.time() + self.timeout
        try:
            if self.poke(context):
                return None
        except AirflowFailException as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise
        return self._wait(deadline)

    def poke(self, context: Context) -> bool:
        """Return whether the job has succeeded. Raises AirflowFailException if it has ended otherwise."""
        from airflow_provider.hooks.kinetic import KineticHook
        from kinetic_core.job import JobStatus

        del context
        found = KineticHook(**self._access.to_dict()).observe(self.job_id)
        reason = found.message if found.failure is None else found.failure.message
        if found.status is JobStatus.SUCCEEDED:
            return True
        if found.is_terminal:
            raise AirflowFailException(f"{self.job_id} is {found.status.value}: {reason}")
        self.log.info("%s", f"{self.job_id} is {found.status.value}: {reason}".rstrip(": "))
        return False

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> None:
        """Say how the job has ended, after its trigger. Raises AirflowFailException, AirflowSensorTimeout."""
        if not self.poke(context):
            if event["status"] == "timeout":
                raise AirflowSensorTimeout(f"{self.job_id} has not ended within {self.timeout:g} s")
            self._wait(event["deadline"])

    @property
    def _access(self) -> Access:
        return Access.of(self.conn_id, self.gcp_conn_id, self.impersonation_chain)

    def _wait(self, deadline: float) -> NoReturn:
        from airflow_provider.triggers.job_end import KineticJobEndTrigger

        trigger = KineticJobEndTrigger(self.job_id, time.time(), deadline, **self._access.to_dict())
        self.defer(trigger=trigger, method_name="execute_complete")
