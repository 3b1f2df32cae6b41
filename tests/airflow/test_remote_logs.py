"""Where Airflow keeps its logs in a bucket, pods write theirs beside them: seen live, and each line once."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CLUSTER, HERE, Cases

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.skipif(not CLUSTER, reason="no KUBECONFIG and KINETIC_TEST_IMAGE: see the cluster's README"),
]

SIGN = f"seen-{os.getpid()}"


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    """An Airflow of its own, with remote logs."""
    from demo_airflow import DemoAirflow

    home = tmp_path_factory.mktemp("remote").resolve()
    shutil.copytree(HERE / "remote_dags", home / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    (home / "dags" / "sign").write_text(
        f"{os.environ['STORAGE_EMULATOR_HOST']}/storage/v1/b/test-bucket/o/{SIGN}"
    )
    (home / "dags" / "pyproject.toml").write_text("[project]\nname = 'talking'\nversion = '0'\n")
    remote = {
        "AIRFLOW__LOGGING__REMOTE_LOGGING": "True",
        "AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER": f"gs://test-bucket/airflow-logs-{os.getpid()}",
        "XDG_CACHE_HOME": str(home / "cache"),
        "KINETIC_BACKEND": "gke",
    }
    airflow = DemoAirflow(home, home / "dags", extra={**CLUSTER, **remote})
    try:
        airflow.start()
        yield Cases(airflow)
    finally:
        airflow.stop()


def printed(log: str) -> list[int]:
    return [int(number) for number in re.findall(r"line (\d+) of the pod", log)]


def test_lines_are_seen_while_the_task_is_deferred_and_each_once_at_the_end(talking: Any) -> None:
    from kinetic_core.storage.gcs import GcsObjectStore

    talking.start("talking")

    def seen(instance: dict[str, Any]) -> bool:
        return instance["state"] == "deferred" and printed(talking.log("talking", "talk")) != []

    talking.reach("talking", "talk", seen, "to be deferred, its pod's lines in its log")
    assert "its pods write their lines here" in talking.log("talking", "talk")
    GcsObjectStore.at("test-bucket").create(SIGN, b"")
    assert talking.end("talking") == "failed"
    assert printed(talking.log("talking", "talk")) == list(range(talking.value("talking", "talk")))
    log = talking.log("talking", "failing")
    assert printed(log) == [0, 1, 2]
    assert log.index("line 2 of the pod") < log.index("ValueError: at the end")
    pieces = Path(talking.airflow.home, "logs")
    assert not list(pieces.rglob("*.kinetic*")), "the pods' pieces are in the bucket"
