"""What of a call is replaced while it is pickled: data and other jobs' values (ADR 0003)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kinetic_core.data.data import Data
from kinetic_core.lifecycle.references import ResultReference
from kinetic_core.packaging.tree import StoredTree, store_data
from kinetic_core.storage.protocol import ObjectStore


class Substitutes:
    """The persistent ids of one packing.

    Until `store` has been called, data is only noted, so that a call which cannot be pickled is refused
    before anything is stored.
    """

    def __init__(self) -> None:
        self.found: dict[str, Data] = {}
        self._stored: dict[str, StoredTree] = {}

    def __call__(self, obj: Any) -> tuple[Any, ...] | None:
        """What stands for an object in a pickle."""
        kind = type(obj)
        if kind is Data:
            self.found[obj.path] = obj
            stored = self._stored.get(obj.path)
            return "data", stored.sha256 if stored else "", None if obj.is_dir else Path(obj.path).name
        if kind is ResultReference:
            return "result", obj.store_uri, obj.object_name, obj.sha256
        return None

    @property
    def is_complete(self) -> bool:
        """Whether everything found so far is stored, so that pickles made now are final."""
        return self.found.keys() <= self._stored.keys()

    def note(self, data: Iterable[Data]) -> None:
        """Add data that is not in a pickle: volumes."""
        self.found |= {item.path: item for item in data}

    def paths(self) -> list[Path]:
        """Where the data lies; it is no part of the project's tree."""
        return [Path(path) for path in self.found]

    def store(self, store: ObjectStore, cache: Path) -> None:
        """Store what was found and is not stored yet."""
        for path in self.found.keys() - self._stored.keys():
            self._stored[path] = store_data(Path(path), store, cache=cache)

    @property
    def size(self) -> int:
        """Bytes of all data that is stored."""
        return sum(tree.size for tree in self._stored.values())

    def tree(self, data: Data) -> str:
        """The tree of stored data."""
        return self._stored[data.path].sha256
