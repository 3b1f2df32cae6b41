"""Downloads of many files into a directory: side by side, in pieces, each verified, all of them or none.

Where the files come from (a bucket, a hub) is the caller's: it lists them and fetches ranges of bytes.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from .shared_cache import Content, SharedCache
from .sizes import shown_size
from .store import MissingObject
from .trees import is_plain
from .unpack import check_space

_THREADS = 16
_PIECE = 32 << 20
"""Bytes of a request: a small file takes one, a large one several at once."""
_CHUNK = 1 << 20


class DamagedDownload(OSError):
    """Downloaded content that differs from the source's size or digest."""


class _DiskFailed(Exception):
    """Failure of the local disk, for which the source is not asked again."""


class Item(NamedTuple):
    """File to download: its relative path, size in bytes and digest there (algorithm and hex) if known.

    `source` is passed to `fetch`; `git` is the algorithm of Git's blobs.
    """

    path: str
    size: int
    digest: tuple[str, str] | None
    source: str

    @property
    def content(self) -> Content | None:
        """Return the file's content by digest, if the digest is known."""
        return None if self.digest is None else Content(*self.digest, self.size)


Sink = Callable[[int, bytes], Any]
"""Sink of bytes and their offset: a repeated fetch may pass the same bytes twice."""
Fetch = Callable[[Item, int, int, Sink], None]
"""Function that passes a range of an item's bytes (offset, size) to a sink; called in threads."""


def download(
    what: str, items: list[Item], target: str, fetch: Fetch, cache: SharedCache | None = None
) -> None:
    """Fill the directory `target` with the items of `what`, as errors call it.

    A path that ends in a slash is an empty directory. Items whose digest is known are taken from a cache that
    has them, and kept there.

    Raises MissingObject if there are none, ValueError for paths that lead elsewhere or collide, OSError if
    the disk is too small (before anything is fetched) or an item does not arrive as it should.
    """
    if not items:
        raise MissingObject(f"{what} holds nothing")
    files = [item for item in items if not item.path.endswith("/")]
    _check_paths(what, items)
    os.makedirs(target, exist_ok=True)
    check_space(target, sum(item.size for item in files))
    for folder in {os.path.dirname(item.path) for item in items}:
        os.makedirs(os.path.join(target, folder), exist_ok=True)
    with ThreadPoolExecutor(min(_THREADS, max(1, len(files)))) as pool:
        try:
            if cache is None:
                _fetch_all(what, files, target, fetch, pool)
            elif missing := _uncached(files, target, cache, pool):
                with cache.lock(hashlib.sha256(repr(files).encode()).hexdigest()):
                    # whoever held the lock may have fetched them
                    missing = _uncached(missing, target, cache, pool)
                    _fetch_all(what, missing, target, fetch, pool)
                    list(pool.map(lambda item: _keep(target, item, cache), missing))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _uncached(items: list[Item], target: str, cache: SharedCache, pool: ThreadPoolExecutor) -> list[Item]:
    """Take the items that the cache has; return the others."""

    def take(item: Item) -> bool:
        content = item.content
        return content is not None and cache.take(content, os.path.join(target, item.path))

    return [item for item, is_there in zip(items, pool.map(take, items), strict=True) if not is_there]


def _keep(target: str, item: Item, cache: SharedCache) -> None:
    if item.content is not None:
        cache.keep(item.content, os.path.join(target, item.path))


def _fetch_all(what: str, items: list[Item], target: str, fetch: Fetch, pool: ThreadPoolExecutor) -> None:
    """Fetch the items side by side, large ones in pieces, and verify them."""
    if not items:
        return
    size = shown_size(sum(item.size for item in items))
    sys.stderr.write(f"kinetic: downloading {what}: {len(items)} files, {size}\n")
    pieces = [
        (item, offset)
        for item in sorted(items, key=lambda item: -item.size)
        for offset in range(0, max(item.size, 1), _PIECE)
    ]
    for item in items:
        with open(os.path.join(target, item.path), "xb") as stream:
            stream.truncate(item.size)
    list(pool.map(lambda piece: _take(target, piece[0], piece[1], fetch), pieces))
    list(pool.map(lambda item: _verify(what, target, item), items))


def _check_paths(what: str, items: list[Item]) -> None:
    files = {item.path for item in items if not item.path.endswith("/")}
    seen: set[str] = set()
    for item in items:
        if not is_plain(item.path.removesuffix("/")):
            raise ValueError(f"{what}: {item.path!r} cannot be a path below a directory")
        if item.path in seen:
            raise ValueError(f"{what}: {item.path!r} is there twice")
        seen.add(item.path)
        folder = os.path.dirname(item.path)
        while folder:
            if folder in files:
                raise ValueError(f"{what}: {folder!r} is both a file and a directory, of {item.path!r}")
            folder = os.path.dirname(folder)


def _take(target: str, item: Item, offset: int, fetch: Fetch) -> None:
    """Fetch one piece into its place."""
    end = min(item.size, offset + _PIECE)
    if offset == end:
        return
    reached = offset
    descriptor = os.open(os.path.join(target, item.path), os.O_WRONLY | os.O_NOFOLLOW)

    def write(position: int, content: bytes) -> None:
        nonlocal reached
        left = memoryview(content)[: end - position]
        try:
            while left:
                written = os.pwrite(descriptor, left, position)
                left, position = left[written:], position + written
        except OSError as exc:
            raise _DiskFailed from exc
        reached = max(reached, position)

    try:
        fetch(item, offset, end - offset, write)
    except _DiskFailed as exc:
        raise exc.__cause__ or exc from None
    finally:
        os.close(descriptor)
    if reached < end:
        raise DamagedDownload(f"{item.source} ends after {reached} of {item.size} bytes")


def _verify(what: str, target: str, item: Item) -> None:
    content = item.content
    if content is None:
        return
    digest = content.hasher(item.size)
    with open(os.path.join(target, item.path), "rb", buffering=0) as stream:
        while piece := stream.read(_CHUNK):
            digest.update(piece)
    if digest.hexdigest() != content.digest:
        raise DamagedDownload(
            f"{what}: {item.path!r} arrived with another {content.algorithm} digest than it has there"
        )
