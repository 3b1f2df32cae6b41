"""What jobs leave is unpickled in no process of Airflow's."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE

pytestmark = pytest.mark.airflow


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the canaries."""
    monkeypatch.syspath_prepend(str(HERE / "dags"))
    import canaries

    yield canaries
    del sys.modules["canaries"]


@pytest.mark.attack
@pytest.mark.promise(
    "airflow: No unpickling, no user code in Airflow's processes",
    "and an import contract, `make imports`",
)
def test_nothing_that_a_job_left_is_opened(cases: Any, made: Any, tmp_path: Path) -> None:
    for canary in (made.Canary(str(tmp_path)), made.CanaryError(str(tmp_path))):
        pickle.loads(pickle.dumps(canary))
        (told,) = tmp_path.iterdir()
        assert told.read_text() == str(sys.argv)
        told.unlink()

    opened = cases.airflow.home / "opened"
    opened.mkdir()
    assert cases.end("canaries") == "failed"
    expected = {"canary": "success", "flock": "success", "look": "success", "cry": "failed"}
    assert {each: cases.instance("canaries", each)["state"] for each in expected} == expected
    assert cases.value("canaries", "look") == [1, 1]
    assert "a canary" in cases.log("canaries", "cry")
    assert "multiple_outputs needs the values here" in cases.log("canaries", "split")
    by = [path.read_text() for path in opened.iterdir()]
    assert [each for each in by if not each.startswith("job-")] == []  # a job tries its own exception
