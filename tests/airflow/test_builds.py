"""An image is built while no worker waits for it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.images import GOOGLE, ZONE, own_images

pytestmark = pytest.mark.airflow

KEY_FILE = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS", "")


@pytest.mark.promise("airflow: Waiting for an image build is deferred")
@pytest.mark.usefixtures("cluster")
def test_a_task_is_deferred_while_its_image_is_built(cases: Any) -> None:
    if not (KEY_FILE and GOOGLE):
        pytest.skip("no stand-in for Google's APIs: eval the environment of the test cluster")
    with own_images() as images:
        key = json.loads(Path(KEY_FILE).read_text())
        config = Path(os.environ["KUBECONFIG"]).read_text()
        places = {"project": "test-project", "zone": ZONE, "cluster": images.cluster}
        places |= {"google_cloud_conn_id": "google_builds", "kubernetes_conn_id": "kube_builds"}
        places["bucket"] = cases.airflow.environment["KINETIC_BUCKET"]
        for conn_id, conn_type, extra in (
            ("google_builds", "google_cloud_platform", {"keyfile_dict": json.dumps(key)}),
            ("kube_builds", "kubernetes", {"kube_config": config}),
            ("kinetic_builds", "kinetic", places),
        ):
            body = {"connection_id": conn_id, "conn_type": conn_type, "extra": json.dumps(extra)}
            cases.api.call("POST", "/connections", body)
        cases.start("building")
        cases.reach("building", "imported", lambda one: one["state"] == "deferred", "to be deferred")
        assert cases.end("building") == "success"
        log = cases.log("building", "imported")
        assert cases.value("building", "imported") == "1.17.0"
        assert list(images.builds.values()) == [1]
    assert "the image is still being built" in log
    steps = [line for line in log.splitlines() if line.startswith("Step #")]
    assert steps.count(steps[0]) == 1, "the build's log is there twice"
    assert log.count("started a job") == 1
