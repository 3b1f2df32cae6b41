"""Unpacking of a stored tree into a directory, trusting nothing that its digest does not prove.

Every path, link, size and digest is checked before or while it takes effect, and nothing outside the target
directory is ever touched. Packs are fetched, verified and written side by side, and each is discarded as
soon as it is written: the disk holds the tree and a few packs, never all of them.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from . import object_names, trees
from .spare_files import SpareFiles
from .store import MissingObject, ObjectTooLarge
from .trees import BadTree, Document, Entry, IncompleteTree, Pack, check_entries, parse_segment, read_document

_AHEAD = 4
"""Packs that are fetched at one time."""

_Start = Callable[..., Callable[[], Any]]
"""Function that starts another with its arguments, and returns a function that waits for the result."""


def materialise_tree(
    tree: str,
    target: str,
    *,
    read: Callable[[str], bytes],
    fetch: Callable[[str, int], str],
    discard: Callable[[str], None] = lambda _path: None,
    shard: tuple[int, int] = (0, 1),
    spare: str = "",
) -> None:
    """Fill the directory `target` with the tree of this digest, replacing existing files.

    `read` returns the bytes of a small object, `fetch` a local file with a large one of at most so many bytes
    (it is called in threads); both raise `MissingObject`. `discard` gets each such file back. `shard` (i, n)
    takes every n-th file from the i-th on. Files like those of the tree are moved there from the directory
    `spare`.
    Raises IncompleteTree if an object is missing, BadTree if one is wrong, OSError if the disk is full,
    before anything large is fetched. A failure leaves nothing behind.
    """
    target = os.path.abspath(target)
    _remove(target)
    try:
        document = read_document(tree, read)
        os.makedirs(target)
        check_space(target, document.size // shard[1])
        spares = SpareFiles(spare, target) if spare else None
        _Unpacking(tree, target, document, shard, spares).run(fetch, discard)
    except BaseException as exc:
        _remove(target)
        if isinstance(exc, MissingObject):
            raise IncompleteTree(
                f"{exc}: a part of tree {tree} is gone from the store. Submit again"
            ) from exc
        raise


def check_space(folder: str, needed: int) -> None:
    """Raise OSError (ENOSPC) unless `needed` bytes fit on the disk of `folder`."""
    facts = os.statvfs(folder)
    free = facts.f_bavail * facts.f_frsize
    if needed > free:
        raise OSError(
            errno.ENOSPC, f"{needed} bytes to unpack, {free} free: give the job more disk (disk=)", folder
        )


def _remove(target: str) -> None:
    """Remove what a killed attempt left: its process id, and so the target's name, may be used again."""
    if os.path.lexists(target):
        import shutil

        shutil.rmtree(target)


