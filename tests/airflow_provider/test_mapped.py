"""What an instance of a mapped task is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.records import instance_name, named


def train(rate: float, layers: Any = None, api_key: str = "") -> None: ...


def hide(value: str, name: str) -> str:
    """As Airflow's: what is secret by its name, or known to be."""
    return "***" if name == "api_key" else value.replace("hunter2", "***")


def name_of(args: list[Any], kwargs: dict[str, Any], index: int | None = 2, **ti: Any) -> str:
    return instance_name(SimpleNamespace(task_id="train", map_index=index, **ti), train, args, kwargs, hide)


@pytest.mark.parametrize("index", [None, -1])
def test_a_task_that_is_not_mapped_needs_no_name(index: int | None) -> None:
    assert name_of([], {"rate": 0.3}, index) == ""
    assert named("", ValueError("no luck")) == "no luck"


@pytest.mark.promise("airflow: Mapped failures name their index")
def test_an_instance_is_named_with_its_index_and_input() -> None:
    name = name_of([0.3], {"layers": "wide"})
    assert name == "train[2] (rate=0.3, layers='wide')"
    assert named(name, "no luck") == "train[2] (rate=0.3, layers='wide'): no luck"


def test_what_the_dags_author_calls_it_comes_first() -> None:
    assert name_of([], {"rate": 0.3}, rendered_map_index="rate 0.3") == "train[2] (rate 0.3)"


def test_what_is_long_or_no_plain_value_is_left_out() -> None:
    assert name_of([], {"rate": [0.3] * 9, "layers": "x" * 41}, 0, rendered_map_index=None) == "train[0]"
    many = instance_name(
        SimpleNamespace(task_id="t", map_index=1), train, [], {f"n{each}": 0.125 for each in range(99)}, hide
    )
    assert len(many) < 140
    assert many.endswith("...)")


@pytest.mark.promise("airflow: Connections' secrets in no pod, log, XCom or metadata database")
def test_no_secret_is_named() -> None:
    name = name_of([0.3], {"layers": "with hunter2", "api_key": "abc"})
    assert name == "train[2] (rate=0.3, layers='with ***', api_key=***)"
