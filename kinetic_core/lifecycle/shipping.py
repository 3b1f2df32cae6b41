"""What of a call is replaced while it is pickled: data and other jobs' values (ADR 0003)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinetic_core.data.data import Data
from kinetic_core.lifecycle.data_sources import Shop, StoredData, check_data, store
from kinetic_core.lifecycle.references import ResultReference
from kinetic_core.model.job import BucketMount


class Recorder:
    """A way to ask substitutes that keeps which data one pickling found."""

    def __init__(self, substitutes: Substitutes) -> None:
        self._substitutes = substitutes
        self.data: dict[Data, None] = {}

    def __call__(self, obj: Any) -> tuple[Any, ...] | None:
        """As the substitutes say."""
        if type(obj) is Data:
            self.data[obj] = None
        return self._substitutes(obj)


class Substitutes:
    """The persistent ids of one packing.

    Until `store` has been called, data is only noted, so that a call which cannot be pickled is refused
    before anything is stored.
    """

    def __init__(self) -> None:
        self.found: dict[Data, None] = {}
        self._stored: dict[Data, StoredData] = {}

    def __call__(self, obj: Any) -> tuple[Any, ...] | None:
        """What stands for an object in a pickle."""
        kind = type(obj)
        if kind is Data:
            self.found[obj] = None
            stored = self._stored.get(obj)
            return "data", stored.source if stored else None
        if kind is ResultReference:
            return "result", obj.store_uri, obj.object_name, obj.sha256
        return None

    @property
    def is_complete(self) -> bool:
        """Whether everything found so far is stored, so that pickles made now are final."""
        return self.found.keys() <= self._stored.keys()

    def note(self, data: Iterable[Data]) -> None:
        """Add data that is not in a pickle: volumes."""
        self.found |= dict.fromkeys(data)

    def paths(self) -> list[Path]:
        """Where the data of this machine lies; it is no part of the project's tree."""
        return [Path(data.path) for data in self.found if data.is_local]

    def check(self, project: str) -> None:
        """Refuse data that is not there, before anything is stored. Raises InvalidRequest, StoreError."""
        for data in self.found.keys() - self._stored.keys():
            check_data(data, project)

    @property
    def size(self) -> int:
        """Bytes of all data that is stored."""
        return sum(stored.size for stored in self._stored.values())

    def store(self, shop: Shop) -> tuple[str, ...]:
        """Store what was found and is not stored yet; notices about it."""
        notices: list[str] = []
        for data in [data for data in self.found if data not in self._stored]:
            self._stored[data] = store(data, shop)
            notices += [f"{data!r}: {notice}" for notice in self._stored[data].notices]
            if data.fuse and not shop.mounts:
                notices.append(f"{data!r} is copied, not mounted: nothing can be mounted here")
        return tuple(notices)

    def source(self, data: Data) -> dict[str, Any]:
        """The payload's source of stored data."""
        return self._stored[data].source

    def volume(self, mount: str, data: Data) -> tuple[dict[str, Any], BucketMount | None]:
        """The source of a volume, and its mount: a directory of a bucket is mounted where it is wanted."""
        stored = self._stored[data]
        if stored.mount is None or stored.source["file"] is not None:
            return stored.source, stored.mount
        return {**stored.source, "path": mount}, replace(stored.mount, path=mount)

    def mounts(self, found: Iterable[Data]) -> tuple[BucketMount, ...]:
        """The mounts that data in arguments needs."""
        return tuple(mount for data in found if (mount := self._stored[data].mount) is not None)
