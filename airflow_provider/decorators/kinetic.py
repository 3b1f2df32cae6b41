"""Decorator `@task.kinetic`, and `kinetic`, the same decorator to import, with types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, overload

from airflow.sdk.bases.decorator import DecoratedOperator, Task, TaskDecorator, task_decorator_factory

from airflow_provider.operators.kinetic import KineticOperator
from airflow_provider.options import TASK_OPTIONS, check_options, refuse_options
from airflow_provider.waiting_alert import check_alert
from kinetic_core.project.callables import check_callable

if TYPE_CHECKING:
    from airflow_provider.option_types import DecoratorKeywords

P = ParamSpec("P")
R = TypeVar("R")


class KineticDecoratedOperator(DecoratedOperator, KineticOperator):
    """Operator that `@task.kinetic` makes from a call of the function."""

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
    """Run a function as a job when the task runs; this is `@task.kinetic`.

    Takes the options of KineticOperator and of every Airflow task. Raises InvalidRequest at once, before
    any DAG runs, for options or functions that can never become a job.
    """
    refuse_options(kwargs)
    check_options({name: kwargs[name] for name in TASK_OPTIONS if kwargs.get(name) is not None})
    check_alert(kwargs.get("waiting_alert"))

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
def kinetic(**options: Unpack[DecoratorKeywords]) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def kinetic(python_callable: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Decorate as `@task.kinetic` does, with options that a type checker knows."""
    return kinetic_task(python_callable, **options)