class _Unpacking:
    """Unpacking of one tree into one directory."""

    def __init__(
        self, tree: str, target: str, document: Document, shard: tuple[int, int], spares: SpareFiles | None
    ) -> None:
        self._name, self._spares = object_names.tree(tree), spares
        self._tree, self._target, self._document, self._shard = tree, target, document, shard
        self._segments: dict[str, list[Entry]] = {}
        self._entries: list[Entry] = []
        self._places: dict[str, list[tuple[Entry, int, int]]] = {}
        """Places of a content: the file's entry, offset and length there; removed when taken."""

    def run(self, fetch: Callable[[str, int], str], discard: Callable[[str], None]) -> None:
        names = [object_names.pack(pack) for pack in self._document.packs]
        waiting: list[Pack] = []
        writing: deque[Callable[[], Any]] = deque()
        if not self._document.segments:
            self._plan()
        with _threads(len(names)) as start:
            for pack in _fetched(names, partial(_verified, fetch, discard), start):
                waiting.append(pack)
                if not self._take_segments(pack):
                    continue
                for ready in waiting:
                    writing.append(start(self._write, ready, self._wanted(ready), discard))
                waiting.clear()
                while len(writing) > _AHEAD:
                    writing.popleft()()
            for written in writing:
                written()
        lacking = next(iter([*self._lacking(), *self._places]), None)
        if lacking is not None:
            raise MissingObject(f"no pack holds content {lacking}")
        self._finish()

    def _lacking(self) -> list[str]:
        return [segment for segment in self._document.segments if segment not in self._segments]

    def _take_segments(self, pack: Pack) -> bool:
        """Read the segments in a pack; return True once all are known, and all files are planned."""
        lacking = self._lacking()
        for segment, content in pack.contents([name for name in lacking if name in pack.members]):
            self._segments[segment] = parse_segment(f"{pack.name}: segment {segment}", content)
        if lacking and not self._lacking():
            self._plan()
        return not self._lacking()

    def _plan(self) -> None:
        """Check every entry, then make the directories and the files of several pieces."""
        self._entries = [entry for name in self._document.segments for entry in self._segments[name]]
        check_entries(self._tree, self._entries)
        first, count = self._shard
        files = [entry for entry in self._entries if entry[0] == "f"][first::count]
        check_space(self._target, sum(entry[4] for entry in files))
        for entry in files:
            cuts = trees.pieces(entry[4])
            for digest, (offset, size) in zip(trees.split_digests(entry[2]), cuts, strict=True):
                self._places.setdefault(digest, []).append((entry, offset, size))
        folders = {entry[1].rpartition("/")[0] for entry in files}
        links = {entry[1].rpartition("/")[0] for entry in self._entries if entry[0] == "l"}
        for folder in folders | links | {entry[1] for entry in self._entries if entry[0] == "d"}:
            os.makedirs(os.path.join(self._target, folder), exist_ok=True)
        for entry in files:
            if entry[4] > trees.PIECE:
                with open(os.path.join(self._target, entry[1]), "xb") as stream:
                    stream.truncate(entry[4])

    def _wanted(self, pack: Pack) -> dict[str, list[tuple[Entry, int, int]]]:
        """Return the contents of a pack that are still needed, and claim them for this thread."""
        wanted = [name for name in pack.members if name in self._places]
        return {name: self._places.pop(name) for name in wanted}

    def _write(
        self, pack: Pack, wanted: dict[str, list[tuple[Entry, int, int]]], discard: Callable[[str], None]
    ) -> None:
        for digest, content in pack.contents(list(wanted)):
            for entry, offset, size in wanted[digest]:
                if size != len(content):
                    raise BadTree(f"{self._name}: {entry[1]!r} has another size than its content")
                path = os.path.join(self._target, entry[1])
                mode = entry[3] & 0o777
                if entry[4] > trees.PIECE:
                    _write_piece(path, content, offset)
                elif self._spares is None or not self._spares.take(entry[1], path, content, mode):
                    _write_file(path, content, mode)
        discard(pack.path)

    def _finish(self) -> None:
        """Set modes that could hinder writing, and links: last, so that nothing is written through a link."""
        for entry in self._entries:
            path = os.path.join(self._target, entry[1])
            if entry[0] == "d":
                os.chmod(path, entry[2] & 0o777)
            elif entry[0] == "f" and entry[4] > trees.PIECE and os.path.exists(path):
                os.chmod(path, entry[3] & 0o777)
        root = os.path.realpath(self._target)
        links = [entry for entry in self._entries if entry[0] == "l"]
        for entry in links:
            os.symlink(entry[2], os.path.join(self._target, entry[1]))
        for entry in links:
            real = os.path.realpath(os.path.join(self._target, entry[1]))
            if not (real + os.sep).startswith(root + os.sep):
                raise BadTree(f"{self._name}: link {entry[1]!r} leads outside the tree")


def _fetched(names: list[str], fetch: Callable[[str], Pack], start: _Start) -> Iterator[Pack]:
    """Yield the packs in order, while the next few are being fetched."""
    coming: deque[Callable[[], Pack]] = deque()
    for name in names:
        coming.append(start(fetch, name))
        if len(coming) > _AHEAD:
            yield coming.popleft()()
    for pack in coming:
        yield pack()


def _verified(fetch: Callable[[str, int], str], discard: Callable[[str], None], name: str) -> Pack:
    """Fetch a pack, and parse it once its digest is that of its name. Raises BadTree."""
    try:
        path = fetch(name, trees.LARGEST_PACK)
    except ObjectTooLarge as exc:
        raise BadTree(f"{name} is not a pack: {exc}") from exc
    with open(path, "rb") as stream:
        found = object_names.pack(hashlib.file_digest(stream, "sha256").hexdigest())
    if found != name:
        discard(path)  # or another attempt would find it, and not ask the store
        raise BadTree(f"{name} has another content than its name says")
    return Pack(name, path)


@contextmanager
def _threads(packs: int) -> Iterator[_Start]:
    """Yield a function that starts work: in threads if there are several packs, else at once."""
    if packs < 2:
        yield lambda work, *args: lambda: work(*args)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2 * _AHEAD) as pool:
        try:
            yield lambda work, *args: pool.submit(work, *args).result
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _write_file(path: str, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def _write_piece(path: str, content: bytes, offset: int) -> None:
    """Write one piece of an existing file; zeros stay a hole."""
    if content == bytes(len(content)):
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        left = memoryview(content)
        while left:
            written = os.pwrite(descriptor, left, offset)
            left, offset = left[written:], offset + written
    finally:
        os.close(descriptor)
