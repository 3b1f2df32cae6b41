"""Make a directory out of a stored tree, believing nothing that its digest does not prove.

Whoever can write to the store could have written the tree: every path, link, size and digest is checked
before or while it takes effect, and nothing outside the target directory is ever touched.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

from . import stored_tree, wire
from .store import MissingObject

_CHUNK = 1 << 20
_LARGEST_SEGMENT = 16 << 20


class BadTree(ValueError):
    """The stored tree is not what its digest promises, or would leave its directory."""


class IncompleteTree(BadTree, LookupError):
    """A part of the tree is not in the store any more. Submitting again stores it again."""


class _Source(NamedTuple):
    """A content in an open pack."""

    pack: BinaryIO
    object_name: str
    member: stored_tree.Member


def materialise_tree(
    tree: str, target: str, *, read: Callable[[str], bytes], fetch: Callable[[str], str]
) -> None:
    """Make the directory `target` hold the tree with this digest; whatever was there is replaced.

    `read` gives the bytes of a small object, `fetch` a local file with a large one; both raise
    `MissingObject`. Raises IncompleteTree if an object is missing, BadTree if one is wrong, OSError if
    the disk is full. A failure leaves nothing behind.
    """
    target = os.path.abspath(target)
    _remove(target)
    open_packs: list[BinaryIO] = []
    try:
        segments, packs = _document(tree, read)
        sources = _open_packs(packs, fetch, open_packs)
        entries = [entry for segment in segments for entry in _segment(segment, sources)]
        _check(tree, entries, sources)
        os.makedirs(target)
        _check_space(target, entries)
        _write(tree, target, entries, sources)
    except BaseException as exc:
        _remove(target)
        if isinstance(exc, MissingObject):
            raise IncompleteTree(
                f"{exc}: a part of tree {tree} is gone from the store. Submit again"
            ) from exc
        raise
    finally:
        for pack in open_packs:
            pack.close()


def _remove(target: str) -> None:
    """Clear what an attempt that was killed left: its process id, so its name, may come again."""
    if os.path.lexists(target):
        import shutil

        shutil.rmtree(target)


def _document(tree: str, read: Callable[[str], bytes]) -> tuple[list[str], list[str]]:
    name = wire.tree_object(tree)
    try:
        document = json.loads(read(name))
        segments, packs = document["segments"], document["packs"]
        well_formed = document["version"] == stored_tree.VERSION and all(
            isinstance(item, str) and len(item) == 64 and item.isalnum() for item in [*segments, *packs]
        )
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise BadTree(f"{name} is not a tree document: {exc}") from exc
    if not well_formed:
        raise BadTree(f"{name} is not a tree document of version {stored_tree.VERSION}")
    if stored_tree.tree_digest(segments) != tree:
        raise BadTree(f"{name} is another tree than its name says")
    return segments, packs


def _open_packs(packs: list[str], fetch: Callable[[str], str], opened: list[BinaryIO]) -> dict[str, _Source]:
    sources: dict[str, _Source] = {}
    for pack in packs:
        name = wire.pack_object(pack)
        opened.append(stream := open(fetch(name), "rb"))  # noqa: SIM115  the caller closes it
        try:
            for content, member in stored_tree.read_members(stream).items():
                sources[content] = _Source(stream, name, member)
        except stored_tree.PackFormatError as exc:
            raise BadTree(f"{name} is not a pack: {exc}") from exc
    return sources


def _source(content: str, sources: dict[str, _Source]) -> _Source:
    try:
        return sources[content]
    except KeyError:
        raise MissingObject(f"no pack holds content {content}") from None


def _segment(segment: str, sources: dict[str, _Source]) -> list[list[Any]]:
    source = _source(segment, sources)
    if source.member.size > _LARGEST_SEGMENT:
        raise BadTree(f"{source.object_name}: segment {segment} is too large")
    content = b"".join(_content(source))
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise BadTree(f"{source.object_name}: segment {segment} is not a list of entries") from exc
    if not isinstance(entries, list) or not all(_is_entry(entry) for entry in entries):
        raise BadTree(f"{source.object_name}: segment {segment} holds an entry that is not one")
    return entries


def _is_entry(entry: object) -> bool:
    match entry:
        case ["f", str(), str(), int(), int(size)]:
            return size >= 0
        case ["d", str(), int()] | ["l", str(), str()]:
            return True
    return False


def _content(source: _Source) -> Iterator[bytes]:
    """The bytes of a member, checked to be what its name says by the time the last was given."""
    pack, object_name, member = source
    digest, left, size = hashlib.sha256(), member.stored, 0
    inflate = zlib.decompressobj(-15) if member.method == stored_tree.DEFLATED else None
    pack.seek(member.offset + stored_tree.LOCAL_BYTES)
    while left:
        raw = pack.read(min(_CHUNK, left))
        if not raw:
            raise BadTree(f"{object_name} is cut short")
        left -= len(raw)
        for content in (raw,) if inflate is None else _inflated(inflate, raw, source):
            size += len(content)
            if size > member.size:
                raise BadTree(f"{object_name}: {member.name} is larger than the {member.size} bytes declared")
            digest.update(content)
            yield content
    if size != member.size or digest.hexdigest() != member.name:
        raise BadTree(f"{object_name}: {member.name} has another content than its name says")


def _inflated(inflate: Any, raw: bytes, source: _Source) -> Iterator[bytes]:
    """What `raw` inflates to, never more than a chunk at a time."""
    while True:
        try:
            content = inflate.decompress(raw, _CHUNK)
        except zlib.error as exc:
            raise BadTree(f"{source.object_name}: {source.member.name} cannot be inflated: {exc}") from exc
        yield content
        raw = inflate.unconsumed_tail
        if not raw and len(content) < _CHUNK:  # a full chunk may have more behind it, without input left
            return


def _check(tree: str, entries: list[list[Any]], sources: dict[str, _Source]) -> None:
    """Refuse the whole tree for one bad entry, before the first is written."""
    name = wire.tree_object(tree)
    leaves: set[str] = set()
    for entry in entries:
        path = entry[1]
        if not _is_plain(path):
            raise BadTree(f"{name}: {path!r} is not a path inside the tree")
        if path in leaves:
            raise BadTree(f"{name}: {path!r} is there twice")
        leaves.add(path)
        if entry[0] == "f" and _source(entry[2], sources).member.size != entry[4]:
            raise BadTree(f"{name}: {path!r} has another size than its content")
        if entry[0] == "l" and not _stays_inside(path, entry[2]):
            raise BadTree(f"{name}: link {path!r} leads outside the tree, to {entry[2]!r}")
    folders: set[str] = set()
    for path in leaves:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            if folder in leaves:
                raise BadTree(f"{name}: {path!r} lies below {folder!r}, which is no directory with entries")
            folders.add(folder)
            folder = folder.rpartition("/")[0]


def _is_plain(path: str) -> bool:
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


def _check_space(target: str, entries: list[list[Any]]) -> None:
    needed = sum(entry[4] for entry in entries if entry[0] == "f")
    facts = os.statvfs(target)
    free = facts.f_bavail * facts.f_frsize
    if needed > free:
        import errno

        raise OSError(errno.ENOSPC, f"{needed} bytes to unpack, {free} free", target)


def _write(tree: str, target: str, entries: list[list[Any]], sources: dict[str, _Source]) -> None:
    made = {""}
    for entry in entries:
        kind, path = entry[0], entry[1]
        folder = path if kind == "d" else path.rpartition("/")[0]
        if folder not in made:
            os.makedirs(os.path.join(target, folder), exist_ok=True)
            made.add(folder)
        if kind == "d":
            os.chmod(os.path.join(target, path), entry[2] & 0o777)
        elif kind == "f":
            _write_file(os.path.join(target, path), entry[3] & 0o777, _source(entry[2], sources))
    root = os.path.realpath(target)
    links = [(os.path.join(target, entry[1]), entry) for entry in entries if entry[0] == "l"]
    for link, entry in links:  # last, so that nothing is ever written through one
        os.symlink(entry[2], link)
    for link, entry in links:
        if not (os.path.realpath(link) + os.sep).startswith(root + os.sep):
            raise BadTree(f"{wire.tree_object(tree)}: link {entry[1]!r} leads outside the tree")


def _write_file(path: str, mode: int, source: _Source) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        for content in _content(source):
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
