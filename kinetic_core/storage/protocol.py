"""What every object store can do: the few operations jobs are built from.

Names are relative, slash-separated, never start with a slash and hold no `..`. Writes are whole: a
reader sees all of an object or none of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object: its name, size in bytes, time of creation (Unix seconds) and metadata."""

    name: str
    size: int
    created: float
    metadata: Mapping[str, str] = field(default_factory=dict)


def matches(name: str, pattern: str) -> bool:
    """Whether a name is one of a pattern of `ObjectStore.list`; every name is one of ""."""
    return not pattern or (name.count("/") == pattern.count("/") and fnmatchcase(name, pattern))


class ObjectStore(Protocol):
    """Where everything a job is made of and leaves behind is kept.

    Every operation raises `StoreError`, or one of its kinds: `ObjectNotFound`, `ObjectExists`,
    `StoreFull`.
    """

    @property
    def uri(self) -> str:
        """`file:///directory` or `gs://bucket/prefix`, without a trailing slash."""

    def create(self, name: str, content: bytes | Path, metadata: Mapping[str, str] | None = None) -> None:
        """Store a new object from bytes or from a file. Raises `ObjectExists` if the name is taken."""

    def read(self, name: str) -> bytes:
        """The whole object."""

    def open(self, name: str) -> BinaryIO:
        """A stream of the object; the caller closes it."""

    def find(self, name: str) -> ObjectInfo | None:
        """The object's facts, or None if there is none."""

    def list(self, prefix: str, pattern: str = "") -> Iterator[ObjectInfo]:
        """Objects whose name starts with `prefix`, in name order.

        With a `pattern` only those whose whole name matches it; `*` stands for all but slashes.
        """

    def delete(self, name: str) -> bool:
        """Remove one object; False if it was not there."""

    def delete_many(self, names: Sequence[str]) -> None:
        """Remove those of these objects that are there, in few requests."""

    def delete_all(self, prefix: str) -> int:
        """Remove every object below a prefix that ends with `/`; how many there were."""
