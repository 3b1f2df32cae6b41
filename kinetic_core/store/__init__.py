"""The object store: Cloud Storage, or a directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from kinetic_core.connections import Connections
    from kinetic_core.store.protocol import ObjectStore


def open_store(place: str, connections: Connections) -> ObjectStore:
    """Open the store at `gs://bucket/prefix`, `file:///directory` or a path, with a client's credentials."""
    if place.startswith("gs://"):
        from kinetic_core.store.gcs import GcsObjectStore

        return GcsObjectStore.at(place, connections)
    from kinetic_core.store.directory import DirectoryObjectStore

    is_uri = place.startswith("file://")
    return DirectoryObjectStore(Path(unquote(place.removeprefix("file://")) if is_uri else place))
