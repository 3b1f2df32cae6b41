"""Stored form of a directory tree, shared by the client that writes and the runner that reads.

A tree document lists segments, and the packs that contain them and the files. A segment lists
entries in path order: `["f", path, digests, mode, size]`, `["d", path, mode]` for an empty directory,
`["l", path, target]`. Its digest covers the segments and nothing that differs between machines.

The content of a file is cut into pieces of `PIECE` bytes; `digests` are their SHA-256 in hex, back to back,
so that a small file's is its own. Pieces are hashed, stored, fetched and verified side by side.

A pack is a ZIP archive whose members are named by the SHA-256 of their content. Every record carries
its sizes in the ZIP64 field, needed or not: all records are then equally long, a reader needs no second
layout for large packs, and any ZIP tool can still look inside.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

from . import object_names

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
"""Bytes of a piece of a file; only the last piece may be shorter, and that of an empty file is empty."""
HEX = 64
"""Characters of a SHA-256."""
LARGEST_PACK = 128 << 20
"""Bytes of a pack at most: 64 MiB of contents, and records of `MOST_MEMBERS`."""
MOST_MEMBERS = 1 << 18


class PackFormatError(ValueError):
    """Malformed pack, which `local_record` and `directory_records` cannot have written."""


class Member(NamedTuple):
    """Place of one content in a pack. `offset` is that of its local record; sizes are in bytes."""

    name: str
    method: int
    crc: int
    stored: int
    size: int
    offset: int


def canonical(value: Any) -> bytes:
    """Return the canonical JSON of a value, which is hashed and stored."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def tree_digest(segments: list[str]) -> str:
    """Return the name of the tree with these segments."""
    return hashlib.sha256(canonical({"version": VERSION, "segments": segments})).hexdigest()


def pieces(size: int) -> list[tuple[int, int]]:
    """Return offset and length of the pieces of a file of `size` bytes."""
    return [(offset, min(PIECE, size - offset)) for offset in range(0, max(size, 1), PIECE)]


