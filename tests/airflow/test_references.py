"""References between tasks of a real Airflow: signed ones arrive, planted ones run nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from conftest import HERE, Cases

from kinetic_core import ResultReference
from kinetic_core._runner import object_names, wire

pytestmark = [pytest.mark.airflow, pytest.mark.attack]
JOB = "job-0123456789abcdef"


@pytest.fixture
def canary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """An object that leaves a file in a directory when it is unpickled."""
    monkeypatch.syspath_prepend(str(HERE / "dags"))
    import canaries

    yield canaries.Canary(str(tmp_path))
    del sys.modules["canaries"]


def test_a_planted_reference_loads_nothing(cases: Cases, canary: Any, tmp_path: Path) -> None:
    store = cases.airflow.home / "kinetic/store"
    header = {"job_id": JOB, "state": "succeeded", "codec": "pickle", "attempt": 0}
    frame = wire.encode_frame(header, {"body": cloudpickle.dumps(canary)})
    planted = store / "jobs" / JOB / "result"
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_bytes(frame)
    name = object_names.result(JOB)
    reference = ResultReference(store.as_uri(), name, wire.head_digest(frame), JOB, "Box").to_dict()
    faked = {**reference, "signed_with": "0" * 16, "signature": "0" * 64}
    for given, why in ((reference, "it has no signature"), (faked, "that this Airflow does not have")):
        cases.runs.pop("forged", None)
        cases.runs["forged"] = cases.airflow.run("forged", {"given": given})
        assert cases.end("forged") == "failed"
        for task_id, where in (("take", "op_args[0]['rows'][0]"), ("configured", "op_kwargs['given']")):
            log = cases.log("forged", task_id)
            assert f"{where} looks like a reference" in log
            assert why in log
            assert cases.instance("forged", task_id)["try_number"] == 1
    assert list(tmp_path.iterdir()) == []


def test_references_of_tasks_arrive_and_are_signed(cases: Cases) -> None:
    assert cases.end("references") == "success"
    pushed = [
        value
        for each in cases.api.task_instances("references", cases.runs["references"])
        for value in [cases.api.xcom(each)]
        if isinstance(value, dict) and "__kinetic_result__" in value
    ]
    assert pushed
    assert all(len(value["signature"]) == 64 for value in pushed)
