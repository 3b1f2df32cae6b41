"""`KineticOperator`: a task that runs a Python function as a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider.links import LogsLink, OutputsLink, WorkloadLink
from airflow_provider.operators.legs import JobTask
from airflow_provider.options import OPTION_NAMES, check_options, is_template, refuse_debugging
from kinetic_core.data.data import Data

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


class KineticOperator(JobTask):
    """Runs `python_callable(*op_args, **op_kwargs)` as a job and returns its value.

    The function, its project and its arguments are packaged; the options are those of
    `kinetic_core.run`, `job_retries` being attempts inside the job besides Airflow's own `retries`.
    `conn_id` names a connection of type `kinetic`, which says where jobs run, and as whom, instead of the
    environment. With `deferrable` (the default) no worker slot is held while the job runs.
    `execution_timeout` bounds the task from its first start, waiting included. Every option may be a
    template, or come from another task.

    A plain value becomes the task's XCom. Anything else becomes a reference, which another kinetic task
    takes as an argument and gets as the value.
    """

    template_fields: Sequence[str] = ("op_args", "op_kwargs", *OPTION_NAMES, "conn_id")
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
        accelerator: Hardware = None,
        backend: Text = None,
        spot: Truth = None,
        memory: Amount = None,
        timeout: Number = None,
        capacity_timeout: Number = None,
        budget: Number = None,
        job_retries: Amount = None,
        container_image: Text = None,
        base_image_repo: Text = None,
        requirements: Requirements = None,
        capture_env_vars: Texts = None,
        volumes: Volumes = None,
        output_dir: Text = None,
        project: Text = None,
        zone: Text = None,
        cluster: Text = None,
        namespace: Text = None,
        infrastructure_retries: Amount = None,
        cpu: Number = None,
        disk: Amount = None,
        reservation: Text = None,
        flex_start: Truth = None,
        priority_class: Text = None,
        job_queue: Text = None,
        service_account: Text = None,
        node_selector: Labels = None,
        tolerations: Objects = None,
        labels: Labels = None,
        secrets: Labels = None,
        run_as_root: Truth = None,
        cache_volume: Text = None,
        lease: Number = None,
        hang_after: Number = None,
        security_context: Fields = None,
        conn_id: str | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        refuse_debugging(kwargs)
        super().__init__(**kwargs)
        self.python_callable = python_callable
        self.op_args = op_args or ()
        self.op_kwargs = op_kwargs or {}
        self.accelerator = accelerator
        self.backend = backend
        self.spot = spot
        self.memory = memory
        self.timeout = timeout
        self.capacity_timeout = capacity_timeout
        self.budget = budget
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
        self.flex_start = flex_start
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
        self.hang_after = hang_after
        self.security_context = security_context
        self.conn_id = conn_id
        self.deferrable = deferrable
        self._check()

    def render_template(self, content: Any, *args: Any, **kwargs: Any) -> Any:
        """Airflow's, which also fills in the path of a `Data`, and leaves paths alone.

        Airflow 3.1 takes a path for something that other tasks deliver.
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
        return {name: getattr(self, name) for name in OPTION_NAMES}
