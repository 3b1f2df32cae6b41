"""Download many files into a directory: side by side, in pieces, each verified, all of them or none.

Where the files come from (a bucket, a hub) is the caller's: it lists them and fetches ranges of bytes.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from .store import MissingObject
from .tree_entries import is_plain
from .unpack import check_space

_THREADS = 16
_PIECE = 32 << 20
"""Bytes of a request. Small files are one, large ones are fetched side by side with themselves."""
_CHUNK = 1 << 20


class DamagedDownload(OSError):
    """What arrived is not what the source says it has."""


class _DiskFailed(Exception):
    """Writing here failed: no reason to ask the source again."""


class Item(NamedTuple):
    """A file to download: its relative path, size in bytes and digest there (algorithm and hex) if known.

    `source` is what `fetch` is told; `git` is the algorithm of Git's blobs.
    """

    path: str
    size: int
    digest: tuple[str, str] | None
    source: str


Sink = Callable[[int, bytes], Any]
"""Takes bytes and where they belong: a fetch that is tried again may give them twice."""
Fetch = Callable[[Item, int, int, Sink], None]
"""Gives the bytes of an item from an offset on, so many, to a sink; called in threads."""


def download(what: str, items: list[Item], target: str, fetch: Fetch) -> None:
    """Make the directory `target` hold the items of `what`, as errors call it. A path with a slash at its
    end is an empty directory.

    Raises MissingObject if there are none, ValueError for paths that lead elsewhere or collide, OSError if
    the disk is too small (before anything is fetched) or an item does not arrive as it should.
    """
    if not items:
        raise MissingObject(f"{what} holds nothing")
    files = [item for item in items if not item.path.endswith("/")]
    _check_paths(what, items)
    os.makedirs(target, exist_ok=True)
    total = sum(item.size for item in files)
    check_space(target, total)
    sys.stderr.write(f"kinetic: downloading {what}: {len(files)} files, {total / (1 << 20):.1f} MiB\n")
    for folder in {os.path.dirname(item.path) for item in items}:
        os.makedirs(os.path.join(target, folder), exist_ok=True)
    pieces = [
        (item, offset)
        for item in sorted(files, key=lambda item: -item.size)
        for offset in range(0, max(item.size, 1), _PIECE)
    ]
    for item, offset in pieces:
        if offset:
            continue
        with open(os.path.join(target, item.path), "xb") as stream:
            stream.truncate(item.size)
    with ThreadPoolExecutor(min(_THREADS, max(1, len(pieces)))) as pool:
        try:
            list(pool.map(lambda piece: _take(target, piece[0], piece[1], fetch), pieces))
            list(pool.map(lambda item: _verify(what, target, item), files))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


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
    """One piece, into its place."""
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
    if item.digest is None:
        return
    algorithm, expected = item.digest
    digest = hashlib.new("sha1" if algorithm == "git" else algorithm, usedforsecurity=False)
    if algorithm == "git":
        digest.update(b"blob %d\0" % item.size)
    with open(os.path.join(target, item.path), "rb", buffering=0) as stream:
        while content := stream.read(_CHUNK):
            digest.update(content)
    if digest.hexdigest() != expected:
        raise DamagedDownload(
            f"{what}: {item.path!r} arrived with another {algorithm} digest than it has there"
        )
