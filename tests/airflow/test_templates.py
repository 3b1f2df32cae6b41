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


def test_every_option_is_filled_in() -> None:
    from airflow_provider.operators.kinetic import KineticOperator
    from airflow_provider.options import OPTION_NAMES

    assert {*OPTION_NAMES, "conn_id"} <= set(KineticOperator.template_fields)
    assert {*OPTION_NAMES, "conn_id"} <= set(inspect.signature(KineticOperator.__init__).parameters)


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
