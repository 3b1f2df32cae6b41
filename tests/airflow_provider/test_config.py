"""The section `[kinetic]` of Airflow's configuration, and what a task's `deferrable` is by default."""

from __future__ import annotations

import re
from dataclasses import asdict
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.config import Config, default_deferrable, rows, section
from airflow_provider.get_provider_info import get_provider_info
from kinetic_core.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
_spec = spec_from_file_location("provider_config", ROOT / ".ci/provider_config.py")
assert _spec is not None
assert _spec.loader is not None
provider_config = module_from_spec(_spec)
_spec.loader.exec_module(provider_config)


class Configuration:
    """Stands for Airflow's configuration: what somebody has set, by section and option."""

    def __init__(self, **options: object) -> None:
        self.options = options

    def getint(self, section: str, key: str, *, fallback: int) -> int:
        return int(str(self.options.get(key, fallback)))

    def getfloat(self, section: str, key: str, *, fallback: float) -> float:
        return float(str(self.options.get(key, fallback)))


def test_what_nobody_has_set_is_the_default() -> None:
    assert Config.read(Configuration()) == Config()


def test_what_is_set_counts() -> None:
    found = Config.read(Configuration(orphan_interval="60", followed_jobs="7"))
    assert found == Config(orphan_interval=60.0, followed_jobs=7)


@pytest.mark.parametrize("value", ["4.9", "-1", "nan", "inf"])
def test_a_useless_value_names_its_option(value: str) -> None:
    message = rf"\[kinetic\] orphan_interval = {value}.*: set it to a number of at least 5"
    with pytest.raises(ConfigurationError, match=message):
        Config.read(Configuration(orphan_interval=value))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_a_row_is_documented_and_its_default_allowed(row: Any) -> None:
    assert re.fullmatch(r"(Seconds|Number) .*\.", row.option.doc)
    assert row.default >= row.option.minimum


def test_the_providers_info_has_every_option() -> None:
    told = get_provider_info()["config"]["kinetic"]
    assert told == section()
    assert {name: float(each["default"]) for name, each in told["options"].items()} == asdict(Config())


def test_the_page_is_current() -> None:
    assert provider_config.PAGE.read_text() == provider_config.page(), "run: .ci/provider_config.py"


@pytest.mark.parametrize(("text", "expected"), [(None, True), ("True", True), ("False", False), ("0", False)])
def test_a_task_defers_unless_airflow_is_told_not_to(text: str | None, expected: bool) -> None:
    told = {} if text is None else {"AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": text}
    assert default_deferrable(told) is expected


def test_a_default_deferrable_of_no_meaning_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is 'perhaps': set it to True or False"):
        default_deferrable({"AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "perhaps"})
