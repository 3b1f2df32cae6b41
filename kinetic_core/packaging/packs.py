"""Write packs: archives of contents that are named by their digest, the same bytes on every machine."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kinetic_core._runner.stored_tree import (
    DEFLATED,
    LOCAL_BYTES,
    STORED,
    Member,
    directory_records,
    local_record,
)
from kinetic_core._runner.wire import pack_object
from kinetic_core.errors import KineticError, ObjectExists
from kinetic_core.storage.directory import translated
from kinetic_core.storage.protocol import ObjectStore

LARGE = 8 << 20
"""Contents above this many bytes are streamed in pieces of `_PIECE` instead of being held whole."""

_PIECE = 4 << 20
_WORTH_THREADS = 2 << 20
_BATCH = 1 << 20
_BATCHES_AHEAD = 8
_WORTH_IT = 0.95
_LEVEL = 1
_SAMPLE = 2 << 10
_WORTH_SAMPLING = 16 << 10


class ContentChanged(KineticError):
    """A file no longer has the content it was listed with. List the directory again."""


@dataclass(frozen=True, slots=True)
class Content:
    """What to pack: the bytes themselves, or the file that holds them, and how many there are."""

    sha256: str
    source: bytes | str
    size: int


_Packed = tuple[int, int, bytes]
"""Method, CRC and the bytes to store of a content."""

_Start = Callable[..., Callable[[], Any]]
"""Starts a function with its arguments; what comes back waits for it and gives its result."""


def store_pack(contents: Mapping[str, Content], store: ObjectStore, scratch: Path | None) -> tuple[str, int]:
    """Store one pack of `contents`; its digest and size in bytes.

    It is built in directory `scratch` (None: the system's) and always removed there. Raises
    ContentChanged, StoreFull (of either disk) or another StoreError.
    """
    import tempfile

    descriptor, path = tempfile.mkstemp(prefix="pack-", suffix=".zip", dir=scratch)
    try:
        with os.fdopen(descriptor, "w+b") as stream:
            try:
                write_pack([contents[name] for name in sorted(contents)], stream)
            except OSError as exc:
                raise translated(exc, f"cannot write {path}") from exc
            size = stream.tell()
            stream.seek(0)
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        try:
            store.create(pack_object(digest), Path(path))
        except ObjectExists:
            return digest, 0
        return digest, size
    finally:
        os.unlink(path)


def write_pack(contents: Sequence[Content], stream: BinaryIO) -> None:
    """Write the contents, in the order given, as one pack. Raises ContentChanged, OSError."""
    members: list[Member] = []
    with _deflating(sum(content.size for content in contents)) as start:
        for batch, finished in _started(contents, start):
            if finished is None:
                members.append(_write_large(batch[0], stream, start))
                continue
            for content, (method, crc, body) in zip(batch, finished(), strict=True):
                member = Member(content.sha256, method, crc, len(body), content.size, stream.tell())
                stream.write(local_record(member))
                stream.write(body)
                members.append(member)
    stream.write(directory_records(members, stream.tell()))


@contextmanager
def _deflating(total: int) -> Iterator[_Start]:
    """Where to start work: in threads (zlib releases the interpreter), or at once for a small pack."""
    if total < _WORTH_THREADS:
        yield lambda work, *args, **kwargs: lambda: work(*args, **kwargs)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        try:
            yield lambda work, *args, **kwargs: pool.submit(work, *args, **kwargs).result
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _started(
    contents: Sequence[Content], start: _Start
) -> Iterator[tuple[list[Content], Callable[[], list[_Packed]] | None]]:
    """Batches of contents, their packed forms on the way, a bounded amount ahead; None for a large one."""
    waiting: deque[tuple[list[Content], Callable[[], list[_Packed]] | None]] = deque()
    for batch in _batches(contents):
        waiting.append((batch, None if _is_large(batch[0]) else start(_packed_batch, batch)))
        if len(waiting) > _BATCHES_AHEAD:
            yield waiting.popleft()
    yield from waiting


def _batches(contents: Sequence[Content]) -> Iterator[list[Content]]:
    """Cut where enough bytes for a thread are together; a large content is alone."""
    batch: list[Content] = []
    size = 0
    for content in contents:
        if batch and (size + content.size > _BATCH or _is_large(content)):
            yield batch
            batch, size = [], 0
        batch.append(content)
        size += content.size
    if batch:
        yield batch


def _is_large(content: Content) -> bool:
    return content.size > LARGE and not isinstance(content.source, bytes)


def _packed_batch(batch: Sequence[Content]) -> list[_Packed]:
    return [_packed(content) for content in batch]


def _packed(content: Content) -> _Packed:
    """Method, CRC and the bytes to store of a content. Raises ContentChanged."""
    if isinstance(content.source, bytes):
        body = content.source
    else:
        try:
            descriptor = os.open(content.source, os.O_RDONLY)
            try:
                body = b"".join(iter(lambda: os.read(descriptor, content.size + 1), b""))
            finally:
                os.close(descriptor)
        except OSError as exc:
            raise ContentChanged(f"{content.source}: {exc.strerror}") from exc
    if hashlib.sha256(body).hexdigest() != content.sha256:
        raise ContentChanged(f"{content.source!r} changed")
    small = _deflated(body)
    if len(small) < len(body) * _WORTH_IT:
        return DEFLATED, zlib.crc32(body), small
    return STORED, zlib.crc32(body), body


def _deflated(body: bytes, last: bool = True) -> bytes:
    """A piece of a deflate stream that stands on its own, so that pieces can be made side by side."""
    deflate = _compressor(zlib.Z_DEFAULT_STRATEGY if _repeats_itself(body) else zlib.Z_HUFFMAN_ONLY)
    return deflate.compress(body) + deflate.flush(zlib.Z_FINISH if last else zlib.Z_FULL_FLUSH)


def _repeats_itself(body: bytes) -> bool:
    """Is looking for repetitions worth it? In numbers and encoded bytes it gains nothing and costs most."""
    if len(body) < _WORTH_SAMPLING:
        return True
    sample = body[len(body) // 2 :][:_SAMPLE]
    searching, counting = _compressor(zlib.Z_DEFAULT_STRATEGY), _compressor(zlib.Z_HUFFMAN_ONLY)
    found = len(searching.compress(sample)) + len(searching.flush())
    return found < len(counting.compress(sample)) + len(counting.flush())


def _compressor(strategy: int) -> zlib._Compress:
    return zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)


def _write_large(content: Content, stream: BinaryIO, start: _Start) -> Member:
    """Stream a file into the pack, piece by piece. Raises ContentChanged, OSError."""
    offset = stream.tell()
    stream.write(bytes(LOCAL_BYTES))
    digest, crc, size = hashlib.sha256(), 0, 0
    method: int | None = None
    waiting: deque[Callable[[], bytes]] = deque()
    for piece, last in _pieces(str(content.source)):
        digest.update(piece)
        crc = zlib.crc32(piece, crc)
        size += len(piece)
        if method is None:
            method = DEFLATED if len(_deflated(piece)) < len(piece) * _WORTH_IT else STORED
        if method == STORED:
            stream.write(piece)
            continue
        waiting.append(start(_deflated, piece, last))
        if len(waiting) > (os.cpu_count() or 1):
            stream.write(waiting.popleft()())
    stream.writelines(finished() for finished in waiting)
    if size != content.size or digest.hexdigest() != content.sha256:
        raise ContentChanged(f"{content.source!r} changed")
    end = stream.tell()
    stored = end - offset - LOCAL_BYTES
    member = Member(content.sha256, method or STORED, crc, stored, size, offset)
    stream.seek(offset)
    stream.write(local_record(member))
    stream.seek(end)
    return member


def _pieces(path: str) -> Iterator[tuple[bytes, bool]]:
    """The pieces of a file, each with whether it is the last."""
    try:
        with open(path, "rb", buffering=0) as stream:
            ahead = stream.read(_PIECE)
            while ahead:
                piece, ahead = ahead, stream.read(_PIECE)
                yield piece, not ahead
    except OSError as exc:
        raise ContentChanged(f"{path}: {exc.strerror}") from exc
