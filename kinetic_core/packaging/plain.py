"""Store data as the objects a bucket mount shows: one per file, under its own path.

The directory is named by the digest of what is in it, and what is there is compared with what should be,
file by file, every time: an upload that was interrupted is gone on with, and what somebody removed comes
back.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from kinetic_core._runner.stored_tree import PIECE
from kinetic_core._runner.wire import data_prefix
from kinetic_core.errors import InvalidProject, ObjectExists
from kinetic_core.packaging.data_listing import data_listing
from kinetic_core.packaging.packs import PACK, ContentChanged
from kinetic_core.packaging.scan import FileFacts, Listing, file_facts
from kinetic_core.packaging.snapshot import Snapshot, take_snapshot
from kinetic_core.packaging.stat_index import StatIndex, index_path, read_index, recorded, write_index
from kinetic_core.packaging.tree import StoredTree, shortened
from kinetic_core.storage.protocol import ObjectStore

_THREADS = 16
_TRIES = 3


def store_plain(
    path: Path, store: ObjectStore, *, cache: Path, progress: Callable[[str], None] = lambda _stage: None
) -> StoredTree:
    """Store a directory, or the one file, below `data/{sha256}/`.

    Links to files are stored as the files they lead to. A bucket has no empty directories, modes or links
    to directories: a notice names what is left out. Raises InvalidProject for what cannot be read, changes
    while it is stored or has a line break in its name, and StoreError.
    """
    root, look = data_listing(path)
    index_file = index_path(str(cache), f"data:{os.path.abspath(path)}:plain", store.uri)
    for _ in range(_TRIES):
        started = time.time_ns()
        listing, notices = _read_through(root, look())
        index = read_index(index_file)
        snapshot = take_snapshot(root, listing, index)
        digests = recorded(snapshot.files, started)
        if digests != index.digests:
            write_index(index_file, StatIndex(digests))
        try:
            stored = _upload(root, snapshot, store, progress)
        except ContentChanged as exc:
            changed = exc
            continue
        tree = StoredTree(snapshot.tree, len(snapshot.files), snapshot.size, stored)
        return replace(tree, notices=tuple(shortened(notices)))
    raise InvalidProject(f"{changed} while it was being stored, again and again. Wait for what writes it")


def _read_through(root: str, listing: Listing) -> tuple[Listing, list[str]]:
    """The listing with files in place of links to them, and notices about what is left out."""
    files, notices = list(listing.files), list(listing.notices)
    for path, _ in listing.links:
        full = os.path.join(root, path)
        if os.path.isfile(full):
            files.append(file_facts(path, os.stat(full)))
        else:
            notices.append(f"left out {path!r}: a bucket has no links to directories")
    notices += [f"left out {path!r}: a bucket has no empty directories" for path, _ in listing.empty]
    return Listing(files=files), notices


def _upload(root: str, snapshot: Snapshot, store: ObjectStore, progress: Callable[[str], None]) -> int:
    """Store the files that are not there with their size; the bytes of these."""
    prefix = data_prefix(snapshot.tree)
    there = {info.name.removeprefix(prefix): info.size for info in store.list(prefix)}
    missing = [(facts, digests) for facts, digests in snapshot.files if there.get(facts.path) != facts.size]
    if not missing:
        return 0
    total, done = sum(facts.size for facts, _ in missing), 0
    progress(f"uploading {len(missing)} files, {total >> 20} MiB")

    def send(one: tuple[FileFacts, str]) -> int:
        return _send(root, one[0], one[1], store, prefix)

    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            for size in pool.map(send, missing):
                before, done = done, done + size
                if done // PACK > before // PACK:
                    progress(f"uploading: {done >> 20} of {total >> 20} MiB")
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return done


def _send(root: str, facts: FileFacts, digests: str, store: ObjectStore, prefix: str) -> int:
    """One file. What is stored is what was hashed: its bytes are compared, or for a large one its `stat`."""
    full = os.path.join(root, facts.path)
    name = prefix + facts.path
    try:
        content: bytes | Path = Path(full)
        if facts.size <= PIECE:
            content = Path(full).read_bytes()
            if hashlib.sha256(content).hexdigest() != digests:
                raise ContentChanged(f"{full!r} changed")
        store.create(name, content)
        if file_facts(facts.path, os.stat(full))[2:] != facts[2:] and facts.size > PIECE:
            store.delete(name)
            raise ContentChanged(f"{full!r} changed")
    except ObjectExists:
        pass  # by another client, who is storing the same content
    except FileNotFoundError as exc:
        raise ContentChanged(f"{full!r} went away") from exc
    return facts.size
