"""The form of a connection: its fields are the settings that it can state."""

from __future__ import annotations

from dataclasses import fields

import pytest

from airflow_provider.get_provider_info import (
    FIELDS,
    GOOGLE,
    KUBERNETES,
    SETTINGS,
    connection_type,
    get_provider_info,
)
from kinetic_core.settings import Settings


def test_every_field_is_a_setting_or_another_connection() -> None:
    assert set(SETTINGS) <= {each.name for each in fields(Settings)}
    assert set(FIELDS) == {*SETTINGS, GOOGLE, KUBERNETES}


def test_no_field_is_a_secret() -> None:
    """Credentials are kept in the connections that this one names."""
    form = connection_type()["conn-fields"]
    assert list(form) == list(FIELDS)
    assert [name for name, each in form.items() if "format" in each["schema"]] == []


@pytest.mark.promise("airflow: Connection type `kinetic` with a form")
def test_airflow_finds_the_type() -> None:
    (found,) = get_provider_info()["connection-types"]
    assert found["connection-type"] == "kinetic"
