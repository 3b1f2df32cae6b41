"""Object store as the runner sees it: read, create once, and a local path of a large object."""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, Protocol, TypeVar

from .sizes import shown_size

_PIECE = 1 << 20


class StoreUnavailable(OSError):
    """Outage of the store: it cannot be written or read now, but perhaps by another attempt."""


class SourceUnreachable(OSError):
    """Source of a job's data that cannot be reached from where the job runs, by another attempt neither."""


class MissingObject(LookupError):
    """Missing object of the job in the store."""


class ObjectTooLarge(ValueError):
    """Object that is larger than any that Kinetic stores by its name; the message does not name it."""


class Content:
    """Content of an object to be stored: bytes, then those of a file from an offset on, read in pieces."""

    def __init__(self, head: bytes, path: str = "", offset: int = 0) -> None:
        self._head, self._path, self._offset = head, path, offset
        self._size = len(head) + (os.stat(path).st_size - offset if path else 0)

    def __len__(self) -> int:
        return self._size

    def read(self, start: int, size: int) -> bytes:
        """Read bytes from an offset on; fewer at the end."""
        return b"".join(self.pieces(start, start + size))

    def pieces(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from an offset up to another one, the end unless it is given, piece by piece."""
        end = self._size if end is None else min(end, self._size)
        for at in range(start, min(end, len(self._head)), _PIECE):
            yield self._head[at : min(at + _PIECE, end)]
        if end > len(self._head) and start < end:
            at = max(0, start - len(self._head))
            with open(self._path, "rb") as stream:
                stream.seek(self._offset + at)
                while piece := stream.read(min(_PIECE, end - len(self._head) - at)):
                    yield piece
                    at += len(piece)


class Sink(Protocol):
    """Sink of the bytes of an object, piece by piece."""

    def write(self, content: bytes, /) -> int:
        """Take a piece; return its number of bytes."""


SinkType = TypeVar("SinkType", bound=Sink)


class ReadableStore(Protocol):
    """Store from which objects are read piece by piece."""

    def download(self, name: str, new_sink: Callable[[], SinkType]) -> SinkType:
        """Write the object to a sink and return it; each new beginning uses a new sink."""


class Store(Protocol):
    """Operations of an object store that the runner needs."""

    uri: str

    def read(self, name: str) -> bytes:
        """Read the whole object. Raises MissingObject."""

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        """Read a range of an object; fewer bytes at its end. Raises MissingObject."""

    def download(self, name: str, new_sink: Callable[[], SinkType]) -> SinkType:
        """Write the object to a sink and return it; each new beginning uses a new sink.

        Raises MissingObject.
        """

    def create_if_absent(
        self, name: str, content: bytes | Content, metadata: Mapping[str, str] | None = None
    ) -> bool:
        """Store a new object; return False if the name is taken. Raises StoreUnavailable.

        `metadata` is for what is listed, or would cost a request to read.
        """

    def replace(self, name: str, content: bytes | Content, metadata: Mapping[str, str] | None = None) -> None:
        """Store an object, replacing one of that name; otherwise as `create`."""

    def fetch(self, name: str, most: int) -> str:
        """Return a local file with the content of an object of at most `most` bytes, for reading only.

        Raises MissingObject, ObjectTooLarge.
        """

    def age(self, name: str) -> float:
        """Return the seconds since an object was stored, by the store's clock: a machine's may be wrong.

        Raises MissingObject.
        """

    def hurried(self) -> AbstractContextManager[None]:
        """Shorten, inside the context, the patience with a silent store from minutes to seconds.

        For callers that have other things to watch, handle StoreUnavailable, and try again.
        """


class DirectoryStore:
    """Store in a directory: the local backend's.

    A write goes to a temporary file first, which is then linked to its name: the file system does that once
    or not at all.
    """

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
            raise MissingObject(f"cannot read {self.uri}/{name}: there is no such object") from exc
        except OSError as exc:
            raise StoreUnavailable(exc.errno, f"cannot read {self.uri}/{name}: {exc.strerror}") from exc

    def download(self, name: str, new_sink: Callable[[], SinkType]) -> SinkType:
        sink = new_sink()
        try:
            with open(self._path(name), "rb") as stream:
                while piece := stream.read(_PIECE):
                    sink.write(piece)
        except FileNotFoundError as exc:
            raise MissingObject(f"cannot read {self.uri}/{name}: there is no such object") from exc
        except OSError as exc:
            raise StoreUnavailable(exc.errno, f"cannot read {self.uri}/{name}: {exc.strerror}") from exc
        return sink

    def create_if_absent(
        self, name: str, content: bytes | Content, metadata: Mapping[str, str] | None = None
    ) -> bool:
        del metadata  # reading a file costs nothing
        return self._place(name, content, os.link)

    def replace(self, name: str, content: bytes | Content, metadata: Mapping[str, str] | None = None) -> None:
        del metadata
        self._place(name, content, os.replace)

    def _place(self, name: str, content: bytes | Content, put: Callable[[str, str], None]) -> bool:
        """Write a file aside and `put` it in its place; return False if `put` finds the name taken."""
        target = self._path(name)
        temporary = os.path.join(self.root, ".tmp", f"runner-{os.getpid()}-{os.urandom(4).hex()}")
        try:
            os.stat(self.root)  # or one that was removed would be made anew
            os.makedirs(os.path.dirname(temporary), exist_ok=True)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                with open(temporary, "xb") as stream:
                    stream.writelines((content,) if isinstance(content, bytes) else content.pieces())
                put(temporary, target)
            finally:
                if os.path.exists(temporary):
                    os.unlink(temporary)
        except FileExistsError:
            return False
        except OSError as exc:
            full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
            removed = isinstance(exc, FileNotFoundError)
            why = "the disk is full" if full else "the store was removed" if removed else exc.strerror
            raise StoreUnavailable(exc.errno, f"cannot store {self.uri}/{name}: {why}") from exc
        return True

    def fetch(self, name: str, most: int) -> str:
        path = self._path(name)
        if not os.path.exists(path):
            raise MissingObject(f"{self.uri}/{name} is not there")
        if os.path.getsize(path) > most:
            raise too_large(most)
        return path

    def age(self, name: str) -> float:
        try:
            return time.time() - os.stat(self._path(name)).st_mtime
        except FileNotFoundError as exc:
            raise MissingObject(f"cannot read {self.uri}/{name}: there is no such object") from exc
        except OSError as exc:
            raise StoreUnavailable(exc.errno, f"cannot look at {self.uri}/{name}: {exc.strerror}") from exc

    def hurried(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _path(self, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/"):
            raise MissingObject(f"{name!r} is not the name of an object")
        return os.path.join(self.root, *name.split("/"))


class Limited(Generic[SinkType]):
    """Sink that passes at most `most` bytes on to `sink`. Raises ObjectTooLarge."""

    def __init__(self, sink: SinkType, most: int) -> None:
        self.sink = sink
        self._most, self._taken = most, 0

    def write(self, content: bytes, /) -> int:
        self._taken += len(content)
        if self._taken > self._most:
            raise too_large(self._most)
        return self.sink.write(content)


def too_large(most: int) -> ObjectTooLarge:
    """Build the error for an object of more than `most` bytes."""
    return ObjectTooLarge(f"it is larger than {shown_size(most)}")


def read_at_most(store: ReadableStore, name: str, size: int) -> bytes:
    """Read a whole object of at most `size` bytes. Raises ObjectTooLarge, and as the store does.

    For objects that are verified only when they are in memory: who writes the bucket sets their size.
    """
    return store.download(name, lambda: Limited(io.BytesIO(), size)).sink.getvalue()


def exists(store: Store, name: str) -> bool:
    """Return whether an object exists, whatever its content. Raises StoreUnavailable if that is unknown."""
    try:
        store.read_range(name, 0, 1)
    except LookupError:
        return False
    return True


def open_store(uri: str) -> Store:
    """Open the store of a URI. Raises ValueError for a scheme this runner does not know."""
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
