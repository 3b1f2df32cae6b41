"""What a `gs://` URI of the user's leads to, as far as it can be seen from here."""

from __future__ import annotations

from enum import Enum

from kinetic_core.configuration import Settings
from kinetic_core.errors import ConfigurationError, StoreError
from kinetic_core.storage.gcs import GcsObjectStore


class Sight(Enum):
    """What is at a URI. NOT_SEEN: this account may not look, or has no credentials; jobs may have."""

    THERE = "there"
    NOTHING = "nothing"
    DIRECTORY = "directory"
    NO_BUCKET = "no bucket"
    NOT_SEEN = "not seen"


def look(bucket: str, name: str, settings: Settings) -> Sight:
    """Look at an object, or at a prefix that ends with a slash or is empty. DIRECTORY: there is no such
    object, but there are some below it.

    Raises StoreError if the service cannot be reached.
    """
    from google.api_core import exceptions

    store = GcsObjectStore.at(bucket, settings)
    try:
        if name and not name.endswith("/"):
            if store.find(name) is not None:
                return Sight.THERE
            return Sight.DIRECTORY if _any(store, name + "/") else Sight.NOTHING
        return Sight.THERE if _any(store, name) else Sight.NOTHING
    except ConfigurationError as exc:
        return Sight.NO_BUCKET if isinstance(exc.__cause__, exceptions.NotFound) else Sight.NOT_SEEN
    except StoreError as exc:
        if isinstance(exc.__cause__, exceptions.Forbidden | exceptions.Unauthorized):
            return Sight.NOT_SEEN
        raise


def _any(store: GcsObjectStore, prefix: str) -> bool:
    return any(info.name != prefix for info in store.list(prefix))
