"""Outputs become events of assets, which start other DAGs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.airflow


def started_by_events(cases: Any, dag_id: str) -> list[Any]:
    """What the run that an event has started saw of it."""

    def run() -> str:
        found = cases.api.call("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"]
        return found[0]["dag_run_id"] if found else ""

    cases.runs[dag_id] = cases.airflow.until(run, 300, f"an event to start {dag_id}")
    assert cases.end(dag_id) == "success"
    return cases.value(dag_id, "read")


@pytest.mark.promise("airflow: Outputs published as Assets with URIs")
@pytest.mark.promise("page: with metadata (job, digest, size), consumer DAG started")
def test_outputs_start_the_dags_that_wait_for_them(cases: Any) -> None:
    assert cases.end("producing") == "success"
    (job_id,) = set(re.findall(r"job-[0-9a-f]{16}", cases.log("producing", "produce")))
    uri, extra = started_by_events(cases, "consuming_asset")
    assert uri == "kinetic-model"
    assert re.fullmatch(r"[0-9a-f]{64}", extra.pop("digest"))
    place = extra.pop("uri")
    assert extra == {"job": job_id, "files": 1, "bytes": 4}
    assert Path(urlsplit(place).path, "model.txt").read_text() == "five"

    uri, extra = started_by_events(cases, "consuming_alias")
    assert (uri, extra["uri"], extra["job"]) == (place, place, job_id)
