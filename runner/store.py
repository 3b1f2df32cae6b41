"""The object store as the runner sees it: read, create once, and a local path of a large object."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class StoreUnavailable(OSError):
    """The store cannot be written or read now; another attempt may find it well."""


class MissingObject(LookupError):
    """An object the job is made of is not in the store."""


class Store(Protocol):
    """The operations the runner needs."""

    uri: str

    def read(self, name: str) -> bytes:
        """The whole object. Raises MissingObject."""

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        """So many bytes of an object; fewer at its end. Raises MissingObject."""

    def create(self, name: str, content: bytes, state: str = "") -> bool:
        """Store a new object; False if the name is taken. Raises StoreUnavailable.

        `state` goes into the object's metadata where reading it instead would cost a request.
        """

    def replace(self, name: str, content: bytes) -> None:
        """Store an object whether there is one of that name or not. Raises StoreUnavailable."""

    def fetch(self, name: str) -> str:
        """A local file with the object's content, for reading only. Raises MissingObject."""

    def age(self, name: str) -> float:
        """Seconds since an object was stored, by the store's clock: those of machines may be wrong.

        Raises MissingObject.
        """

    def hurried(self) -> AbstractContextManager[None]:
        """Inside, a store that does not answer is given up after seconds instead of minutes. For who has
        others to look after, bears StoreUnavailable, and comes again.
        """


class DirectoryStore:
    """A directory: the local backend's store, written as `kinetic_core.storage.directory` writes it."""

    def __init__(self, uri: str, root: str) -> None:
        self.uri = uri
        self.root = root

    def read(self, name: str) -> bytes:
        return self.read_range(name, 0, -1)

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        try:
            with open(self._path(name), "rb") as stream:
                stream.seek(offset)
                return stream.read(size)
        except FileNotFoundError as exc:
            raise MissingObject(f"{self.uri}/{name} is not there") from exc
        except OSError as exc:
            raise StoreUnavailable(exc.errno, f"cannot read {self.uri}/{name}: {exc.strerror}") from exc

    def create(self, name: str, content: bytes, state: str = "") -> bool:
        del state  # reading a file costs nothing
        return self._place(name, content, os.link)

    def replace(self, name: str, content: bytes) -> None:
        self._place(name, content, os.replace)

    def _place(self, name: str, content: bytes, put: Callable[[str, str], None]) -> bool:
        """Write a file aside and `put` it there; False if `put` finds the name taken."""
        target = self._path(name)
        temporary = os.path.join(self.root, ".tmp", f"runner-{os.getpid()}-{os.urandom(4).hex()}")
        if not os.path.isdir(self.root):
            raise StoreUnavailable(errno.ENOENT, f"cannot store {self.uri}/{name}: the store was removed")
        try:
            os.makedirs(os.path.dirname(temporary), exist_ok=True)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                with open(temporary, "xb") as stream:
                    stream.write(content)
                put(temporary, target)
            finally:
                if os.path.exists(temporary):
                    os.unlink(temporary)
        except FileExistsError:
            return False
        except OSError as exc:
            full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
            why = "the disk is full" if full else exc.strerror
            raise StoreUnavailable(exc.errno, f"cannot store {self.uri}/{name}: {why}") from exc
        return True

    def fetch(self, name: str) -> str:
        path = self._path(name)
        if not os.path.exists(path):
            raise MissingObject(f"{self.uri}/{name} is not there")
        return path

    def age(self, name: str) -> float:
        try:
            return time.time() - os.stat(self._path(name)).st_mtime
        except FileNotFoundError as exc:
            raise MissingObject(f"{self.uri}/{name} is not there") from exc

    def hurried(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _path(self, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/"):
            raise MissingObject(f"{name!r} is not the name of an object")
        return os.path.join(self.root, *name.split("/"))


def exists(store: Store, name: str) -> bool:
    """Whether an object is there, whatever is in it. Raises StoreUnavailable if that cannot be told."""
    try:
        store.read(name)
    except LookupError:
        return False
    return True


def open_store(uri: str) -> Store:
    """The store of that URI. Raises ValueError for one this runner cannot read."""
    if uri.startswith("file:///"):
        return DirectoryStore(uri, _unquoted(uri.removeprefix("file://")))
    if uri.startswith("gs://"):
        from .gcs import GcsStore

        return GcsStore(uri)
    raise ValueError(f"this runner cannot read the store {uri!r}")


def _unquoted(path: str) -> str:
    if "%" not in path:
        return path
    from urllib.parse import unquote

    return unquote(path)
