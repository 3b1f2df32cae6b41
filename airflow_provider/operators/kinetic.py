"""`KineticOperator`: a task that runs a Python function as a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from airflow_provider.config import default_deferrable
from airflow_provider.links.kinetic import LogsLink, OutputsLink, WorkloadLink
from airflow_provider.operators.job_task import JobTask
from airflow_provider.options import TASK_OPTIONS, check_options, is_template, refuse_options, takes_options
from kinetic_core.data.data import Data

if TYPE_CHECKING:
    from airflow_provider.option_types import TaskKeywords


class KineticOperator(JobTask):
    """Operator that runs `python_callable(*op_args, **op_kwargs)` as a job and returns its value.

    The function, its project and its arguments are packaged; the options are those of
    `kinetic_core.run`, `job_retries` being attempts inside the job besides Airflow's own `retries`.
    `conn_id` names a connection of type `kinetic`, which says where jobs run, and as whom, instead of the
    environment. With `deferrable` no worker slot is held while the job runs; the default is True, or what
    `AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE` is set to.
    `execution_timeout` bounds the task from its first start, waiting included. Every option may be a
    template, or come from another task.

    A plain value becomes the task's XCom. Any other value becomes a reference; another kinetic task takes the
    reference as an argument and gets the value.
    """

    template_fields: Sequence[str] = ("op_args", "op_kwargs", *TASK_OPTIONS, "conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"op_args": "py", "op_kwargs": "py"}
    shallow_copy_attrs: Sequence[str] = ("python_callable", "op_args", "op_kwargs")
    operator_extra_links = (WorkloadLink(), LogsLink(), OutputsLink())
    ui_color = "#e8f0fe"
    custom_operator_name = "@task.kinetic"

    @takes_options
    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        conn_id: str | None = None,
        deferrable: bool = default_deferrable(),
        **options: Unpack[TaskKeywords],
    ) -> None:
        refuse_options(options)
        given: dict[str, Any] = {**options}
        of_job = {name: given.pop(name, None) for name in TASK_OPTIONS}
        super().__init__(**given)
        self.python_callable = python_callable
        self.op_args = op_args or ()
        self.op_kwargs = op_kwargs or {}
        for name, value in of_job.items():
            setattr(self, name, value)
        self.conn_id = conn_id
        self.deferrable = deferrable
        self._check()

    def render_template(self, content: Any, *args: Any, **kwargs: Any) -> Any:
        """Render templates as Airflow does, fill in the path of a `Data`, and leave other paths alone.

        Airflow 3.1 would take a path for the output of another task.
        """
        if isinstance(content, os.PathLike):
            return content
        if isinstance(content, Data) and is_template(content.path):
            path = super().render_template(content.path, *args, **kwargs)
            return Data(path, content.fuse, content.hf_trust_remote_code, shard=content.shard)
        return super().render_template(content, *args, **kwargs)

    def _check(self) -> None:
        check_options(self._options())

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in TASK_OPTIONS}
