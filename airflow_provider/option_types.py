"""Keywords of the operator and of the decorator, for type checkers; imported by nothing at run time.

A type checker rejects an unknown keyword, so the keywords of every Airflow task are here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping
from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypedDict

from airflow.sdk import DAG, TaskGroup, XComArg

from airflow_provider.access import GoogleKeywords
from airflow_provider.waiting_alert import WaitingAlert
from kinetic_core.options import BatchTaskKeywords, Keywords

Callbacks: TypeAlias = Callable[..., Any] | Collection[Callable[..., Any]] | None


class AirflowKeywords(TypedDict, total=False):
    """Arguments of every Airflow task, of any supported version."""

    task_id: str
    owner: str
    email: str | Collection[str] | None
    email_on_retry: bool
    email_on_failure: bool
    retries: int | None
    retry_delay: timedelta | float
    retry_exponential_backoff: float
    max_retry_delay: timedelta | float | None
    retry_policy: object
    start_date: datetime | None
    end_date: datetime | None
    depends_on_past: bool
    ignore_first_depends_on_past: bool
    wait_for_past_depends_before_skipping: bool
    wait_for_downstream: bool
    dag: DAG | None
    params: MutableMapping[str, Any] | None
    default_args: dict[str, Any] | None
    priority_weight: int
    weight_rule: object
    queue: str
    pool: str | None
    pool_slots: int
    sla: timedelta | None
    execution_timeout: timedelta | None
    on_execute_callback: Callbacks
    on_failure_callback: Callbacks
    on_success_callback: Callbacks
    on_retry_callback: Callbacks
    on_skipped_callback: Callbacks
    pre_execute: Callable[..., Any] | None
    post_execute: Callable[..., Any] | None
    trigger_rule: str
    resources: Mapping[str, Any] | None
    run_as_user: str | None
    map_index_template: str | None
    max_active_tis_per_dag: int | None
    max_active_tis_per_dagrun: int | None
    executor: str | None
    executor_config: Mapping[str, Any] | None
    do_xcom_push: bool
    multiple_outputs: bool | None
    inlets: object
    outlets: object
    task_group: TaskGroup | None
    doc: str | None
    doc_md: str | None
    doc_json: str | None
    doc_yaml: str | None
    doc_rst: str | None
    task_display_name: str | None
    logger_name: str | None
    allow_nested_operators: bool
    render_template_as_native_obj: bool | None


class TaskKeywords(Keywords[str | XComArg | None], AirflowKeywords, total=False):
    """Options of a job, which may also be templates and outputs of other tasks, and those of a task."""

    job_retries: int | str | XComArg | None
    job_queue: str | XComArg | None


class BatchOperatorKeywords(BatchTaskKeywords[str | XComArg | None], TaskKeywords, total=False):
    """Options of a task that runs a batch."""


class BatchDecoratorKeywords(BatchOperatorKeywords, GoogleKeywords, total=False):
    """Keywords of `@task.kinetic_batch`."""

    conn_id: str | None
    deferrable: bool
    waiting_alert: WaitingAlert | None


class DecoratorKeywords(TaskKeywords, GoogleKeywords, total=False):
    """Keywords of `@task.kinetic`."""

    conn_id: str | None
    deferrable: bool
    waiting_alert: WaitingAlert | None
