"""`@task.kinetic`, and `kinetic`, the same decorator to import, with types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from airflow.sdk.bases.decorator import DecoratedOperator, Task, TaskDecorator, task_decorator_factory

from airflow_provider.operators.kinetic import KineticOperator
from airflow_provider.options import OPTION_NAMES, check_options, refuse_debugging
from kinetic_core.packaging.callables import check_callable

if TYPE_CHECKING:
    from airflow_provider.option_types import (
        Amount,
        Fields,
        Hardware,
        Labels,
        Number,
        Objects,
        Requirements,
        Text,
        Texts,
        Truth,
        Volumes,
    )

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
    accelerator: Hardware = ...,
    backend: Text = ...,
    spot: Truth = ...,
    memory: Amount = ...,
    timeout: Number = ...,
    capacity_timeout: Number = ...,
    budget: Number = ...,
    job_retries: Amount = ...,
    container_image: Text = ...,
    base_image_repo: Text = ...,
    capture_env_vars: Texts = ...,
    volumes: Volumes = ...,
    output_dir: Text = ...,
    project: Text = ...,
    zone: Text = ...,
    cluster: Text = ...,
    namespace: Text = ...,
    requirements: Requirements = ...,
    infrastructure_retries: Amount = ...,
    cpu: Number = ...,
    disk: Amount = ...,
    reservation: Text = ...,
    flex_start: Truth = ...,
    priority_class: Text = ...,
    job_queue: Text = ...,
    service_account: Text = ...,
    node_selector: Labels = ...,
    tolerations: Objects = ...,
    labels: Labels = ...,
    secrets: Labels = ...,
    run_as_root: Truth = ...,
    cache_volume: Text = ...,
    lease: Number = ...,
    hang_after: Number = ...,
    security_context: Fields = ...,
    conn_id: str | None = ...,
    deferrable: bool = ...,
    multiple_outputs: bool | None = ...,
    **task_options: Any,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def kinetic(python_callable: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """`@task.kinetic` as a function to import, whose options a type checker knows."""
    return kinetic_task(python_callable, **options)
