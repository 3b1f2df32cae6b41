"""A training that is killed goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kinetic_core.cluster.access import ClusterApi
from kinetic_core.cluster.names import JOB_ID
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("gke")


def test_a_training_that_is_killed_goes_on_at_its_last_checkpoint(
    api: ClusterApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from examples.checkpointed_training import train

    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(__file__).parents[2] / "examples"))
    handle = train.run_async(60, 0.15)
    wait_for(lambda: len(handle.outputs()) >= 2, 90)
    query = {"labelSelector": f"{JOB_ID}={handle.job_id}"}
    (pod,) = api.list("Pod", handle.namespace, query)["items"]
    api.delete("Pod", handle.namespace, pod["metadata"]["name"])
    state = handle.result(stream_logs=False)
    assert state["step"] == 60
    assert state["begun_at"] >= 20
    (last,) = handle.outputs().download(tmp_path / "here", "*60.json")
    assert json.loads(last.read_text())["slope"] == state["slope"]
