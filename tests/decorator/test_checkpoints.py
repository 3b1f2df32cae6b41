"""The example of checkpoints, on this machine; tests/cluster kills it."""

from __future__ import annotations

from pathlib import Path

import pytest

import kinetic_core
from examples.checkpointed_training import Checkpoints, train

pytestmark = pytest.mark.usefixtures("local_jobs")


def test_it_begins_where_the_last_one_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(__file__).parents[2] / "examples"))
    again = kinetic_core.run(accelerator="cpu", output_dir=str(tmp_path))(train.__wrapped__)
    first = again(30)
    assert (first["begun_at"], first["step"]) == (0, 30)
    assert first == {**(Checkpoints(str(tmp_path)).latest() or {}), "begun_at": 0}
    second = again(200)
    assert (second["begun_at"], second["step"]) == (30, 200)
    assert second["slope"] == pytest.approx(3, abs=0.05)
