"""Where an attempt finds its data: every source becomes a directory, or a file in one, once.

A source is plain JSON in the payload:
`{"kind": "tree", "tree": sha256, "file": name or null}` content the submitter stored,
`{"kind": "gcs", "uri": ...}` a directory or object of any bucket, as it is when the job starts,
`{"kind": "hub", "repo": ..., "revision", "config", "split", "code", "endpoint"}` a dataset of the hub,
`{"kind": "mounted", "path": ..., "file": ..., "uri": ...}` what the manifest has mounted.
With `"shard": true` each host gets its share of the files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import wire
from .store import MissingObject, Store, open_store
from .stored_tree import canonical
from .unpack import materialise_tree

if TYPE_CHECKING:
    from .downloads import Item

Source = dict[str, Any]
Found = tuple[str, str | None]
"""A directory, and the one file in it that is meant, if one is."""


class DataFolder:
    """A directory with one entry per content. A `shared` one may be used by other attempts at the same time.

    Entries appear whole, and are never changed: in a shared directory nobody may write to them.
    `shard` is this host's number and how many there are.
    """

    def __init__(self, folder: str, store: Store, *, shared: bool, shard: tuple[int, int] = (0, 1)) -> None:
        self._folder = folder
        self._store = store
        self._shared = shared
        self._shard = shard

    def find(self, source: Source) -> Found:
        """Where a source's data is, made if it is not there yet.

        Raises MissingObject, naming it, if any of it is not to be had; OSError if the disk is too small.
        """
        shard = self._shard if source.get("shard") else (0, 1)
        suffix = "" if shard[1] == 1 else f"-{shard[0]}of{shard[1]}"
        if source["kind"] == "mounted":
            return _mounted(source)
        if source["kind"] == "tree":
            tree = source["tree"]
            return self._once(tree + suffix, lambda to: self._unpack(tree, to, shard)), source["file"]
        items: list[Item]
        if source["kind"] == "gcs":
            from .bucket import GcsData

            bucket = GcsData(source["uri"])
            items, make, file, name = bucket.items, bucket.make, bucket.file, source["uri"]
        elif source["kind"] == "hub":
            from .hub import HubData

            hub = HubData(source)
            items, make, file, name = hub.items, hub.make, None, hub.commit
        else:
            raise ValueError(f"data of kind {source['kind']!r}: the job was submitted by a newer version")
        content = wire.digest(canonical([name, [tuple(item) for item in items]]))
        share = items[shard[0] :: shard[1]]
        return self._once(content + suffix, lambda to: make(share, to)), file

    def unpack(self, tree: str) -> str:
        """The directory of a tree."""
        return self.find({"kind": "tree", "tree": tree, "file": None})[0]

    def _unpack(self, tree: str, target: str, shard: tuple[int, int]) -> None:
        stores = _ThreadStores(self._store)
        materialise_tree(
            tree, target, read=self._store.read, fetch=stores.fetch, discard=self._discard, shard=shard
        )

    def _discard(self, path: str) -> None:
        """Remove a fetched pack; a path inside the store itself (a directory) is not ours."""
        if path.startswith(os.path.join(os.environ.get("KINETIC_WORK_DIR", "/kinetic"), "fetched") + os.sep):
            os.unlink(path)

    def _once(self, name: str, make: Callable[[str], None]) -> str:
        """The entry of that name; several attempts that need it at one time make it once."""
        folder = os.path.join(self._folder, name)
        if os.path.isdir(folder):
            return folder
        os.makedirs(self._folder, exist_ok=True)
        with self._lock(name):
            if os.path.isdir(folder):
                return folder
            fresh = f"{folder}.{os.urandom(6).hex()}.part"
            try:
                make(fresh)
                if self._shared:
                    _protect(fresh)
                os.rename(fresh, folder)
            except BaseException as exc:
                if os.path.lexists(fresh):
                    _remove(fresh)
                if not (isinstance(exc, OSError) and os.path.isdir(folder)):
                    raise  # else another attempt was quicker with the same content
        return folder

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """Held while an entry of a shared directory is made; what a killed holder left is removed."""
        if not self._shared:
            yield
            return
        import fcntl

        with open(os.path.join(self._folder, f"{name}.lock"), "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sys.stderr.write("kinetic: waiting: another job downloads the same data\n")
                fcntl.flock(lock, fcntl.LOCK_EX)
            for left in os.listdir(self._folder):
                if left.startswith(name + ".") and left.endswith(".part"):
                    _remove(os.path.join(self._folder, left))
            yield


class _ThreadStores:
    """The job's store for threads: a connection is one thread's."""

    def __init__(self, store: Store) -> None:
        import threading

        self._main = store
        self._owner = threading.get_ident()
        self._own = threading.local()

    def fetch(self, name: str) -> str:
        import threading

        if threading.get_ident() == self._owner:
            return self._main.fetch(name)
        if not hasattr(self._own, "store"):
            self._own.store = open_store(self._main.uri)
        path: str = self._own.store.fetch(name)
        return path


def _mounted(source: Source) -> Found:
    folder, file = source["path"], source["file"]
    try:
        empty = not os.path.exists(os.path.join(folder, file)) if file else not os.listdir(folder)
    except OSError as exc:
        raise MissingObject(f"{source['uri']} is not mounted at {folder}: {exc.strerror}") from exc
    if empty:
        raise MissingObject(f"{source['uri']} is not there, or holds nothing")
    return folder, file


def _protect(folder: str) -> None:
    """Take away the right to write files: others share this copy. Whoever may remove it can still do so."""
    for base, _, files in os.walk(folder):
        for path in (os.path.join(base, name) for name in files):
            if not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode & 0o555)


def _remove(folder: str) -> None:
    import shutil

    for base, _, _ in os.walk(folder):
        os.chmod(base, 0o700)
    shutil.rmtree(folder)
