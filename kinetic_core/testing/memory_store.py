"""An object store in memory, for tests: the same promises as the real ones, and faults on request."""

from __future__ import annotations

import hashlib
import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import BinaryIO

from kinetic_core._runner.store import SinkType
from kinetic_core.errors import InvalidRequest, ObjectNotFound, StoreRefused
from kinetic_core.store.protocol import ObjectInfo, check_name, matches


class MemoryObjectStore:
    """Objects in a dict.

    `fault(operation, name)` is called before every operation and may raise what the store should fail
    with; operations are `create`, `read`, `find`, `list`, `delete`. `requests` counts them all.
    """

    def __init__(self, uri: str = "memory://store", fault: Callable[[str, str], None] | None = None) -> None:
        self._uri = uri
        self.fault = fault or (lambda _operation, _name: None)
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._lock = threading.Lock()
        self.requests: list[tuple[str, str]] = []
        self._frozen = False
        self.refused: list[str] = []
        """Writes that came while the store was frozen: operation and name."""

    def freeze(self) -> None:
        """Refuse every write from now on, with StoreRefused."""
        self._frozen = True

    @property
    def uri(self) -> str:
        return self._uri

    def create_if_absent(
        self, name: str, content: bytes | Path, metadata: Mapping[str, str] | None = None
    ) -> bool:
        self._enter("create", name)
        body = content if isinstance(content, bytes) else content.read_bytes()
        md5 = hashlib.md5(body, usedforsecurity=False).hexdigest()
        with self._lock:
            if name in self._objects:
                return False
            generation = str(len(self.requests))
            info = ObjectInfo(name, len(body), time.time(), dict(metadata or {}), generation, md5)
            self._objects[name] = (body, info)
        return True

    def read(self, name: str) -> bytes:
        self._enter("read", name)
        try:
            return self._objects[name][0]
        except KeyError:
            raise ObjectNotFound(f"cannot read {self.uri}/{name}: there is no such object") from None

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        return self.read(name)[offset : offset + size]

    def download(self, name: str, new_sink: Callable[[], SinkType]) -> SinkType:
        sink = new_sink()
        sink.write(self.read(name))
        return sink

    def open(self, name: str) -> BinaryIO:
        return io.BytesIO(self.read(name))

    def find(self, name: str) -> ObjectInfo | None:
        self._enter("find", name)
        return self._objects[name][1] if name in self._objects else None

    def present(self, names: Sequence[str]) -> Set[str]:
        for name in names[:1]:
            self._enter("find", name)
        return {name for name in names if name in self._objects}

    def list(self, prefix: str, pattern: str = "", since: str = "") -> Iterator[ObjectInfo]:
        self._enter("list", prefix)
        names = [name for name in sorted(self._objects) if name.startswith(prefix) and name >= since]
        yield from (self._objects[name][1] for name in names if matches(name, pattern))

    def delete(self, name: str) -> bool:
        self._enter("delete", name)
        return self._objects.pop(name, None) is not None

    def delete_many(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)

    def delete_seen(self, seen: Sequence[ObjectInfo]) -> None:
        for info in seen:
            if info.name in self._objects and self._objects[info.name][1].generation == info.generation:
                self.delete(info.name)

    def delete_all(self, prefix: str) -> int:
        if not prefix.endswith("/"):
            raise InvalidRequest(f"prefix {prefix!r} must end with '/': 'jobs/a' would also match 'jobs/ab'")
        names = [info.name for info in self.list(prefix)]
        return sum(self.delete(name) for name in names)

    def _enter(self, operation: str, name: str) -> None:
        self.requests.append((operation, name))
        if operation != "list":
            check_name(name)
        if self._frozen and operation in ("create", "delete"):
            self.refused.append(f"{operation} {name}")
            raise StoreRefused(f"cannot {operation} {self.uri}/{name}: the store is frozen")
        self.fault(operation, name)
