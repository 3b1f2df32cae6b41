"""An Airflow that keeps its logs in a bucket, where pods write theirs beside them."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conftest import CLUSTER, HERE, Cases

from kinetic_core.store.gcs import GcsObjectStore

_SIGN = f"seen-{os.getpid()}"


def emulator(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """A request to Cloud Storage's emulator, as it is or to its controls."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{os.environ['STORAGE_EMULATOR_HOST']}/{path}", data, method=method)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request) as answer:
        told = answer.read()
    return json.loads(told) if told else None


def signs() -> str:
    """What the URLs of the objects begin with that `give_sign` makes."""
    return f"{os.environ['STORAGE_EMULATOR_HOST']}/storage/v1/b/test-bucket/o/{_SIGN}"


def make_project(home: Path, dags: str, told: str) -> Path:
    """A project of the DAGs of that folder, which find in the file `sign` what URLs of signs begin with."""
    project = home / "dags"
    shutil.copytree(HERE / dags, project, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "sign").write_text(told)
    (project / "pyproject.toml").write_text("[project]\nname = 'talking'\nversion = '0'\n")
    return project


@contextmanager
def remote_airflow(
    home: Path, dags: str, bucket: str, settings: Mapping[str, str] | None = None
) -> Iterator[Cases]:
    """With the DAGs of that folder, which find there, in the file `sign`, where `give_sign` puts its signs.
    The bucket is made, and is for the logs alone. `settings`: more of the environment.
    """
    from demo_airflow import DemoAirflow

    project = make_project(home, dags, signs())
    remote = {
        "AIRFLOW__LOGGING__REMOTE_LOGGING": "True",
        "AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER": f"gs://{bucket}/ours",
        "XDG_CACHE_HOME": str(home / "cache"),
        "KINETIC_BACKEND": "gke",
    }
    emulator("POST", "storage/v1/b?project=test-project", {"name": bucket})
    airflow = DemoAirflow(home, project, extra={**CLUSTER, **remote, **(settings or {})})
    try:
        airflow.start()
        yield Cases(airflow)
    finally:
        airflow.stop(patience=0)


def give_sign(name: str) -> None:
    """Make the object that jobs wait for which were told of it by this name."""
    GcsObjectStore.at("test-bucket").create_if_absent(f"{_SIGN}-{name}", b"")
