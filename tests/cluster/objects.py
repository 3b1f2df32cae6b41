"""What is in a test run's bucket and in its cluster."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from kinetic_core.store.gcs import GcsObjectStore


def stored(location: str, prefix: str) -> list[str]:
    """The names of objects there."""
    return [info.name for info in GcsObjectStore.at(location).list(prefix)]


def kubectl(*arguments: str, given: Any = None) -> Any:
    """What a command answers, as JSON."""
    done = subprocess.run(
        ["kubectl", *arguments, "-o", "json"],
        input=None if given is None else json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
