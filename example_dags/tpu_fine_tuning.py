"""Fine-tuning on a spot TPU that may be taken away at any moment: the job goes on from its last checkpoint.

Every attempt of a job has the same `KINETIC_OUTPUT_DIR`. A preempted pod is replaced inside the job: the
task stays deferred, its try number stays, and no retry of Airflow's is spent. Set the parameter `rehearse`
to a step and the first attempt dies there, so that you can watch it happen.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, task

CHECKPOINT = "checkpoint.json"


def save(state: dict[str, Any]) -> None:
    """Replace the checkpoint, whole or not at all. For a real model orbax or `torch.save` does this."""
    place, text = os.environ["KINETIC_OUTPUT_DIR"], json.dumps(state)
    if place.startswith("gs://"):
        blob_of(place).upload_from_string(text)
        return
    fresh = Path(place, f"{CHECKPOINT}.part")
    fresh.parent.mkdir(parents=True, exist_ok=True)
    fresh.write_text(text)
    fresh.replace(Path(place, CHECKPOINT))


def load() -> dict[str, Any]:
    """The checkpoint; where training begins if there is none."""
    place, untrained = os.environ["KINETIC_OUTPUT_DIR"], {"step": 0, "weight": 0.0}
    if place.startswith("gs://"):
        blob = blob_of(place)
        return json.loads(blob.download_as_text()) if blob.exists() else untrained
    file = Path(place, CHECKPOINT)
    return json.loads(file.read_text()) if file.exists() else untrained


def blob_of(place: str) -> Any:
    """The checkpoint in a bucket."""
    from google.cloud import storage

    bucket, _, folder = place.removeprefix("gs://").partition("/")
    return storage.Client().bucket(bucket).blob(f"{folder}/{CHECKPOINT}")


@dag(
    schedule=None,
    catchup=False,
    tags=["kinetic"],
    params={"steps": Param(60, type="integer"), "rehearse": Param(None, type=["null", "integer"])},
)
def tpu_fine_tuning():
    """Fine-tune, then look at what came out."""

    @task.kinetic(accelerator="tpu-v6e-8", spot=True, job_retries=1, timeout=6 * 3600)
    def tune(params: dict[str, Any]) -> dict[str, Any]:
        """Pull one weight towards 3; a large model does the same with more of them."""
        state = load()
        began_at = state["step"]
        print(f"begins at step {began_at}", flush=True)
        for step in range(began_at, params["steps"]):
            state = {"step": step + 1, "weight": state["weight"] + 0.2 * (3.0 - state["weight"])}
            if state["step"] % 10 == 0:
                save(state)
            if state["step"] == params["rehearse"] and began_at == 0:
                os._exit(1)  # no exception, no goodbye: as a machine goes
        save(state)
        return {**state, "began_at": began_at}

    @task
    def report(state: dict[str, Any]) -> str:
        """One line for the run."""
        trained = f"weight {state['weight']:.3f} after {state['step']} steps"
        return f"{trained}, the last attempt from {state['began_at']}"

    report(tune())


tpu_fine_tuning()
