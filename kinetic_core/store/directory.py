"""The object store of the local backend: a directory.

An object is a file of the same relative name, read and written by the runner's client (`runner/store.py`).
Metadata, lists and deletes are here.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from kinetic_core._runner.store import Content, DirectoryStore, MissingObject, SinkType, StoreUnavailable
from kinetic_core._runner.wire import Malformed, document
from kinetic_core.errors import InvalidRequest, ObjectNotFound, StoreError, StoreFull
from kinetic_core.store.protocol import ObjectInfo, check_name, matches

_TEMPORARY = ".tmp"
_METADATA = ".metadata"
_RESERVED = (_TEMPORARY, _METADATA)
_REMOVALS = 5
"""Times that a directory is removed while others write there. What they have written after that stays."""


def _remove_directory(folder: Path) -> None:
    """Remove a directory, if it is one, though others remove it too, or write there, at the same time."""
    for _ in range(_REMOVALS):
        if not folder.is_dir():
            return
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise
        else:
            return


class DirectoryObjectStore:
    """An `ObjectStore` in a directory, made when first written to, readable by its owner only."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))  # noqa: PTH100  resolve() would follow the user's links

    @property
    def uri(self) -> str:
        return self.root.as_uri()

    def path(self, name: str) -> Path:
        """Where an object of this name lies, whether or not it exists."""
        check_name(name)
        first, *others = name.split("/")
        if first in _RESERVED:
            raise InvalidRequest(f"object name {name!r} is one of the store's own")
        return self.root.joinpath(first, *others)

    def create_if_absent(
        self, name: str, content: bytes | Path, metadata: Mapping[str, str] | None = None
    ) -> bool:
        with self._files("store", name) as files:
            self._make_root()
            whole = content if isinstance(content, bytes) else Content(b"", str(content))
            is_new = files.create_if_absent(name, whole)
            if is_new and metadata:
                self._write_metadata(name, metadata)
        return is_new

    def read(self, name: str) -> bytes:
        with self._files("read", name) as files:
            return files.read(name)

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        with self._files("read", name) as files:
            return files.read_range(name, offset, size)

    def download(self, name: str, new_sink: Callable[[], SinkType]) -> SinkType:
        with self._files("read", name) as files:
            return files.download(name, new_sink)

    def open(self, name: str) -> BinaryIO:
        with self._files("read", name):
            return self.path(name).open("rb")

    def find(self, name: str) -> ObjectInfo | None:
        try:
            with self._files("look at", name):
                facts = self.path(name).stat()
        except ObjectNotFound:
            return None
        return self._info(name, facts)

    def present(self, names: Sequence[str]) -> Set[str]:
        return {name for name in names if self.find(name) is not None}

    def list(self, prefix: str, pattern: str = "", since: str = "") -> Iterator[ObjectInfo]:
        folder, _, head = prefix.rpartition("/")
        start = self.path(folder) if folder else self.root
        for name in sorted(self._names(start, head)):
            is_asked_for = name.startswith(prefix) and matches(name, pattern) and name >= since
            if is_asked_for and (info := self._listed(name)) is not None:
                yield info

    def delete(self, name: str) -> bool:
        try:
            with self._files("delete", name):
                self.path(name).unlink()
                (self.root / _METADATA / name).unlink(missing_ok=True)
        except ObjectNotFound:
            return False
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
            _remove_directory(tree)
        return count

    def _listed(self, name: str) -> ObjectInfo | None:
        """The facts of an object, as `find`, by a name that the directory itself has given."""
        try:
            facts = os.stat(f"{self.root}/{name}")  # noqa: PTH116  of thousands, a Path takes most of the time
        except OSError:
            return self.find(name)
        return self._info(name, facts)

    def _info(self, name: str, facts: os.stat_result) -> ObjectInfo:
        generation = f"{facts.st_ino}-{facts.st_mtime_ns}"
        return ObjectInfo(name, facts.st_size, facts.st_mtime, self._metadata(name), generation)

    @contextmanager
    def _files(self, verb: str, name: str) -> Iterator[DirectoryStore]:
        """The runner's client for what is done with an object, and errors as Kinetic's."""
        self.path(name)
        try:
            yield DirectoryStore(self.uri, str(self.root))
        except MissingObject as exc:
            raise ObjectNotFound(str(exc)) from exc
        except OSError as exc:
            cause = exc.__cause__ if isinstance(exc, StoreUnavailable) else exc
            raise translated(cast("OSError", cause), f"cannot {verb} {self.uri}/{name}") from exc

    def _make_root(self) -> None:
        try:
            self.root.stat()
        except FileNotFoundError:
            self.root.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.root.mkdir(exist_ok=True, mode=0o700)

    def _names(self, start: Path, head: str = "") -> Iterator[str]:
        """Yield the names of objects in a folder, and below it in folders whose names begin with `head`."""

        def unread(error: OSError) -> None:
            """Raise unless the folder is not there, or any more: then it has no objects."""
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise translated(error, f"cannot list {self.uri}") from error

        for folder, folders, files in os.walk(start, onerror=unread):
            if Path(folder) == self.root:
                folders[:] = [name for name in folders if name not in _RESERVED]
            if head and folder == os.fspath(start):
                folders[:] = [name for name in folders if name.startswith(head)]
            base = os.path.relpath(folder, self.root).replace(os.sep, "/")
            yield from (name if base == "." else f"{base}/{name}" for name in files)

    def _write_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        """Whole: a writer that is killed half-way leaves none, rather than what nobody can read."""
        import json

        target = self.root / _METADATA / name
        temporary = self.root / _TEMPORARY / f"metadata-{os.getpid()}-{secrets.token_hex(4)}"
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(dict(metadata), sort_keys=True))
        temporary.replace(target)

    def _metadata(self, name: str) -> Mapping[str, str]:
        try:
            with open(f"{self.root}/{_METADATA}/{name}", "rb") as stream:  # noqa: PTH123  as in `_listed`
                told = document(stream.read())
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