def count_pieces(size: int) -> int:
    """Return how many pieces a file of `size` bytes has."""
    return max(1, -(-size // PIECE))


def split_digests(digests: str) -> list[str]:
    """Split the digests of a file's pieces, in order."""
    return [digests[at : at + HEX] for at in range(0, len(digests), HEX)]


def local_record(member: Member) -> bytes:
    """Encode the record that precedes the bytes of a member."""
    return _LOCAL.pack(
        b"PK\3\4", _NEEDS, 0, member.method, 0, _DATE, member.crc, _IN64, _IN64, 64, 20,
        member.name.encode(), 1, 16, member.size, member.stored,
    )  # fmt: skip


def directory_records(members: list[Member], start: int) -> bytes:
    """Encode the end of a pack: its central directory, which begins at byte `start`."""
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
    """Read the members of an open pack by name, without their content. Raises PackFormatError."""
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


Entry = list[Any]
"""`["f", path, digests, mode, size]`, `["d", path, mode]` or `["l", path, target]`."""


class BadTree(ValueError):
    """Tree that differs from its digest, or would leave its directory."""


class IncompleteTree(BadTree, LookupError):
    """Tree with a part missing from the store. Submitting again stores it again."""


class Document(NamedTuple):
    """Segments of a tree and the packs that contain everything. `size` is the claimed size of all files."""

    segments: list[str]
    packs: list[str]
    size: int


def read_document(tree: str, read: Callable[[str], bytes]) -> Document:
    """Read the document of a tree. Raises BadTree."""
    name = object_names.tree(tree)
    try:
        document = json.loads(read(name))
        segments, packs, size = document["segments"], document["packs"], document.get("size", 0)
        well_formed = document["version"] == VERSION and isinstance(size, int)
        well_formed = well_formed and all(
            isinstance(item, str) and len(item) == HEX and item.isalnum() for item in [*segments, *packs]
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise BadTree(f"{name} is not a tree document: {exc}") from exc
    if not well_formed:
        raise BadTree(f"{name} is not a tree document of version {VERSION}")
    if tree_digest(segments) != tree:
        raise BadTree(f"{name} is another tree than its name says")
    return Document(segments, list(dict.fromkeys(packs)), size)


def parse_segment(name: str, content: bytes) -> list[Entry]:
    """Decode the entries of a segment that is called `name` in messages. Raises BadTree."""
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise BadTree(f"{name} is not a list of entries") from exc
    if not isinstance(entries, list) or not all(_is_entry(entry) for entry in entries):
        raise BadTree(f"{name} holds an entry that is not one")
    return entries


def check_entries(tree: str, entries: list[Entry]) -> None:
    """Refuse the whole tree for one bad entry. Raises BadTree."""
    name = object_names.tree(tree)
    leaves: set[str] = set()
    for entry in entries:
        path = entry[1]
        if not is_plain(path):
            raise BadTree(f"{name}: {path!r} is not a path inside the tree")
        if path in leaves:
            raise BadTree(f"{name}: {path!r} is there twice")
        leaves.add(path)
        if entry[0] == "l" and not _stays_inside(path, entry[2]):
            raise BadTree(f"{name}: link {path!r} leads outside the tree, to {entry[2]!r}")
        if entry[0] == "f" and len(entry[2]) != HEX * count_pieces(entry[4]):
            raise BadTree(f"{name}: {path!r} has another size than its content")
    folders: set[str] = set()
    for path in leaves:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            if folder in leaves:
                raise BadTree(f"{name}: {path!r} lies below {folder!r}, which is no directory with entries")
            folders.add(folder)
            folder = folder.rpartition("/")[0]


def _is_entry(entry: object) -> bool:
    match entry:
        case ["f", str(), str(), int(), int(size)]:
            return size >= 0
        case ["d", str(), int()] | ["l", str(), str()]:
            return True
    return False


def is_plain(path: str) -> bool:
    """Return whether a path stays below the directory that it is joined to."""
    parts = path.split("/")
    return "\0" not in path and _encodable(path) and all(part not in ("", ".", "..") for part in parts)


def _encodable(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stays_inside(path: str, target: str) -> bool:
    if not target or "\0" in target or target.startswith("/") or not _encodable(target):
        return False
    return not os.path.normpath(os.path.join("x", os.path.dirname(path), target)).startswith("..")


_LARGEST = 2 * PIECE
"""Bytes of the largest content: a segment may be larger than a piece."""


class Pack:
    """Pack in a local file, called `name` in messages. Raises BadTree for any other file."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        try:
            with open(path, "rb") as stream:
                self.members = read_members(stream)
        except PackFormatError as exc:
            raise BadTree(f"{name} is not a pack: {exc}") from exc

    def contents(self, names: list[str]) -> Iterator[tuple[str, bytes]]:
        """Yield members by name, in the order they lie in. Raises BadTree."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            for member in sorted((self.members[name] for name in names), key=lambda found: found.offset):
                yield member.name, self._content(descriptor, member)
        finally:
            os.close(descriptor)

    def _content(self, descriptor: int, member: Member) -> bytes:
        if max(member.size, member.stored) > _LARGEST:
            raise BadTree(f"{self.name}: {member.name} is too large")
        body = os.pread(descriptor, member.stored, member.offset + LOCAL_BYTES)
        if len(body) < member.stored:
            raise BadTree(f"{self.name} is cut short")
        if member.method == DEFLATED:
            try:
                body = zlib.decompressobj(-zlib.MAX_WBITS).decompress(body, member.size + 1)
            except zlib.error as exc:
                raise BadTree(f"{self.name}: {member.name} cannot be inflated: {exc}") from exc
        if len(body) > member.size:
            raise BadTree(f"{self.name}: {member.name} is larger than the {member.size} bytes declared")
        if len(body) < member.size or hashlib.sha256(body).hexdigest() != member.name:
            raise BadTree(f"{self.name}: {member.name} has another content than its name says")
        return body
