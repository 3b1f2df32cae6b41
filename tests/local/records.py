"""What the local backend has on disk of a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kinetic_core
from kinetic_core.backends.local.layout import Layout
from kinetic_core.settings import read_settings


def record_of(handle: kinetic_core.JobHandle) -> dict[str, Any]:
    layout = Layout(str(read_settings().local_store))
    record: dict[str, Any] = json.loads(Path(layout.record("default", handle.job_id)).read_text())
    return record
