"""The stored form of a directory tree, in one place for the client that writes and the runner that reads.

A tree document lists segments, and the packs in which they and the files can be found. A segment lists
entries in path order: `["f", path, digests, mode, size]`, `["d", path, mode]` for an empty directory,
`["l", path, target]`. Its digest covers the segments and nothing that differs between machines.

The content of a file is cut into pieces of `PIECE` bytes; `digests` are their SHA-256 in hex, back to back,
so that of a small file is its own. Pieces are hashed, stored, fetched and verified side by side.

A pack is a ZIP archive whose members are named by the SHA-256 of their content. Every record carries
its sizes in the ZIP64 field, needed or not: all records are then equally long, a reader needs no second
layout for large packs, and any ZIP tool can still look inside.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from typing import Any, BinaryIO, NamedTuple

VERSION = 1
STORED, DEFLATED = 0, 8

_LOCAL = struct.Struct("<4s5H3L2H64s2H2Q")
_CENTRAL = struct.Struct("<4s6H3L5H2L64s2H3Q")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_END = struct.Struct("<4s4H2LH")
_IN64 = 0xFFFFFFFF
_MADE_BY_UNIX = 3 << 8 | 45
_NEEDS = 45
_DATE = (1980 - 1980) << 9 | 1 << 5 | 1
_REGULAR_FILE = 0o100644 << 16

LOCAL_BYTES = _LOCAL.size

PIECE = 8 << 20
"""Bytes of a piece of a file; only the last may be shorter, and the only one of an empty file is empty."""
HEX = 64
"""Characters of a SHA-256."""


class PackFormatError(ValueError):
    """The file is not a pack as written by `local_record` and `directory_records`."""


class Member(NamedTuple):
    """Where one content lies in a pack. `offset` is that of its local record; sizes are in bytes."""

    name: str
    method: int
    crc: int
    stored: int
    size: int
    offset: int


def canonical(value: Any) -> bytes:
    """The one JSON text of a value: what is hashed and stored."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def tree_digest(segments: list[str]) -> str:
    """The name of the tree with these segments."""
    return hashlib.sha256(canonical({"version": VERSION, "segments": segments})).hexdigest()


def pieces(size: int) -> list[tuple[int, int]]:
    """Offset and length of the pieces of a file of `size` bytes."""
    return [(offset, min(PIECE, size - offset)) for offset in range(0, max(size, 1), PIECE)]


def count_pieces(size: int) -> int:
    """How many pieces a file of `size` bytes has."""
    return max(1, -(-size // PIECE))


def split_digests(digests: str) -> list[str]:
    """The digests of a file's pieces, in order."""
    return [digests[at : at + HEX] for at in range(0, len(digests), HEX)]


def local_record(member: Member) -> bytes:
    """What precedes the bytes of a member."""
    return _LOCAL.pack(
        b"PK\3\4", _NEEDS, 0, member.method, 0, _DATE, member.crc, _IN64, _IN64, 64, 20,
        member.name.encode(), 1, 16, member.size, member.stored,
    )  # fmt: skip


def directory_records(members: list[Member], start: int) -> bytes:
    """What ends a pack: its central directory, which begins at byte `start`."""
    records = b"".join(
        _CENTRAL.pack(
            b"PK\1\2", _MADE_BY_UNIX, _NEEDS, 0, member.method, 0, _DATE, member.crc, _IN64, _IN64, 64,
            28, 0, 0, 0, _REGULAR_FILE, _IN64, member.name.encode(), 1, 24, member.size, member.stored,
            member.offset,
        )
        for member in members
    )  # fmt: skip
    count, end = len(members), start + len(records)
    short = min(count, 0xFFFF)
    return b"".join((
        records,
        _END64.pack(
            b"PK\6\6", _END64.size - 12, _MADE_BY_UNIX, _NEEDS, 0, 0, count, count, len(records), start
        ),
        _LOCATOR.pack(b"PK\6\7", 0, end, 1),
        _END.pack(b"PK\5\6", 0, 0, short, short, min(len(records), _IN64), _IN64, 0),
    ))  # fmt: skip


def read_members(pack: BinaryIO) -> dict[str, Member]:
    """The members of an open pack by name. Raises PackFormatError; reads no content."""
    tail = _END64.size + _LOCATOR.size + _END.size
    length = os.fstat(pack.fileno()).st_size
    if length < tail:
        raise PackFormatError("it is too short")
    pack.seek(length - tail)
    magic, _, _, _, _, _, count, again, size, start = _END64.unpack(pack.read(_END64.size))
    if magic != b"PK\6\6" or count != again or start + size + tail != length or size != count * _CENTRAL.size:
        raise PackFormatError("its end records do not fit its length")
    pack.seek(start)
    members: dict[str, Member] = {}
    for record in _CENTRAL.iter_unpack(pack.read(size)):
        method, crc, name = record[4], record[7], record[17]
        uncompressed, stored, offset = record[20:]
        fits = offset + _LOCAL.size + stored <= start
        if record[0] != b"PK\1\2" or method not in (STORED, DEFLATED) or not fits:
            raise PackFormatError("its directory is malformed")
        text = name.decode("ascii", "replace")
        members[text] = Member(text, method, crc, stored, uncompressed, offset)
    if len(members) != count:
        raise PackFormatError("it holds a member twice")
    return members
