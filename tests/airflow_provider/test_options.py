"""Options of a task are checked where they are written, as far as they are known there."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import airflow_provider
import kinetic_core
from airflow_provider.options import (
    OPTION_NAMES,
    check_options,
    refuse_debugging,
    rendered_options,
    run_options,
)
from kinetic_core import Data
from kinetic_core.errors import InvalidRequest
from kinetic_core.lifecycle.options import RunOptions


class XComArg:
    """Stands for what another task will deliver."""

    def resolve(self, context: Any) -> Any:
        raise AssertionError("asked while the DAG is parsed")


def test_the_options_of_a_task_are_those_of_run() -> None:
    """All but those that make no sense there: `refuse_debugging` says why of the one."""
    names = [name.removeprefix("job_") for name in OPTION_NAMES]
    assert len(set(names)) == len(names)
    assert set(names) == set(inspect.signature(kinetic_core.run).parameters) - {"debug"}


def test_none_is_an_option_that_was_not_given() -> None:
    assert run_options(dict.fromkeys(OPTION_NAMES)) == RunOptions.checked()


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
def test_a_template_that_gives_something_else_is_a_request_that_cannot_work(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        rendered_options(options)


def test_a_task_is_not_debugged_and_what_is_to_be_done_instead_is_said() -> None:
    refuse_debugging({"accelerator": "cpu"})
    with pytest.raises(InvalidRequest, match=r"nobody sits at an Airflow worker.*from a terminal"):
        refuse_debugging({"debug": True})


def test_the_typed_decorator_knows_every_option() -> None:
    """Overloads cannot be derived from a list, so they are compared with it."""
    source = Path(airflow_provider.__file__).with_name("decorators.py").read_text("utf-8")
    named = set(re.findall(r"^    (\w+): .* = \.\.\.,$", source, re.MULTILINE))
    assert set(OPTION_NAMES) <= named


def test_the_operator_takes_every_option_and_keeps_it_under_its_name() -> None:
    """Its signature is written out for type checkers. It is read, not imported: Airflow is not here."""
    source = Path(airflow_provider.__file__).with_name("operators") / "kinetic.py"
    tree = ast.walk(ast.parse(source.read_text("utf-8")))
    (function,) = (each for each in tree if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    taken = [each.arg for each in function.args.kwonlyargs]
    others = {"python_callable", "op_args", "op_kwargs", "conn_id", "deferrable"}
    assert sorted(set(taken) - others) == sorted(OPTION_NAMES)
    defaults = zip(taken, function.args.kw_defaults, strict=True)
    given = {name for name, value in defaults if value is None or ast.unparse(value) != "None"}
    assert given == {"python_callable", "deferrable"}
    kept = {ast.unparse(each) for each in function.body}
    assert {f"self.{name} = {name}" for name in OPTION_NAMES} <= kept
