"""What a stored tree lists, checked: a document, its segments, and their entries one by one.

Whoever can write to the store could have written them: nothing is believed that a digest does not prove.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from . import stored_tree, wire

Entry = list[Any]
"""`["f", path, digests, mode, size]`, `["d", path, mode]` or `["l", path, target]`."""


class BadTree(ValueError):
    """The stored tree is not what its digest promises, or would leave its directory."""


class IncompleteTree(BadTree, LookupError):
    """A part of the tree is not in the store any more. Submitting again stores it again."""


class Document(NamedTuple):
    """A tree's segments and the packs to find everything in. `size` is said to be that of all files."""

    segments: list[str]
    packs: list[str]
    size: int


def read_document(tree: str, read: Callable[[str], bytes]) -> Document:
    """The document of a tree. Raises BadTree."""
    name = wire.tree_object(tree)
    try:
        document = json.loads(read(name))
        segments, packs, size = document["segments"], document["packs"], document.get("size", 0)
        well_formed = document["version"] == stored_tree.VERSION and isinstance(size, int)
        well_formed = well_formed and all(
            isinstance(item, str) and len(item) == stored_tree.HEX and item.isalnum()
            for item in [*segments, *packs]
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise BadTree(f"{name} is not a tree document: {exc}") from exc
    if not well_formed:
        raise BadTree(f"{name} is not a tree document of version {stored_tree.VERSION}")
    if stored_tree.tree_digest(segments) != tree:
        raise BadTree(f"{name} is another tree than its name says")
    return Document(segments, list(dict.fromkeys(packs)), size)


def parse_segment(name: str, content: bytes) -> list[Entry]:
    """The entries of a segment that is called `name` in messages. Raises BadTree."""
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise BadTree(f"{name} is not a list of entries") from exc
    if not isinstance(entries, list) or not all(_is_entry(entry) for entry in entries):
        raise BadTree(f"{name} holds an entry that is not one")
    return entries


def check_entries(tree: str, entries: list[Entry]) -> None:
    """Refuse the whole tree for one bad entry. Raises BadTree."""
    name = wire.tree_object(tree)
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
        if entry[0] == "f" and len(entry[2]) != stored_tree.HEX * stored_tree.count_pieces(entry[4]):
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
    """Whether a path stays below the directory that it is joined to."""
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
