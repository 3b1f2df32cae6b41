"""`@task.kinetic`, and `kinetic`, the same decorator to import, with types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast, overload

from airflow.sdk.bases.decorator import DecoratedOperator, Task, TaskDecorator, task_decorator_factory

from airflow_provider.operators.kinetic import KineticOperator
from airflow_provider.options import OPTION_NAMES, check_options, refuse_debugging
from kinetic_core.packaging.callables import check_callable

P = ParamSpec("P")
R = TypeVar("R")


class KineticDecoratedOperator(DecoratedOperator, KineticOperator):
    """What `@task.kinetic` makes of a call of the function."""

    template_fields: Sequence[str] = KineticOperator.template_fields
    template_fields_renderers = KineticOperator.template_fields_renderers
    shallow_copy_attrs: Sequence[str] = KineticOperator.shallow_copy_attrs
    custom_operator_name = "@task.kinetic"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any],
        op_kwargs: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            kwargs_to_upstream={
                "python_callable": python_callable,
                "op_args": op_args,
                "op_kwargs": op_kwargs,
            },
            **kwargs,
        )


def kinetic_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> TaskDecorator:
    """Run a function as a job when the task runs; what `@task.kinetic` calls.

    Takes the options of KineticOperator and of every Airflow task. Raises InvalidRequest at once, before
    any DAG runs, for options or functions that can never become a job.
    """
    refuse_debugging(kwargs)
    check_options({name: kwargs[name] for name in OPTION_NAMES if kwargs.get(name) is not None})

    def decorate(function: Callable[..., Any]) -> TaskDecorator:
        check_callable(function)
        return task_decorator_factory(
            python_callable=function,
            multiple_outputs=multiple_outputs,
            decorated_operator_class=KineticDecoratedOperator,
            **kwargs,
        )

    return cast("TaskDecorator", decorate) if python_callable is None else decorate(python_callable)


@overload
def kinetic(python_callable: Callable[P, R], /) -> Task[P, R]: ...


@overload
def kinetic(
    *,
    accelerator: str | Sequence[str] = ...,
    backend: str | None = ...,
    spot: bool = ...,
    memory: str | int | None = ...,
    timeout: float | None = ...,
    capacity_timeout: float | None = ...,
    budget: float | None = ...,
    job_retries: int = ...,
    container_image: str | None = ...,
    base_image_repo: str | None = ...,
    capture_env_vars: Sequence[str] | None = ...,
    volumes: Mapping[str, Any] | None = ...,
    output_dir: str | None = ...,
    project: str | None = ...,
    zone: str | None = ...,
    cluster: str | None = ...,
    namespace: str | None = ...,
    requirements: str | Path | Sequence[str] | None = ...,
    infrastructure_retries: int = ...,
    cpu: float | None = ...,
    disk: str | int | None = ...,
    reservation: str | None = ...,
    flex_start: bool = ...,
    priority_class: str | None = ...,
    job_queue: str | None = ...,
    service_account: str | None = ...,
    node_selector: Mapping[str, str] | None = ...,
    tolerations: Sequence[Mapping[str, Any]] | None = ...,
    labels: Mapping[str, str] | None = ...,
    secrets: Mapping[str, str] | None = ...,
    run_as_root: bool = ...,
    cache_volume: str | None = ...,
    lease: float | None = ...,
    hang_after: float | None = ...,
    security_context: Mapping[str, Any] | None = ...,
    conn_id: str | None = ...,
    deferrable: bool = ...,
    multiple_outputs: bool | None = ...,
    **task_options: Any,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def kinetic(python_callable: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """`@task.kinetic` as a function to import, whose options a type checker knows."""
    return kinetic_task(python_callable, **options)
