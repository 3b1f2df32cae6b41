"""Write packs: archives of contents that are named by their digest, the same bytes on every machine."""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from kinetic_core._runner import object_names
from kinetic_core._runner.trees import DEFLATED, MOST_MEMBERS, STORED, Member, directory_records, local_record
from kinetic_core.errors import KineticError
from kinetic_core.store.directory import translated
from kinetic_core.store.protocol import ObjectStore

try:  # deflates four times as fast as zlib; its levels 1 and 2 may make other bytes of the same input
    from isal.isal_zlib import compress, crc32

    _LEVEL = 0
except ImportError:  # no wheel for this machine
    from zlib import compress, crc32

    _LEVEL = 1

PACK = 64 << 20
"""Bytes of contents after which another pack is begun: what an interrupted upload may have to repeat.
Little is cut smaller, so that one pack is sent while the next is made, and one request sends it."""

_SMALL_PACK = 7 << 20
_PACKS = 12

_UPLOADS = 4
_IN_MEMORY = 16 << 20
_WORTH_THREADS = 2 << 20
_BATCH = 1 << 20
_BATCHES_AHEAD = 8
_WORTH_IT = 0.95
_WORTH_SAMPLING = 4 << 10
_SAMPLE = 512
_DISTINCT = 210
"""So many different values have 512 random bytes at least (221.5 on average, deviating by 4.5); numbers of 24
in 32 bits have some 200, text 60. Small files are many: deflating a sample of each took a tenth of it all."""
_WORTH_A_LARGE_SAMPLE = 1 << 20
_LARGE_SAMPLE = 64 << 10


class ContentChanged(KineticError):
    """A file no longer has the content it was listed with. List the directory again."""


@dataclass(frozen=True, slots=True)
class Content:
    """What to pack: the bytes themselves, or `size` bytes of a file from `offset` on."""

    sha256: str
    source: bytes | str
    size: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class StoredPacks:
    """The digests of packs, in the order of their contents, and the bytes that had to be stored."""

    packs: tuple[str, ...]
    stored: int


_Packed = tuple[int, int, bytes]
"""Method, CRC and the bytes to store of a content."""

_Start = Callable[..., Callable[[], Any]]
"""Starts a function with its arguments; what comes back waits for it and gives its result."""


def store_packs(
    contents: Sequence[Content],
    store: ObjectStore,
    scratch: Path | None,
    told: Callable[[int, int], None] = lambda _done, _total: None,
) -> StoredPacks:
    """Store packs of `contents`, cut in the order given; a pack that the store has is not sent again.

    Each is built in memory or, if large, in directory `scratch` (None: the system's), a few at a time. `told`
    hears how many of how many bytes of contents are stored. Raises ContentChanged, StoreFull (of either
    disk) or another StoreError.
    """
    import tempfile

    cuts = list(_cut(contents, _pack_size(contents)))
    deflate = not store.uri.startswith("file:")  # on the same machine it costs more than it saves
    total = sum(content.size for content in contents)
    packs: list[str] = []
    done = stored = 0
    sending: deque[tuple[int, Callable[[], int]]] = deque()
    with (
        tempfile.TemporaryDirectory(prefix="packs-", dir=scratch) as folder,
        _threads(_UPLOADS if len(cuts) > 1 else 0) as start,
    ):
        for cut in cuts:
            digest, pack = _built(cut, folder, deflate)
            packs.append(digest)
            size = sum(content.size for content in cut)
            sending.append((size, start(_send, store, digest, pack, len(cuts) > 1)))
            while len(sending) > (_UPLOADS if cut is not cuts[-1] else 0):
                size, sent = sending.popleft()
                stored += sent()
                done += size
                told(done, total)
    return StoredPacks(tuple(packs), stored)


def _cut(contents: Sequence[Content], most: int) -> Iterator[list[Content]]:
    """Runs of contents, of at most `most` bytes and so many members as a pack may have; one may be larger."""
    run: list[Content] = []
    size = 0
    for content in contents:
        if run and (size + content.size > most or len(run) == MOST_MEMBERS):
            yield run
            run, size = [], 0
        run.append(content)
        size += content.size
    if run:
        yield run


