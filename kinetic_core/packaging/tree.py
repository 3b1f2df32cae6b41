"""Store a directory so that a job can have it: what the store holds already is not stored again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kinetic_core._runner.stored_tree import VERSION, canonical, pieces, split_digests
from kinetic_core._runner.wire import pack_object, tree_object
from kinetic_core.errors import InvalidProject, ObjectExists
from kinetic_core.packaging.data_listing import data_listing
from kinetic_core.packaging.doubts import doubted_at
from kinetic_core.packaging.ignore import project_rules, secrets_notice
from kinetic_core.packaging.packs import PACK, Content, ContentChanged, store_packs
from kinetic_core.packaging.project import Project
from kinetic_core.packaging.scan import Listing, scan
from kinetic_core.packaging.snapshot import Snapshot, take_snapshot
from kinetic_core.packaging.stat_index import StatIndex, index_path, read_index, recorded, write_index
from kinetic_core.storage.protocol import ObjectStore

_TRIES = 3
_SPARE_PACKS = 16
"""A tree spread over so many packs more than it would fill is stored anew."""
_VERIFY_AFTER = 7 * 86400.0
_WORTH_KEEPING = 64 << 20
"""Bytes whose digests are kept even if storing them is interrupted."""
_LOOKS = 32
_SHOWN = 5


@dataclass(frozen=True)
class StoredTree:
    """A tree that is in the store.

    `files` and `size` (bytes) describe the whole tree, `stored` is how many bytes this call had to add.
    `notices` are sentences for the user.
    """

    sha256: str
    files: int
    size: int
    stored: int
    notices: tuple[str, ...] = ()


def store_project(
    project: Project,
    store: ObjectStore,
    *,
    cache: Path,
    default_excludes: bool = True,
    without: Sequence[Path] = (),
    warn_bytes: int = 0,
    progress: Callable[[str], None] = lambda _stage: None,
) -> StoredTree:
    """Store the project's files, except what `packaging.ignore` leaves out and the paths in `without`.

    `cache` is a directory for the index of unchanged files; if it cannot be written, each time is the
    first. Above `warn_bytes` (0: never) a notice names the largest files. Raises InvalidProject, before
    anything is stored, for a file or directory that cannot be read, and StoreError.
    """
    root = str(project.root)
    left_out = [os.path.abspath(path) for path in without]
    secrets: list[str] = []

    def look() -> Listing:
        secrets.clear()
        rules = replace(project_rules(root, default_excludes), secrets=secrets)
        return scan(root, rules, only=project.only, without=left_out)

    stored, snapshot, notices = _store(root, root, look, store, cache, progress)
    if secrets:
        notices.append(secrets_notice(secrets))
    if 0 < warn_bytes < stored.size:
        notices.append(_size_notice(root, snapshot))
    return replace(stored, notices=tuple(notices))


def store_data(
    path: Path, store: ObjectStore, *, cache: Path, progress: Callable[[str], None] = lambda _stage: None
) -> StoredTree:
    """Store a directory with everything in it, or a file as the only entry of a tree.

    What is in the store already is looked at every time, so that data a lifecycle rule removed is stored
    again. Raises InvalidProject for a path that is not there, cannot be read or has a line break in a
    name, and StoreError.
    """
    root, look = data_listing(path)
    key = f"data:{os.path.abspath(path)}"
    stored, _, notices = _store(key, root, look, store, cache, progress, always_look=True)
    return replace(stored, notices=tuple(notices))


def _store(
    key: str,
    root: str,
    look: Callable[[], Listing],
    store: ObjectStore,
    cache: Path,
    progress: Callable[[str], None],
    always_look: bool = False,
) -> tuple[StoredTree, Snapshot, list[str]]:
    file = index_path(str(cache), key, store.uri)
    for _ in range(_TRIES):
        started = time.time_ns()
        index = read_index(file)
        listing = look()
        snapshot = take_snapshot(root, listing, index)
        digests = recorded(snapshot.files, started)
        if index.tree is None and snapshot.size > _WORTH_KEEPING and digests != index.digests:
            write_index(file, StatIndex(digests))
        trusted = not always_look and not store.uri.startswith("file:")
        try:
            stored, fresh = _ensure_stored(root, snapshot, index, _Place(store, cache, trusted, progress))
        except ContentChanged as exc:
            changed = exc
            continue
        fresh = replace(fresh, digests=digests)
        if fresh != index:
            write_index(file, fresh)
        tree = StoredTree(snapshot.tree, len(snapshot.files), snapshot.size, stored)
        return tree, snapshot, shortened(listing.notices)
    raise InvalidProject(
        f"{changed} while it was being stored, again and again. Wait for what writes it, or leave it out of "
        "the project (.kineticignore); of data, pass a copy"
    )


@dataclass(frozen=True)
class _Place:
    """Where to store. What was seen in a `trusted` store a short time ago is taken to be there.

    A directory never is: asking it costs no more than a few `stat`, and objects do get deleted.
    """

    store: ObjectStore
    cache: Path
    trusted: bool
    progress: Callable[[str], None]


def _ensure_stored(root: str, snapshot: Snapshot, index: StatIndex, place: _Place) -> tuple[int, StatIndex]:
    """Store what is missing. The bytes stored, and an index of where things are (digests are the old)."""
    store, tree, now = place.store, snapshot.tree, time.time()
    recent = 0 <= now - index.verified < _VERIFY_AFTER
    recent = recent and index.verified > doubted_at(place.cache, store.uri)
    trusted = recent and place.trusted
    verified = index.verified if recent else now
    if index.tree == tree and (trusted or _is_whole(store, tree, index.packs)):
        return 0, replace(index, verified=verified)
    where = replace(
        index, tree=tree, segments=tuple(digest for digest, _ in snapshot.segments), verified=verified
    )
    packs = _packs_of(store, tree)
    if packs is not None:
        return 0, replace(where, packs=packs)
    kept = index.packs
    fragmented = len(kept) >= _SPARE_PACKS + 2 * snapshot.size // PACK
    if index.tree is None or fragmented or not (trusted or _are_there(store, kept)):
        index, kept = StatIndex(), ()
    contents = _contents(root, snapshot, index.contents())
    stored = 0
    if contents:
        place.progress(f"storing {len(contents)} new contents of {len(snapshot.files)} files")
        new = store_packs(contents, store, _scratch(place.cache), partial(_tell, place.progress))
        kept, stored = tuple(dict.fromkeys((*new.packs[:1], *kept, *new.packs[1:]))), new.stored
    document = canonical(
        {
            "version": VERSION,
            "segments": list(where.segments),
            "packs": list(kept),
            "size": snapshot.size,
        }
    )
    try:
        store.create(tree_object(tree), document)
        stored += len(document)
    except ObjectExists:  # another client stored the same tree meanwhile; its packs hold all of it too
        pass
    return stored, replace(where, packs=kept)


def _tell(progress: Callable[[str], None], done: int, total: int) -> None:
    if total > PACK:
        progress(f"uploading: {done >> 20} of {total >> 20} MiB")


def _contents(root: str, snapshot: Snapshot, known: set[str]) -> list[Content]:
    """What is not known to be stored, once each. The listing comes first: the reader begins with it."""
    listing = {
        digest: Content(digest, body, len(body)) for digest, body in snapshot.segments if digest not in known
    }
    contents: dict[str, Content] = {}
    for facts, digests in snapshot.files:
        if digests in known:
            continue
        path = os.path.join(root, facts.path)
        for digest, (offset, size) in zip(split_digests(digests), pieces(facts.size), strict=True):
            if digest not in known and digest not in listing:
                contents[digest] = Content(digest, path, size, offset)
    return [*(listing[name] for name in sorted(listing)), *(contents[name] for name in sorted(contents))]


def _packs_of(store: ObjectStore, tree: str) -> tuple[str, ...] | None:
    """The packs of a stored tree. One that lost a pack is removed, to be stored anew, and is None."""
    name = tree_object(tree)
    if store.find(name) is None:
        return None
    try:
        packs = tuple(str(pack) for pack in json.loads(store.read(name))["packs"])
    except (ValueError, KeyError, TypeError):
        packs = None
    if packs is None or not _are_there(store, packs):
        store.delete(name)
        return None
    return packs


def _is_whole(store: ObjectStore, tree: str, packs: Sequence[str]) -> bool:
    return store.find(tree_object(tree)) is not None and _are_there(store, packs)


def _are_there(store: ObjectStore, packs: Sequence[str]) -> bool:
    def is_there(pack: str) -> bool:
        return store.find(pack_object(pack)) is not None

    if len(packs) < 2:
        return all(map(is_there, packs))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_LOOKS, len(packs))) as pool:
        return all(pool.map(is_there, packs))


def _scratch(cache: Path) -> Path | None:
    try:
        os.makedirs(cache, mode=0o700, exist_ok=True)
    except OSError:
        return None
    return cache if os.access(cache, os.W_OK | os.X_OK) else None


def shortened(notices: list[str]) -> list[str]:
    """The first few notices, and how many there are besides."""
    if len(notices) <= _SHOWN:
        return list(notices)
    return [*notices[:_SHOWN], f"left out {len(notices) - _SHOWN} more entries that cannot be shipped"]


def _size_notice(root: str, snapshot: Snapshot) -> str:
    largest = sorted((facts.size, facts.path) for facts, _ in snapshot.files)[: -_SHOWN - 1 : -1]
    listed = ", ".join(f"{path} ({size / (1 << 20):.1f} MiB)" for size, path in largest)
    return (
        f"project {root} is {snapshot.size / (1 << 20):.0f} MiB; largest: {listed}. "
        "List what the job does not need in .kineticignore, or pass it as Data"
    )
