"""The object store of the local backend: a directory.

An object is a file of the same relative name. A write goes to a temporary file first and is then
linked to its name, which the file system does once or not at all: that is what makes `create`
create-only between processes.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import BinaryIO

from kinetic_core._runner.wire import Malformed, document
from kinetic_core.errors import InvalidRequest, ObjectExists, ObjectNotFound, StoreError, StoreFull
from kinetic_core.store.protocol import ObjectInfo, SinkType, matches

_TEMPORARY = ".tmp"
_METADATA = ".metadata"
_PIECE_BYTES = 1 << 20
_RESERVED = (_TEMPORARY, _METADATA)
_counter = itertools.count()


class DirectoryObjectStore:
    """An `ObjectStore` in a directory, made when first written to, readable by its owner only."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))  # noqa: PTH100  resolve() would follow the user's links

    @property
    def uri(self) -> str:
        return self.root.as_uri()

    def path(self, name: str) -> Path:
        """Where an object of this name lies, whether or not it exists."""
        parts = name.split("/")
        if not name or any(part in ("", ".", "..") for part in parts) or parts[0] in _RESERVED:
            raise InvalidRequest(f"object name {name!r} must be relative, without empty or '..' parts")
        return self.root.joinpath(*parts)

    def create(self, name: str, content: bytes | Path, metadata: Mapping[str, str] | None = None) -> None:
        target = self.path(name)
        temporary = self._temporary()
        try:
            try:
                self._write(temporary, content)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(temporary, target)
                if metadata:
                    self._write_metadata(name, metadata)
            finally:
                temporary.unlink(missing_ok=True)
        except FileExistsError as exc:
            raise ObjectExists(f"{self.uri}/{name} exists already") from exc
        except OSError as exc:
            raise translated(exc, f"cannot store {self.uri}/{name}") from exc

    def read(self, name: str) -> bytes:
        try:
            return self.path(name).read_bytes()
        except OSError as exc:
            raise translated(exc, f"cannot read {self.uri}/{name}") from exc

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        try:
            with self.path(name).open("rb") as stream:
                stream.seek(offset)
                return stream.read(size)
        except OSError as exc:
            raise translated(exc, f"cannot read {self.uri}/{name}") from exc

    def download(self, name: str, new_sink: Callable[[], SinkType]) -> SinkType:
        sink = new_sink()
        with self.open(name) as stream:
            while piece := self._piece(stream, name):
                sink.write(piece)
        return sink

    def _piece(self, stream: BinaryIO, name: str) -> bytes:
        try:
            return stream.read(_PIECE_BYTES)
        except OSError as exc:
            raise translated(exc, f"cannot read {self.uri}/{name}") from exc

    def open(self, name: str) -> BinaryIO:
        try:
            return self.path(name).open("rb")
        except OSError as exc:
            raise translated(exc, f"cannot read {self.uri}/{name}") from exc

    def find(self, name: str) -> ObjectInfo | None:
        try:
            facts = self.path(name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise translated(exc, f"cannot look at {self.uri}/{name}") from exc
        generation = f"{facts.st_ino}-{facts.st_mtime_ns}"
        return ObjectInfo(name, facts.st_size, facts.st_mtime, self._metadata(name), generation)

    def present(self, names: Sequence[str]) -> Set[str]:
        return {name for name in names if self.find(name) is not None}

    def list(self, prefix: str, pattern: str = "") -> Iterator[ObjectInfo]:
        folder, _, _ = prefix.rpartition("/")
        start = self.path(folder) if folder else self.root
        for name in sorted(self._names(start)):
            if name.startswith(prefix) and matches(name, pattern) and (info := self.find(name)) is not None:
                yield info

    def delete(self, name: str) -> bool:
        try:
            self.path(name).unlink()
            (self.root / _METADATA / name).unlink(missing_ok=True)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as exc:
            raise translated(exc, f"cannot delete {self.uri}/{name}") from exc
        return True

    def delete_many(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)

    def delete_seen(self, seen: Sequence[ObjectInfo]) -> None:
        for info in seen:
            now = self.find(info.name)
            if now is not None and now.generation == info.generation:
                self.delete(info.name)

    def delete_all(self, prefix: str) -> int:
        if not prefix.endswith("/"):
            raise InvalidRequest(f"prefix {prefix!r} must end with '/': 'jobs/a' would also match 'jobs/ab'")
        folder = self.path(prefix[:-1])
        count = sum(1 for _ in self._names(folder))
        for tree in (folder, self.root / _METADATA / prefix[:-1]):
            if tree.is_dir():
                shutil.rmtree(tree)
        return count

    def _write(self, temporary: Path, content: bytes | Path) -> None:
        self.root.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.root.mkdir(exist_ok=True, mode=0o700)
        temporary.parent.mkdir(exist_ok=True)
        with temporary.open("xb") as stream:
            if isinstance(content, bytes):
                stream.write(content)
            else:
                shutil.copyfile(content, temporary)

    def _names(self, start: Path) -> Iterator[str]:
        for folder, folders, files in os.walk(start):
            if Path(folder) == self.root:
                folders[:] = [name for name in folders if name not in _RESERVED]
            base = os.path.relpath(folder, self.root).replace(os.sep, "/")
            yield from (name if base == "." else f"{base}/{name}" for name in files)

    def _temporary(self) -> Path:
        return self.root / _TEMPORARY / f"{os.getpid()}-{threading.get_ident()}-{next(_counter)}"

    def _write_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        """Whole: a writer that is killed half-way leaves none, rather than what nobody can read."""
        import json

        target, temporary = self.root / _METADATA / name, self._temporary()
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(dict(metadata), sort_keys=True))
        temporary.replace(target)

    def _metadata(self, name: str) -> Mapping[str, str]:
        target = self.root / _METADATA / name
        try:
            told = document(target.read_bytes())
        except (OSError, Malformed):
            return {}  # it says less, as that of an object that another program has stored
        return {str(key): str(value) for key, value in told.items()}


def translated(exc: OSError, what: str) -> StoreError:
    """The store error that tells the caller what to do about a failed system call."""
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"{what}: the disk is full. Free space and call again")
    if exc.errno in (errno.ENOENT, errno.ENOTDIR):
        return ObjectNotFound(f"{what}: there is no such object")
    return StoreError(f"{what}: {exc.strerror or exc}")
