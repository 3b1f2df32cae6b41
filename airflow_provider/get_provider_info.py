"""Provider metadata, which Airflow reads through the `apache_airflow_provider` entry point."""

from __future__ import annotations

from typing import Any

from airflow_provider.hooks.connection_form import connection_type


def get_provider_info() -> dict[str, Any]:
    """Return provider metadata in the shape of Airflow's `provider_info.schema.json`."""
    return {
        "package-name": "airflow-provider-kinetic",
        "name": "Kinetic",
        "description": "Run any Python function on a cloud TPU or GPU.",
        "integrations": [
            {
                "integration-name": "Kinetic",
                "external-doc-url": "https://pypi.org/project/airflow-provider-kinetic/",
                "tags": ["service"],
            },
        ],
        "task-decorators": [
            {"name": "kinetic", "class-name": "airflow_provider.decorators.kinetic.kinetic_task"},
        ],
        "operators": [
            {"integration-name": "Kinetic", "python-modules": ["airflow_provider.operators.kinetic"]},
        ],
        "hooks": [
            {"integration-name": "Kinetic", "python-modules": ["airflow_provider.hooks.kinetic"]},
        ],
        "connection-types": [connection_type()],
        "extra-links": [
            f"airflow_provider.links.kinetic.{name}" for name in ("WorkloadLink", "LogsLink", "OutputsLink")
        ],
        "triggers": [
            {"integration-name": "Kinetic", "python-modules": ["airflow_provider.triggers.job"]},
        ],
    }
