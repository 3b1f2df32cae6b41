"""Provider metadata, which Airflow reads through the `apache_airflow_provider` entry point."""

from __future__ import annotations

from typing import Any

from airflow_provider.config import SECTION, section

GOOGLE = "google_cloud_conn_id"
KUBERNETES = "kubernetes_conn_id"
SETTINGS = ("backend", "project", "zone", "cluster", "namespace", "bucket", "container_image", "profile")
"""Fields that are settings of `kinetic_core` by the same name."""

FIELDS = {
    GOOGLE: (
        "Google Cloud connection",
        "Whose credentials Google's services get, impersonation included. Empty: those of the machine",
    ),
    KUBERNETES: ("Kubernetes connection", "The cluster, and as whom. Empty: the GKE cluster named below"),
    "project": ("Project", "Google Cloud project of the GKE cluster"),
    "zone": ("Zone", "Zone or region of the GKE cluster, such as us-central1-a"),
    "cluster": ("Cluster", "Name of the GKE cluster"),
    "namespace": ("Namespace", "Kubernetes namespace of the jobs"),
    "bucket": ("Bucket", "For everything jobs store: bucket or bucket/prefix"),
    "container_image": ("Container image", "An image, bundled or prebuilt"),
    "backend": ("Backend", "gke or local"),
    "profile": ("Profile", "A profile of the machines where tasks and triggers run"),
}
"""Label and purpose of each field, in the form's order."""

HIDDEN = ("host", "schema", "login", "password", "port", "extra")
"""Fields that Airflow's form has for every connection and this type does not use."""


def connection_type() -> dict[str, Any]:
    """Return an item of `connection-types` in the provider's metadata. Airflow 3.1 ignores its fields."""
    return {
        "connection-type": "kinetic",
        "hook-class-name": "airflow_provider.hooks.kinetic.KineticHook",
        "hook-name": "Kinetic",
        "ui-field-behaviour": {"hidden-fields": list(HIDDEN), "relabeling": {}},
        "conn-fields": {
            name: {"label": label, "description": purpose, "schema": {"type": ["string", "null"]}}
            for name, (label, purpose) in FIELDS.items()
        },
    }


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
            {"name": "kinetic_batch", "class-name": "airflow_provider.decorators.batch.kinetic_batch_task"},
        ],
        "operators": [
            {
                "integration-name": "Kinetic",
                "python-modules": ["airflow_provider.operators.kinetic", "airflow_provider.operators.batch"],
            },
        ],
        "sensors": [
            {"integration-name": "Kinetic", "python-modules": ["airflow_provider.sensors.kinetic"]},
        ],
        "hooks": [
            {"integration-name": "Kinetic", "python-modules": ["airflow_provider.hooks.kinetic"]},
        ],
        "config": {SECTION: section()},
        "connection-types": [connection_type()],
        "extra-links": ["airflow_provider.links.kinetic.JobLink"],
        "triggers": [
            {
                "integration-name": "Kinetic",
                "python-modules": [
                    "airflow_provider.triggers.kinetic",
                    "airflow_provider.triggers.batch",
                    "airflow_provider.triggers.job_end",
                    "airflow_provider.triggers.outputs",
                ],
            },
        ],
    }
