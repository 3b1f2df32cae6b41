"""A directory as the entries and digests of one moment: files whose `stat` is unchanged are not read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kinetic_core._runner.trees import PIECE, canonical, pieces, tree_digest
from kinetic_core.errors import InvalidProject
from kinetic_core.project.files import FileFacts, Listing, file_facts, unreadable
from kinetic_core.project.stat_index import StatIndex

_CHUNK = 256 << 10
_TRIES = 3
_SMALL = 128 << 10
_WORTH_THREADS = 4 << 20
_BOUNDARY = 2
"""A path whose SHA-256 begins with a byte below this ends its segment: one in 128 does."""
_LONGEST_SEGMENT = 1024


@dataclass(frozen=True)
class Snapshot:
    """The files with the digests of their pieces, and the segments in order, each as its digest and bytes.

    `sources` is that of the listing.
    """

    files: list[tuple[FileFacts, str]]
    segments: list[tuple[str, bytes]]
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def tree(self) -> str:
        """The digest that names the tree."""
        return tree_digest([digest for digest, _ in self.segments])

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(facts.size for facts, _ in self.files)


def take_snapshot(root: str, listing: Listing, index: StatIndex) -> Snapshot:
    """Hash what the index does not know. Raises InvalidProject for a file that cannot be read."""
    files: list[tuple[FileFacts, str]] = []
    unknown: list[FileFacts] = []
    for facts in listing.files:
        digest = index.digest(facts)
        if digest is None:
            unknown.append(facts)
        else:
            files.append((facts, digest))
    near = [facts for facts in unknown if facts.path not in listing.sources]
    files += [hashed for hashed in _hash_all(root, near) if hashed is not None]
    for facts in unknown:
        if source := listing.sources.get(facts.path):
            hashed = hash_file(*os.path.split(source))
            files += [] if hashed is None else [(hashed[0]._replace(path=facts.path), hashed[1])]
    entries: list[tuple[Any, ...]] = [
        *(("f", facts.path, digest, facts.mode, facts.size) for facts, digest in files),
        *(("d", path, mode) for path, mode in listing.empty),
        *(("l", path, target) for path, target in listing.links),
    ]
    entries.sort(key=lambda entry: entry[1])
    return Snapshot(files, list(_segments(entries)), listing.sources)


def _segments(entries: Sequence[tuple[Any, ...]]) -> Iterator[tuple[str, bytes]]:
    """Cut the entries where the hash of a path says so: an edit leaves all other segments as they are."""
    start = 0
    for position, entry in enumerate(entries, start=1):
        ends = hashlib.sha256(entry[1].encode()).digest()[0] < _BOUNDARY
        if ends or position - start == _LONGEST_SEGMENT or position == len(entries):
            content = canonical(entries[start:position])
            yield hashlib.sha256(content).hexdigest(), content
            start = position


def _hash_all(root: str, files: Sequence[FileFacts]) -> Iterator[tuple[FileFacts, str] | None]:
    """Hash small files in this thread, and large ones and their pieces in several.

    A small file is read by four system calls, each of which lets go of the interpreter: two threads would
    spend twice the time on taking it from each other.
    """
    for facts in files:
        if facts.size <= _SMALL:
            yield _hash_small(root, facts)
    large = [facts for facts in files if facts.size > _SMALL]
    if sum(facts.size for facts in large) < _WORTH_THREADS:
        yield from (hash_file(root, facts.path) for facts in large)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        yield from pool.map(partial(hash_file, root), [facts.path for facts in large if facts.size <= PIECE])
        for facts in large:
            if facts.size > PIECE:
                yield hash_file(root, facts.path, together=pool.map)


def _hash_small(root: str, facts: FileFacts) -> tuple[FileFacts, str] | None:
    """As `hash_file`, with the fewest system calls for a file that is as it was listed."""
    try:
        descriptor = os.open(os.path.join(root, facts.path), os.O_RDONLY)
        try:
            content = os.read(descriptor, facts.size + 1)
            after = file_facts(facts.path, os.fstat(descriptor))
        finally:
            os.close(descriptor)
    except OSError:
        return hash_file(root, facts.path)  # tells what is wrong
    if after == facts and len(content) == facts.size:
        return facts, hashlib.sha256(content).hexdigest()
    return hash_file(root, facts.path)


def hash_file(
    root: str,
    path: str,
    read: Callable[[int, bytearray, int], int] = lambda file, into, at: os.preadv(file, [into], at),
    together: Callable[..., Iterable[str]] = map,
) -> tuple[FileFacts, str] | None:
    """The digests of a file's pieces and the facts they belong to; None if the file is gone.

    `together` is a `map` that may hash pieces side by side. A file that changes while it is read is read
    again, a few times. Raises InvalidProject if it keeps changing or cannot be read.
    """
    full = os.path.join(root, path)
    try:
        for _ in range(_TRIES):
            descriptor = os.open(full, os.O_RDONLY)
            try:
                before = file_facts(path, os.fstat(descriptor))
                digests = "".join(together(partial(_hash_piece, read, descriptor), pieces(before.size)))
                grown = read(descriptor, bytearray(1), before.size)
                after = file_facts(path, os.fstat(descriptor))
            finally:
                os.close(descriptor)
            if before == after and not grown:
                return after, digests
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise unreadable(full, exc) from exc
    raise InvalidProject(
        f"{full!r} changes while it is read. Wait for what writes it, or leave it out of the project "
        "(.kineticignore); of data, pass a copy"
    )


def _hash_piece(read: Callable[[int, bytearray, int], int], descriptor: int, piece: tuple[int, int]) -> str:
    """The digest of a piece; of less if the file became shorter, which its facts then tell."""
    offset, left = piece
    digest, buffer = hashlib.sha256(), bytearray(min(_CHUNK, left))
    view = memoryview(buffer)
    while left and (count := read(descriptor, buffer, offset)):
        digest.update(view[: min(count, left)])
        offset += count
        left -= min(count, left)
    return digest.hexdigest()
