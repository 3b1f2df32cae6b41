"""What is in a test run's bucket."""

from __future__ import annotations

from kinetic_core.storage.gcs import GcsObjectStore


def stored(location: str, prefix: str) -> list[str]:
    """The names of objects there."""
    return [info.name for info in GcsObjectStore.at(location).list(prefix)]
