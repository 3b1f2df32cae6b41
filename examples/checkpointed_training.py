"""Training that survives being killed: it writes checkpoints to `KINETIC_OUTPUT_DIR` and begins at the last.

    python examples/checkpointed_training.py

Every attempt of a job has the same output directory, and looks there first. One whose pod is preempted,
evicted or deleted saves the step it is at; one whose machine dies has left its last checkpoint. The model is
a straight line, so that it trains on any CPU; what it does with checkpoints is what a large one does.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import kinetic_core

State = dict[str, Any]


class Checkpoints:
    """JSON states by step, below a directory or `gs://bucket/prefix`. One is there whole or not at all."""

    def __init__(self, location: str) -> None:
        self._folder = f"{location.rstrip('/')}/checkpoints"
        self._bucket = None
        if location.startswith("gs://"):
            from google.cloud import storage

            bucket, _, self._folder = self._folder.removeprefix("gs://").partition("/")
            self._bucket = storage.Client().bucket(bucket)

    def save(self, state: State) -> None:
        """Write a state under its step."""
        name, text = f"{state['step']:08d}.json", json.dumps(state)
        if self._bucket is not None:
            self._bucket.blob(f"{self._folder}/{name}").upload_from_string(text)
            return
        Path(self._folder).mkdir(parents=True, exist_ok=True)
        fresh = Path(self._folder, f".{name}.part")
        fresh.write_text(text)
        fresh.replace(Path(self._folder, name))

    def latest(self) -> State | None:
        """The state with the highest step, None if there is none yet."""
        if self._bucket is not None:
            found = max(
                self._bucket.list_blobs(prefix=f"{self._folder}/"), key=lambda b: b.name, default=None
            )
            return None if found is None else json.loads(found.download_as_bytes())
        files = sorted(Path(self._folder).glob("[0-9]*.json"))
        return json.loads(files[-1].read_text()) if files else None


@kinetic_core.run(accelerator="cpu", retries=2)
def train(steps: int, pause: float = 0.0) -> State:
    """Fit y = 3x + 1 by gradient descent; `pause` seconds a step make it as slow as a real one."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # no step is torn: the file says the same
    must_leave = Path(os.environ["KINETIC_PREEMPTED"])
    checkpoints = Checkpoints(os.environ["KINETIC_OUTPUT_DIR"])
    state = checkpoints.latest() or {"step": 0, "slope": 0.0, "offset": 0.0}
    begun_at = state["step"]
    print(f"begins at step {begun_at}", flush=True)
    points = [(x / 10, 3 * x / 10 + 1) for x in range(-10, 11)]
    for step in range(begun_at, steps):
        errors = [state["slope"] * x + state["offset"] - y for x, y in points]
        slope = state["slope"] - 0.5 * sum(e * x for e, (x, _) in zip(errors, points, strict=True)) / 21
        state = {"step": step + 1, "slope": slope, "offset": state["offset"] - 0.5 * sum(errors) / 21}
        time.sleep(pause)
        is_leaving = must_leave.exists()
        if is_leaving or state["step"] % 10 == 0 or state["step"] == steps:
            checkpoints.save(state)
        if is_leaving:
            print(f"told to leave at step {state['step']}", flush=True)
            raise SystemExit("told to leave")  # what is returned would be the job's value
    return {**state, "begun_at": begun_at}


if __name__ == "__main__":
    handle = train.run_async(200)
    print(handle.result(stream_logs=True))
    print(handle.outputs())
    handle.outputs().download("checkpoints", "*00000200.json")
