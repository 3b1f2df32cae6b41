"""Pods are told of a task's log only where Airflow keeps its logs in Cloud Storage."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.airflow

INSTANCE = SimpleNamespace(dag_id="nightly", run_id="now", task_id="train", map_index=-1, try_number=2)
NAME = "dag_id=nightly/run_id=now/task_id=train/attempt=2.log.kinetic"


@pytest.mark.parametrize(
    ("is_remote", "folder", "uri"),
    [
        ("True", "gs://logs/ours/", f"gs://logs/ours/{NAME}"),
        ("False", "gs://logs/ours", None),
        ("True", "s3://logs/ours", None),
        ("True", "wasb-ours", None),
        ("True", "wasb://ours", None),
        ("True", "cloudwatch://arn:aws:logs:eu-west-1:1:log-group:ours", None),
        ("True", "", None),
    ],
)
def test_where_pods_write(
    is_remote: str, folder: str, uri: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider.task_logs import remote_log

    monkeypatch.setenv("AIRFLOW__LOGGING__REMOTE_LOGGING", is_remote)
    monkeypatch.setenv("AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER", folder)
    found = remote_log({"ti": INSTANCE})
    assert (found and found.uri) == uri
