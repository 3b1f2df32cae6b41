"""Decorator `@task.kinetic_batch`, and `kinetic_batch`, the same decorator to import, with types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from airflow.sdk.bases.decorator import Task, TaskDecorator, task_decorator_factory

from airflow_provider.batch_inputs import mapped_parameter
from airflow_provider.decorators.kinetic import KineticDecoratedOperator
from airflow_provider.operators.batch import KineticBatchOperator
from airflow_provider.options import (
    BATCH_OPTIONS,
    TASK_OPTIONS,
    check_batch_options,
    check_options,
    check_workers,
    is_template,
    refuse_options,
)
from airflow_provider.waiting_alert import check_alert
from kinetic_core.errors import InvalidRequest
from kinetic_core.project.callables import check_callable

if TYPE_CHECKING:
    from airflow_provider.option_types import BatchDecoratorKeywords

R = TypeVar("R")


class KineticBatchDecoratedOperator(KineticDecoratedOperator, KineticBatchOperator):
    """Operator that `@task.kinetic_batch` makes from a call of the function."""

    template_fields: Sequence[str] = KineticBatchOperator.template_fields
    custom_operator_name = "@task.kinetic_batch"


def kinetic_batch_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> TaskDecorator:
    """Call a function for each element of one of its arguments, as one batch; this is `@task.kinetic_batch`.

    Takes the options of KineticBatchOperator and of every Airflow task. Raises InvalidRequest at once, before
    any DAG runs, for options or functions that can never become a batch.
    """
    if multiple_outputs:
        raise InvalidRequest("multiple_outputs=: a batch has one value for each input, and no names for them")
    refuse_options(kwargs)
    check_options({name: kwargs[name] for name in TASK_OPTIONS if kwargs.get(name) is not None})
    check_alert(kwargs.get("waiting_alert"))
    check_batch_options({name: kwargs[name] for name in BATCH_OPTIONS if kwargs.get(name) is not None})
    check_workers(kwargs, {name: kwargs.get(name) for name in BATCH_OPTIONS})

    def decorate(function: Callable[..., Any]) -> TaskDecorator:
        check_callable(function)
        over = kwargs.get("over")
        if over is None or (isinstance(over, str) and not is_template(over)):
            mapped_parameter(function, over)
        return task_decorator_factory(
            python_callable=function,
            multiple_outputs=False,  # else Airflow infers it from what one call returns
            decorated_operator_class=KineticBatchDecoratedOperator,
            **kwargs,
        )

    return cast("TaskDecorator", decorate) if python_callable is None else decorate(python_callable)


@overload
def kinetic_batch(python_callable: Callable[..., R], /) -> Task[..., R]: ...


@overload
def kinetic_batch(
    **options: Unpack[BatchDecoratorKeywords],
) -> Callable[[Callable[..., R]], Task[..., R]]: ...


def kinetic_batch(python_callable: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Decorate as `@task.kinetic_batch` does, with options that a type checker knows."""
    return kinetic_batch_task(python_callable, **options)
