"""What one call leaves, and the next one on the same worker must not see."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.documents.pages import ROOT
from tests.warm.canaries import CANARIES, leave_all, seen
from tests.warm.places import Here
from tests.warm.test_calls import place

__all__ = ["place"]


def test_a_call_finds_nothing_that_an_earlier_one_left(place: Here) -> None:
    first = place.submit(leave_all)
    left = first.value()
    assert len(left) == len(CANARIES) > 50
    second = place.submit(seen, left)
    assert second.worker == first.worker
    assert second.value() == []


IN_ONE_PROCESS = """
import json, os, sys
from tests.warm.canaries import leave_all, seen
left = leave_all()
with open(sys.argv[1], "w") as file:
    json.dump([left, seen(left)], file, default=list)
os._exit(0)
"""


def test_every_canary_would_be_seen(tmp_path: Path) -> None:
    """In the process that left it."""
    subprocess.run(
        [sys.executable, "-c", IN_ONE_PROCESS, str(tmp_path / "found")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KINETIC_OUTPUT_DIR": "here"},
        check=True,
    )
    left, found = json.loads((tmp_path / "found").read_text())
    for name in ("process that goes on", "process of a session of its own", "orphan"):
        os.kill(left[name], signal.SIGKILL)
    Path(left["lock of a file"]).unlink()
    possible = set(CANARIES) - ({"processors"} if left["processors"] is None else set())
    assert set(found) == possible
