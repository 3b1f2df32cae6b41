"""What Airflow reads, through the `apache_airflow_provider` entry point, to find `@task.kinetic`."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Provider metadata in the shape of Airflow's `provider.yaml` schema."""
    return {
        "package-name": "airflow-provider-kinetic",
        "name": "Kinetic",
        "description": "Run any Python function on a cloud TPU or GPU.",
        "task-decorators": [
            {"name": "kinetic", "class-name": "airflow_provider.decorators.kinetic_task"},
        ],
    }
