"""What Airflow fills in of a task's options. Needs its libraries, not a running Airflow."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.airflow


def nothing() -> None: ...


def rendered(context: dict[str, Any], **options: Any) -> Any:
    from airflow_provider.operators.kinetic import KineticOperator

    task = KineticOperator(task_id="task", python_callable=nothing, backend="local", **options)
    task.render_template_fields(context)
    return task


@pytest.mark.promise("airflow: Everything overridable per task, by templates too")
def test_every_option_is_filled_in() -> None:
    from airflow_provider.access import ACCESS
    from airflow_provider.operators.kinetic import KineticOperator
    from airflow_provider.options import TASK_OPTIONS

    assert {*TASK_OPTIONS, *ACCESS} <= set(KineticOperator.template_fields)
    assert {*TASK_OPTIONS, *ACCESS} <= set(inspect.signature(KineticOperator.__init__).parameters)


def test_an_operator_has_the_template_fields_that_are_given() -> None:
    """Airflow takes time for each, and lists each on its page."""
    from airflow.sdk import DAG, task

    from airflow_provider.operators.batch import KineticBatchOperator
    from airflow_provider.operators.kinetic import KineticOperator

    with DAG("given", schedule=None):
        made = task.kinetic(accelerator="cpu", memory="1Gi")(nothing)().operator
        batch = KineticBatchOperator(task_id="batch", python_callable=print, op_args=[[1]], max_concurrent=2)
        mapped = KineticOperator.partial(task_id="mapped", python_callable=nothing).expand(spot=[True])
        named = task(task_id="name")(nothing)()
    calls = {"op_args", "op_kwargs"}
    assert {*made.template_fields} == {*calls, "accelerator", "memory"}
    assert {*batch.template_fields} == {*calls, "max_concurrent"}
    assert {*mapped.template_fields} == {*KineticOperator.template_fields}
    assert {*mapped.unmap({"spot": True}).template_fields} == {*calls, "spot"}
    made.accelerator = named  # which was a field before, and container_image was none
    made.container_image = "{{ image }}"
    assert made.upstream_task_ids == {"name"}
    made.accelerator = "cpu"
    made.render_template_fields({"image": "python:3.11"})
    assert made.container_image == "python:3.11"


def test_options_may_be_defaults_of_a_dag() -> None:
    from airflow.sdk import DAG

    from airflow_provider.operators.kinetic import KineticOperator

    with DAG(
        "defaults", schedule=None, default_args={"accelerator": "gpu-l4", "job_retries": 2, "retries": 1}
    ):
        task = KineticOperator(task_id="task", python_callable=nothing, memory="1Gi")
    assert (task.accelerator, task.job_retries, task.retries, task.memory) == ("gpu-l4", 2, 1, "1Gi")
    assert task.spot is None


def test_options_may_be_mapped_over() -> None:
    from airflow.sdk import DAG

    from airflow_provider.operators.kinetic import KineticOperator

    with DAG("mapped", schedule=None):
        partial = KineticOperator.partial(task_id="task", python_callable=nothing, memory="1Gi")
        mapped = partial.expand(accelerator=["cpu", "gpu-l4"], job_retries=[1, 2])
        task = mapped.unmap({"accelerator": "gpu-l4", "job_retries": 2})
        with pytest.raises(TypeError, match="unexpected keyword argument 'acelerator'"):
            KineticOperator.partial(task_id="other", python_callable=nothing, acelerator="cpu")
    assert (task.accelerator, task.job_retries, task.memory) == ("gpu-l4", 2, "1Gi")


def test_what_is_no_argument_of_a_task_is_refused() -> None:
    from airflow_provider.operators.kinetic import KineticOperator

    with pytest.raises(TypeError, match="missing keyword argument 'python_callable'"):
        KineticOperator(task_id="task", accelerator="cpu")
    with pytest.raises(TypeError, match="acelerator"):
        KineticOperator(task_id="task", python_callable=nothing, acelerator="cpu")


def test_type_checkers_know_the_arguments_of_every_task() -> None:
    from airflow.sdk import BaseOperator

    from airflow_provider.option_types import AirflowKeywords

    taken = inspect.signature(BaseOperator.__init__).parameters
    of_airflow = {name for name, each in taken.items() if each.kind is each.KEYWORD_ONLY}
    assert of_airflow <= AirflowKeywords.__annotations__.keys()


def test_the_path_of_data_is_filled_in_wherever_it_stands() -> None:
    from kinetic_core import Data

    day = Data("gs://bucket/{{ day }}/", fuse=True)
    task = rendered({"day": "2026-01-01"}, volumes={"/data": day}, op_kwargs={"deep": [day, {"x": day}]})
    filled = Data("gs://bucket/2026-01-01/", fuse=True)
    assert task.volumes == {"/data": filled}
    assert task.op_kwargs == {"deep": [filled, {"x": filled}]}


def test_a_path_is_left_alone() -> None:
    task = rendered({}, requirements=Path("requirements.txt"), op_args=[Path("elsewhere")])
    assert task.requirements == Path("requirements.txt")
    assert task.op_args == [Path("elsewhere")]


def test_a_template_of_a_number_becomes_one() -> None:
    from airflow_provider.options import rendered_options

    task = rendered({"minutes": 5}, timeout="{{ minutes * 60 }}", spot="{{ minutes > 9 }}")
    assert rendered_options(task._options()).timeout == 300
