"""What every object store can do: the few operations jobs are built from.

Names are relative, slash-separated, never start with a slash and hold no `..`. Writes are whole: a
reader sees all of an object or none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, Protocol

from kinetic_core._runner.store import SinkType
from kinetic_core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object: its name, size in bytes, time of creation (Unix seconds) and metadata.

    `generation` is never that of another object by the same name. `md5` is the store's own checksum of the
    content, in hexadecimal; "" if the store has none.
    """

    name: str
    size: int
    created: float
    metadata: Mapping[str, str] = field(default_factory=dict)
    generation: str = ""
    md5: str = ""


def matches(name: str, pattern: str) -> bool:
    """Whether a name is one of a pattern of `ObjectStore.list`; every name is one of ""."""
    return not pattern or (name.count("/") == pattern.count("/") and fnmatchcase(name, pattern))


class ObjectStore(Protocol):
    """Where everything a job is made of and leaves behind is kept.

    Every operation raises `StoreError`, or one of its kinds: `ObjectNotFound`,
    `StoreRefused`, `StoreFull`.
    """

    @property
    def uri(self) -> str:
        """`file:///directory` or `gs://bucket/prefix`, without a trailing slash."""

    def create_if_absent(
        self, name: str, content: bytes | Path, metadata: Mapping[str, str] | None = None
    ) -> bool:
        """Store a new object from bytes or from a file; return False if the name is taken, by another's.

        A write whose answer was lost is repeated, and knows its own object. What several processes agree on
        is decided so: the first one's object stays, and the others read it.
        """

    def read(self, name: str) -> bytes:
        """The whole object."""

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        """So many bytes of an object; fewer at its end."""

    def download(self, name: str, new_sink: Callable[[], SinkType]) -> SinkType:
        """Write the object to a sink, which is returned; to a new one if what has arrived is damaged.

        Never holds more than a piece of it.
        """

    def open(self, name: str) -> BinaryIO:
        """A stream of the object; the caller closes it."""

    def find(self, name: str) -> ObjectInfo | None:
        """The object's facts, or None if there is none."""

    def present(self, names: Sequence[str]) -> Set[str]:
        """Those of these objects that are there; a request for each hundred."""

    def list(self, prefix: str, pattern: str = "", since: str = "") -> Iterator[ObjectInfo]:
        """Objects whose name starts with `prefix`, in name order.

        With a `pattern` only those whose whole name matches it; `*` stands for all but slashes. With the
        name `since` only that one and those that follow it.
        """

    def delete(self, name: str) -> bool:
        """Remove one object; False if it was not there."""

    def delete_many(self, names: Sequence[str]) -> None:
        """Remove those of these objects that are there, in few requests."""

    def delete_seen(self, seen: Sequence[ObjectInfo]) -> None:
        """Remove these objects as they were seen: what has been stored by their names since stays.

        Raises StoreError for one that cannot be removed.
        """

    def delete_all(self, prefix: str) -> int:
        """Remove every object below a prefix that ends with `/`; how many there were."""


def check_name(name: str) -> None:
    """Raise InvalidRequest for a name that could lead out of the store."""
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise InvalidRequest(f"object name {name!r} must be relative, without empty or '..' parts")
