"""What the provider tells Airflow of itself is what there is, and what Airflow's schema asks for."""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.airflow

DEFERRABLE = """
from airflow_provider.decorators.kinetic import kinetic
from airflow_provider.operators.kinetic import KineticOperator
own = KineticOperator(task_id="own", python_callable=print, deferrable=True)
print(KineticOperator(task_id="by_default", python_callable=print).deferrable, own.deferrable)
"""
ACCESS = """
from airflow_provider.config import config
print(config().orphan_interval, config().final_log_lines)
"""


@pytest.fixture(scope="module")
def info() -> dict[str, Any]:
    from airflow_provider.get_provider_info import get_provider_info

    return get_provider_info()


def classes(package: str, base: type) -> Iterator[type]:
    """The concrete classes of a kind that modules of a package define."""
    folder = import_module(f"airflow_provider.{package}")
    for found in pkgutil.iter_modules(folder.__path__):
        module = import_module(f"airflow_provider.{package}.{found.name}")
        for kind in vars(module).values():
            own = inspect.isclass(kind) and kind.__module__ == module.__name__
            if own and issubclass(kind, base) and not inspect.isabstract(kind):
                yield kind


def test_it_fits_airflows_schema(info: dict[str, Any]) -> None:
    import airflow
    from jsonschema import validate

    schema = Path(airflow.__file__).with_name("provider_info.schema.json")
    validate(info, json.loads(schema.read_text()))


@pytest.mark.parametrize("kind", ["operators", "sensors", "hooks", "triggers"])
def test_every_module_with_such_a_class_is_named(kind: str, info: dict[str, Any]) -> None:
    from airflow.sdk import BaseHook, BaseOperator
    from airflow.triggers.base import BaseTrigger

    base: type = {
        "operators": BaseOperator,
        "sensors": BaseOperator,
        "hooks": BaseHook,
        "triggers": BaseTrigger,
    }[kind]
    named = [module for entry in info[kind] for module in entry["python-modules"]]
    assert set(named) == {found.__module__ for found in classes(kind, base)}
    integrations = {each["integration-name"] for each in info["integrations"]}
    assert {entry["integration-name"] for entry in info[kind]} == integrations


def test_every_link_is_named(info: dict[str, Any]) -> None:
    from airflow.sdk import BaseOperatorLink

    from airflow_provider.operators.kinetic import KineticOperator

    found = {f"{each.__module__}.{each.__qualname__}" for each in classes("links", BaseOperatorLink)}
    assert set(info["extra-links"]) == found
    assert {type(each) for each in KineticOperator.operator_extra_links} == set(
        classes("links", BaseOperatorLink)
    )


def test_the_decorator_and_the_connection_type_are_there(info: dict[str, Any]) -> None:
    from airflow_provider.hooks.kinetic import KineticHook

    assert {each["name"] for each in info["task-decorators"]} == {"kinetic", "kinetic_batch"}
    for decorator in info["task-decorators"]:
        module, _, name = decorator["class-name"].rpartition(".")
        assert callable(getattr(import_module(module), name))
    (connection,) = info["connection-types"]
    module, _, name = connection["hook-class-name"].rpartition(".")
    assert getattr(import_module(module), name) is KineticHook
    assert connection["connection-type"] == KineticHook.conn_type
    assert connection["hook-name"] == KineticHook.hook_name


def test_the_plugin_has_an_entry_point_and_no_second_one(info: dict[str, Any]) -> None:
    """Airflow reads a provider's plugins only with `lazy_load_providers` off, and would then report two."""
    from importlib.metadata import entry_points

    from airflow_provider.plugins.kinetic import KineticPlugin

    (found,) = (each for each in entry_points(group="airflow.plugins") if each.name == "kinetic")
    assert found.load() is KineticPlugin
    assert "plugins" not in info


def in_an_airflow(program: str, folder: Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "AIRFLOW_HOME": str(folder), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("file", "variable", "expected"),
    [
        ("", None, "True True"),
        ("[operators]\ndefault_deferrable = false\n", None, "True True"),  # as in each new airflow.cfg
        ("[operators]\ndefault_deferrable = False\n", "True", "True True"),
        ("", "False", "False True"),
    ],
    ids=["not set", "as Airflow writes it", "by a variable", "off by a variable"],
)
def test_default_deferrable_of_airflow_is_honoured(
    file: str, variable: str | None, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "airflow.cfg").write_text(file)
    variables = {} if variable is None else {"AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": variable}
    assert in_an_airflow(DEFERRABLE, tmp_path, **variables) == expected


def test_a_platform_team_sets_the_section(tmp_path: Path) -> None:
    (tmp_path / "airflow.cfg").write_text("[kinetic]\norphan_interval = 60\n")
    assert in_an_airflow(ACCESS, tmp_path, AIRFLOW__KINETIC__FINAL_LOG_LINES="10") == "60.0 10"
