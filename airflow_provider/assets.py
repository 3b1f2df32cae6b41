"""What a job left in `KINETIC_OUTPUT_DIR`, told to Airflow as events of the task's outlets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, AssetAlias

from kinetic_core.lifecycle.outputs import find_outputs
from kinetic_core.model.job import JobReference


def publish(reference: JobReference, digest: str, outlets: Iterable[Any], outlet_events: Any) -> None:
    """Complete the events that Airflow makes of a task's outlets when it succeeds.

    An Asset's event says which job made it and where its outputs are. An AssetAlias becomes an event of the
    Asset whose URI is the output directory. The extra: `job`, `uri`, `files`, `bytes`, and `digest`, that
    of the job's outcome. Raises StoreError if the outputs cannot be listed.
    """
    found = [each for each in outlets if isinstance(each, Asset | AssetAlias)]
    if not found:
        return
    outputs = find_outputs(reference)
    place = outputs.location
    uri = place if "://" in place else Path(place).as_uri()
    extra = {
        "job": reference.job_id,
        "uri": uri,
        "files": len(outputs),
        "bytes": sum(file.size for file in outputs),
        "digest": digest,
    }
    for outlet in found:
        if isinstance(outlet, AssetAlias):
            outlet_events[outlet].add(Asset(uri), extra=extra)
        else:
            outlet_events[outlet].extra.update(extra)
