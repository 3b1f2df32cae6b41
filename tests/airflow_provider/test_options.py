"""Options of a task are checked where they are written, as far as they are known there."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.options import (
    REFUSED,
    RENAMED,
    TASK_OPTIONS,
    check_options,
    refuse_options,
    rendered_options,
    run_options,
    takes_options,
)
from kinetic_core import Data
from kinetic_core.errors import InvalidRequest
from kinetic_core.options import Keywords, RunKeywords, RunOptions


class XComArg:
    """Stands for what another task will deliver."""

    def resolve(self, context: Any) -> Any:
        raise AssertionError("asked while the DAG is parsed")


@pytest.mark.promise("airflow: Every option of `run` available")
def test_the_options_of_a_task_are_those_of_run() -> None:
    """Of those that `run` alone has, each has another name in a task, or a reason why it has none there."""
    own = RunKeywords.__annotations__.keys() - Keywords.__annotations__.keys()
    assert own == RENAMED.keys() | REFUSED.keys()
    assert set(TASK_OPTIONS) == {*Keywords.__annotations__, *RENAMED.values()}


@pytest.mark.promise("airflow: … and typed")
def test_the_signature_of_an_operator_has_every_option() -> None:
    @takes_options
    def init(self: object, *, python_callable: object, **others: object) -> None: ...

    taken = inspect.signature(init).parameters
    assert list(taken) == ["self", "python_callable", *TASK_OPTIONS, "others"]
    assert {taken[name].default for name in TASK_OPTIONS} == {None}


def test_none_is_an_option_that_was_not_given() -> None:
    assert run_options(dict.fromkeys(TASK_OPTIONS)) == RunOptions.checked()


def test_job_retries_are_attempts_inside_the_job() -> None:
    assert run_options({"job_retries": 3}).retries == 3


@pytest.mark.parametrize(
    "options",
    [
        {"accelerator": "{{ params.accelerator }}"},
        {"accelerator": XComArg()},
        {"accelerator": ["{{ params.accelerator }}", "gpu-l4"], "capacity_timeout": 60},
        {"memory": "{{ params.gigabytes }}Gi"},
        {"capture_env_vars": ["{{ params.name }}"]},
        {"timeout": "{{ params.seconds }}", "spot": "{% if params.cheap %}true{% endif %}"},
        {"timeout": XComArg()},
        {"labels": {"day": "{{ ds_nodash }}"}},
        {"tolerations": [{"key": "{{ params.taint }}", "operator": "Exists"}]},
        {"volumes": {"/data": Data("gs://bucket/{{ ds }}/")}},
    ],
)
def test_what_is_not_known_yet_is_left_until_it_is(options: dict[str, Any]) -> None:
    check_options(options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"accelerator": "tpu-v9-8"}, "tpu-v9-8"),
        ({"accelerator": ["gpu-l4", "tpu-v9-8"]}, "tpu-v9-8"),
        ({"backend": "elsewhere"}, "backend"),
        ({"memory": "lots"}, "memory"),
        ({"timeout": -1}, "timeout"),
        ({"budget": 0}, "budget"),
        ({"job_retries": -1}, "retries"),
        ({"accelerator": "{{ params.accelerator }}", "memory": "lots"}, "memory"),
        ({"labels": {"day": "no label!"}}, "labels"),
        ({"requirements": Path("requirements.txt"), "budget": -1}, "budget"),
    ],
)
def test_what_can_never_be_valid_is_said_at_once(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        check_options(options)


def test_a_text_is_no_number_unless_it_is_a_templates() -> None:
    with pytest.raises(TypeError, match="timeout='60' must be a number"):
        check_options({"timeout": "60"})


def test_a_filled_in_template_is_what_the_option_is() -> None:
    texts = {"timeout": "3600", "job_retries": " 2 ", "cpu": "0.5", "spot": "true", "accelerator": "gpu-l4"}
    found = rendered_options({**texts, "budget": "None", "memory": "4294967296"})
    assert (found.timeout, found.retries, found.pod.cpu, found.memory) == (3600.0, 2, 0.5, 4 << 30)
    assert found.accelerator.spot
    assert found.budget is None
    assert rendered_options({"run_as_root": "False"}).pod.run_as_root is False


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"timeout": "soon"}, "timeout='soon', from a template or from another task, must be a number"),
        ({"job_retries": "2.5"}, "job_retries='2.5'"),
        ({"flex_start": "perhaps"}, "flex_start='perhaps'.* must be True or False"),
        ({"labels": "{'a': 'b'}"}, "labels=.* must be a dict"),
        ({"timeout": [60]}, "timeout="),
    ],
)
def test_a_template_of_the_wrong_type_is_a_bad_request(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        rendered_options(options)


def test_a_task_is_not_debugged_and_says_what_to_do() -> None:
    refuse_options({"accelerator": "cpu"})
    with pytest.raises(InvalidRequest, match=r"nobody sits at an Airflow worker.*from a terminal"):
        refuse_options({"debug": True})