def _pack_size(contents: Sequence[Content]) -> int:
    """The same for the same contents, so that an upload can be gone on with."""
    return min(max(sum(content.size for content in contents) // _PACKS, _SMALL_PACK), PACK)


def _built(contents: Sequence[Content], folder: str, deflate: bool) -> tuple[str, bytes | Path]:
    """A pack's digest and the pack: a small one itself, a large one in a file."""
    if sum(content.size for content in contents) <= _IN_MEMORY:
        with io.BytesIO() as memory:
            return write_pack(contents, memory, deflate), memory.getvalue()
    path = Path(folder, contents[0].sha256)
    try:
        with open(path, "wb") as stream:
            return write_pack(contents, stream, deflate), path
    except OSError as exc:
        raise translated(exc, f"cannot write {path}") from exc


def _send(store: ObjectStore, digest: str, pack: bytes | Path, look_first: bool) -> int:
    """Store a pack and remove its file; the bytes that the store did not have."""
    try:
        if look_first and store.find(object_names.pack(digest)) is not None:
            return 0
        if not store.create_if_absent(object_names.pack(digest), pack):
            return 0
        return len(pack) if isinstance(pack, bytes) else pack.stat().st_size
    finally:
        if isinstance(pack, Path):
            pack.unlink()


def write_pack(contents: Sequence[Content], stream: BinaryIO, deflate: bool = True) -> str:
    """Write the contents, in the order given, as one pack; its digest. Raises ContentChanged, OSError.

    Without `deflate`, files are stored as they are.
    """
    members: list[Member] = []
    digest, offset = hashlib.sha256(), 0
    packed = partial(_packed_batch, deflate)

    def write(record: bytes) -> None:
        stream.write(record)
        digest.update(record)

    threads = os.cpu_count() or 1 if sum(content.size for content in contents) >= _WORTH_THREADS else 0
    with _threads(threads) as start:
        for batch, finished in _started(contents, packed, start):
            records: list[bytes] = []
            for content, (method, crc, body) in zip(batch, finished(), strict=True):
                members.append(Member(content.sha256, method, crc, len(body), content.size, offset))
                record = local_record(members[-1])
                records += (record, body)
                offset += len(record) + len(body)
            write(b"".join(records))  # at once: while it is hashed, the threads have the interpreter
    write(directory_records(members, offset))
    return digest.hexdigest()


@contextmanager
def _threads(count: int) -> Iterator[_Start]:
    """Where to start work: in threads (zlib and sockets release the interpreter), or at once for none."""
    if not count:
        yield lambda work, *args: lambda: work(*args)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(count) as pool:
        try:
            yield lambda work, *args: pool.submit(work, *args).result
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _started(
    contents: Sequence[Content], packed: Callable[..., list[_Packed]], start: _Start
) -> Iterator[tuple[list[Content], Callable[[], list[_Packed]]]]:
    """Batches of contents, their packed forms on the way, a bounded amount ahead.

    One thread reads: a small file is read by three system calls, each of which lets go of the interpreter,
    and several threads would spend twice the time on taking it from each other.
    """
    waiting: deque[tuple[list[Content], Callable[[], list[_Packed]]]] = deque()
    for batch in _cut(contents, _BATCH):
        waiting.append((batch, start(packed, batch, [_read(content) for content in batch])))
        if len(waiting) > _BATCHES_AHEAD:
            yield waiting.popleft()
    yield from waiting


def _packed_batch(deflate: bool, batch: Sequence[Content], bodies: Sequence[bytes]) -> list[_Packed]:
    return [
        _packed(content, body, deflate or isinstance(content.source, bytes))
        for content, body in zip(batch, bodies, strict=True)
    ]


def _packed(content: Content, body: bytes, deflate: bool) -> _Packed:
    if hashlib.sha256(body).hexdigest() != content.sha256:
        raise ContentChanged(f"{content.source!r} changed")
    if deflate and not _is_noise(body):
        small = compress(body, _LEVEL, wbits=-zlib.MAX_WBITS)
        if len(small) < len(body) * _WORTH_IT:
            return DEFLATED, crc32(body), small
    return STORED, crc32(body), body


def _is_noise(body: bytes) -> bool:
    """Whether a sample from the middle cannot be deflated: the rest then costs time for nothing."""
    if len(body) < _WORTH_SAMPLING:
        return False
    middle = len(body) // 2
    if len(body) < _WORTH_A_LARGE_SAMPLE:
        return len(set(body[middle : middle + _SAMPLE])) >= _DISTINCT
    sample = body[middle : middle + _LARGE_SAMPLE]
    return len(compress(sample, _LEVEL, wbits=-zlib.MAX_WBITS)) >= len(sample) * _WORTH_IT


def _read(content: Content) -> bytes:
    if isinstance(content.source, bytes):
        return content.source
    try:
        descriptor = os.open(content.source, os.O_RDONLY)
        try:
            return b"".join(_all_of(descriptor, content.offset, content.size))
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise ContentChanged(f"{str(content.source)!r}: {exc.strerror}") from exc


def _all_of(descriptor: int, offset: int, size: int) -> Iterator[bytes]:
    end = offset + size
    while offset < end and (part := os.pread(descriptor, end - offset, offset)):
        yield part
        offset += len(part)
