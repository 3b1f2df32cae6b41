"""Store a directory so that a job can have it: what the store holds already is not stored again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kinetic_core._runner import object_names
from kinetic_core._runner.sizes import shown_size
from kinetic_core._runner.store import ObjectTooLarge, read_at_most
from kinetic_core._runner.trees import VERSION, BadTree, canonical, pieces, read_document, split_digests
from kinetic_core._runner.wire import LARGEST_DOCUMENT
from kinetic_core.errors import InvalidProject, ObjectNotFound
from kinetic_core.project.files import Listing, data_listing, scan
from kinetic_core.project.ignore import name_notices, project_rules
from kinetic_core.project.packs import PACK, Content, ContentChanged, store_packs
from kinetic_core.project.root import Project
from kinetic_core.project.snapshot import Snapshot, take_snapshot
from kinetic_core.project.stat_index import StatIndex, index_path, read_index, recorded, write_index
from kinetic_core.store.protocol import ObjectStore

_TRIES = 3
_SPARE_PACKS = 16
"""A tree spread over so many packs more than it would fill is stored anew."""
_WORTH_KEEPING = 64 << 20
"""Bytes whose digests are kept even if storing them is interrupted."""
_SHOWN = 5


@dataclass(frozen=True)
class StoredTree:
    """A tree that is in the store.

    `files` and `size` (bytes) describe the whole tree, `stored` is how many bytes this call had to add.
    `notices` are sentences for the user. `beside` are those of the objects asked for that the store has.
    """

    sha256: str
    files: int
    size: int
    stored: int
    notices: tuple[str, ...] = ()
    beside: Set[str] = frozenset()


def store_project(
    project: Project,
    store: ObjectStore,
    *,
    cache: Path,
    default_excludes: bool = True,
    without: Sequence[Path] = (),
    warn_bytes: int = 0,
    progress: Callable[[str], None] = lambda _stage: None,
    beside: Sequence[str] = (),
) -> StoredTree:
    """Store the project's files, except what `packaging.ignore` leaves out and the paths in `without`.

    `cache` is a directory for the index of unchanged files; if it cannot be written, each time is the
    first. Above `warn_bytes` (0: never) a notice names the largest files. `beside` are other objects to look
    for with the same request. Raises InvalidProject, before
    anything is stored, for a file or directory that cannot be read, and StoreError.
    """
    root = str(project.root)
    by_name: list[str] = []

    def look() -> Listing:
        listing, by_name[:] = project_listing(project, default_excludes, without)
        return listing

    stored, snapshot, notices = _store(project.key, root, look, store, cache, progress, beside)
    notices += by_name
    if 0 < warn_bytes < stored.size:
        notices.append(_size_notice(root, snapshot))
    return replace(stored, notices=tuple(notices))


def project_listing(
    project: Project, default_excludes: bool = True, without: Sequence[Path] = ()
) -> tuple[Listing, list[str]]:
    """What of a project ships, and the notices about what was left out for its name. Opens no file.

    Raises InvalidProject.
    """
    left_out = [os.path.abspath(path) for path in without]

    def look(root: str, only: Collection[str] | None) -> tuple[Listing, list[str]]:
        rules = project_rules(root, default_excludes)
        found = scan(root, rules, only=only, without=left_out)
        found.left_out = rules.by_git
        return found, name_notices(rules)

    listing, notices = look(str(project.root), project.only)
    for place in project.elsewhere:
        more, also = look(str(place.directory), place.only)
        listing.add(more, str(place.directory), place.path)
        notices += also
    return listing, notices


def store_data(
    path: Path, store: ObjectStore, *, cache: Path, progress: Callable[[str], None] = lambda _stage: None
) -> StoredTree:
    """Store a directory with everything in it, or a file as the only entry of a tree.

    Raises InvalidProject for a path that is not there, cannot be read or has a line break in a
    name, and StoreError.
    """
    root, look = data_listing(path)
    key = f"data:{os.path.abspath(path)}"
    stored, _, notices = _store(key, root, look, store, cache, progress)
    return replace(stored, notices=tuple(notices))


def _store(
    key: str,
    root: str,
    look: Callable[[], Listing],
    store: ObjectStore,
    cache: Path,
    progress: Callable[[str], None],
    beside: Sequence[str] = (),
) -> tuple[StoredTree, Snapshot, list[str]]:
    file = index_path(str(cache), key, store.uri)
    for _ in range(_TRIES):
        started = time.time_ns()
        index = read_index(file)
        listing = look()
        snapshot = take_snapshot(root, listing, index)
        digests = recorded(snapshot.files, started)
        if index.tree is None and snapshot.size > _WORTH_KEEPING and digests != index.digests:
            write_index(file, replace(index, digests=digests))
        found_packs = index.found_packs if index.found_tree == snapshot.tree else ()
        packs = map(object_names.pack, (*index.packs, *found_packs))
        there = store.present([object_names.tree(snapshot.tree), *packs, *beside])
        try:
            stored, fresh = _ensure_stored(root, snapshot, index, _Place(store, there, cache, progress))
        except ContentChanged as exc:
            changed = exc
            continue
        fresh = replace(fresh, digests=digests)
        if fresh != index:
            write_index(file, fresh)
        found = there & set(beside)
        tree = StoredTree(snapshot.tree, len(snapshot.files), snapshot.size, stored, beside=found)
        return tree, snapshot, shortened(listing.notices)
    raise InvalidProject(
        f"{changed} while it was being stored, again and again. Wait for what writes it, or leave it out of "
        "the project (.kineticignore); of data, pass a copy"
    )


@dataclass(frozen=True)
class _Place:
    """Where to store. `there` is what has just been seen in the store of the tree and of known packs.

    Nothing is taken to be there because it was once: rules delete objects, and buckets are made anew.
    """

    store: ObjectStore
    there: Set[str]
    cache: Path
    progress: Callable[[str], None]


def _ensure_stored(root: str, snapshot: Snapshot, index: StatIndex, place: _Place) -> tuple[int, StatIndex]:
    """Store what is missing. The bytes stored, and an index of where things are, without digests of files."""
    store, tree = place.store, snapshot.tree
    is_there, kept = object_names.tree(tree) in place.there, index.packs
    all_kept = _are_there(kept, place.there)
    if index.tree == tree and is_there and all_kept:
        return 0, index
    if index.found_tree == tree and is_there and all_kept and _are_there(index.found_packs, place.there):
        return 0, index
    if not all_kept:
        index, kept = StatIndex(), ()
    if is_there and (found := _packs_of(store, snapshot)) is not None:
        # Only the job that uses the tree may suffer from a document which names packs without its contents:
        # among those of this machine, they would be missing from each of its later trees.
        held = tuple(sorted(index.contents()))
        return 0, StatIndex(packs=kept, held=held, found_tree=tree, found_packs=found)
    if len(kept) >= _SPARE_PACKS + 2 * snapshot.size // PACK:
        index, kept = StatIndex(), ()
    contents = _contents(root, snapshot, index.contents())
    stored = 0
    if contents:
        size, fresh = len(snapshot.files), {one.source for one in contents if isinstance(one.source, str)}
        if fresh:
            place.progress(f"storing {len(fresh)} of {size} file{'' if size == 1 else 's'}")
        new = store_packs(contents, store, _scratch(place.cache), partial(_tell, place.progress))
        kept, stored = tuple(dict.fromkeys((*new.packs[:1], *kept, *new.packs[1:]))), new.stored
    segments = [digest for digest, _ in snapshot.segments]
    document = canonical(
        {
            "version": VERSION,
            "segments": segments,
            "packs": list(kept),
            "size": snapshot.size,
        }
    )
    if store.create_if_absent(object_names.tree(tree), document):
        stored += len(document)  # else another client stored the same tree; its packs hold all of it too
    return stored, StatIndex(tree=tree, segments=tuple(segments), packs=kept)


def _tell(progress: Callable[[str], None], done: int, total: int) -> None:
    if total > PACK:
        progress(f"uploading: {shown_size(done)} of {shown_size(total)}")


def _contents(root: str, snapshot: Snapshot, known: set[str]) -> list[Content]:
    """What is not known to be stored, once each. The listing comes first: the reader begins with it."""
    listing = {
        digest: Content(digest, body, len(body)) for digest, body in snapshot.segments if digest not in known
    }
    contents: dict[str, Content] = {}
    for facts, digests in snapshot.files:
        if digests in known:
            continue
        path = snapshot.sources.get(facts.path) or os.path.join(root, facts.path)
        for digest, (offset, size) in zip(split_digests(digests), pieces(facts.size), strict=True):
            if digest not in known and digest not in listing:
                contents[digest] = Content(digest, path, size, offset)
    return [*(listing[name] for name in sorted(listing)), *(contents[name] for name in sorted(contents))]


def _are_there(packs: Sequence[str], there: Set[str]) -> bool:
    return there >= set(map(object_names.pack, packs))


def _packs_of(store: ObjectStore, snapshot: Snapshot) -> tuple[str, ...] | None:
    """The packs that the tree's stored document names; None, and the document removed, if it is not whole.

    What is in the packs is not known: whoever writes the bucket can name others.
    """
    name = object_names.tree(snapshot.tree)
    try:
        document = read_document(snapshot.tree, lambda name: read_at_most(store, name, LARGEST_DOCUMENT))
    except ObjectNotFound:
        return None
    except (BadTree, ObjectTooLarge):
        document = None
    if document is not None and document.size == snapshot.size:
        packs = tuple(document.packs)
        if _are_there(packs, store.present(list(map(object_names.pack, packs)))):
            return packs
    store.delete(name)
    return None


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
    listed = ", ".join(f"{path} ({shown_size(size)})" for size, path in largest)
    return (
        f"project {root} is {shown_size(snapshot.size)}; largest: {listed}. "
        "List what the job does not need in .kineticignore, or pass it as Data"
    )
