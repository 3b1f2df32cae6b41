"""Data of an attempt: every source becomes a directory, or a file in one, once.

A source is plain JSON in the payload:
`{"kind": "tree", "tree": sha256, "file": name or null}` content the submitter stored,
`{"kind": "gcs", "uri": ...}` a directory or object of any bucket, as it is when the job starts,
`{"kind": "hub", "repo": ..., "revision", "config", "split", "code", "endpoint", "plain"}` a dataset of the
    hub, as `datasets.load_from_disk` reads it, or its `plain` files,
`{"kind": "mounted", "path": ..., "file": ..., "uri": ...}` what the manifest has mounted.
With `"shard": true` each host gets its share of the files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from . import wire
from .shared_cache import Content, SharedCache
from .store import MissingObject, Store, read_at_most
from .trees import canonical
from .unpack import materialise_tree

if TYPE_CHECKING:
    from .downloads import Item
    from .hugging_face import HubData

Source = dict[str, Any]
Found = tuple[str, str | None]
"""Directory, and the one file in it that the source names, if it names one."""


class DataFolder:
    """Directory with one entry per content. A `shared` one may be used by other attempts at the same time.

    Entries appear whole, and are never changed: in a shared directory nobody may write to them. It is for
    attempts of one user only, who trust each other; pods share a `cache` instead, whose entries are copied
    before use. `shard` is this host's number and the number of hosts. No module below `away`, the project, is
    imported to make an entry. Trees may take files of the directory `spare`.
    """

    def __init__(
        self,
        folder: str,
        store: Store,
        *,
        shared: bool,
        shard: tuple[int, int] = (0, 1),
        cache: SharedCache | None = None,
        away: str = "",
        spare: str = "",
    ) -> None:
        self._folder, self._away, self._spare = folder, away, spare
        self._store = store
        self._shared = shared
        self._shard = shard
        self._cache = cache

    def find(self, source: Source) -> Found:
        """Return where a source's data is, after making it if it is missing.

        Raises MissingObject, naming an object that does not exist; OSError if the disk is too small.
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
            from .bucket_data import GcsData

            bucket = GcsData(source["uri"])
            items, make, file, name = bucket.items, bucket.make, bucket.file, source["uri"]
        elif source["kind"] == "hub":
            from .hugging_face import HubData

            hub = HubData(source)
            items, make, file, name = hub.items, hub.make, None, hub.commit
            if not source.get("plain"):
                make, suffix = partial(_make_dataset, hub, source["split"], self._away), f"-dataset{suffix}"
        else:
            raise ValueError(f"data of kind {source['kind']!r}: the job was submitted by a newer version")
        content = wire.digest(canonical([name, [tuple(item) for item in items]]))
        share = items[shard[0] :: shard[1]]
        return self._once(content + suffix, lambda to: make(share, to, self._cache)), file

    def unpack(self, tree: str) -> str:
        """Return the directory of a tree, after unpacking it if it is missing."""
        return self.find({"kind": "tree", "tree": tree, "file": None})[0]

    def _unpack(self, tree: str, target: str, shard: tuple[int, int]) -> None:
        def fetch(name: str, most: int) -> str:
            if self._cache is None:
                return self._store.fetch(name, most)
            return self._cached(name, most, self._cache)

        def read(name: str) -> bytes:
            return read_at_most(self._store, name, wire.LARGEST_DOCUMENT)

        materialise_tree(
            tree, target, read=read, fetch=fetch, discard=self._discard, shard=shard, spare=self._spare
        )

    def _cached(self, name: str, most: int, cache: SharedCache) -> str:
        """Return a file of this attempt's own with a pack, which is named by its digest."""
        pack = Content("sha256", name.rpartition("/")[2].partition(".")[0], None, most)
        own = os.path.join(self._folder, f"{os.urandom(6).hex()}.pack")
        if cache.take(pack, own):
            return own
        with cache.lock(pack.digest):
            if cache.take(pack, own):
                return own
            fetched = self._store.fetch(name, most)
            cache.keep(pack, fetched)
        return fetched

    def _discard(self, path: str) -> None:
        """Remove a fetched pack, but never a file of the store itself, if that is a directory."""
        fetched = os.path.join(os.environ.get("KINETIC_WORK_DIR", "/kinetic"), "fetched")
        if path.startswith((fetched + os.sep, self._folder + os.sep)):
            os.unlink(path)

    def _once(self, name: str, make: Callable[[str], None]) -> str:
        """Return the entry of that name; of several attempts that need it at one time, one makes it."""
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
        """Lock an entry of a shared directory while it is made; remove what a killed holder left."""
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


def _make_dataset(
    hub: HubData, split: str | None, away: str, items: list[Item], target: str, cache: SharedCache | None
) -> None:
    """Download the given items, and write them to `target` as `datasets` keeps a dataset on a disk."""
    from .dataset_form import save_dataset

    work = (
        target.removesuffix(".part") + "-files.part"
    )  # which is removed as the target is, if this is killed
    files = os.path.join(work, "files")
    try:
        os.makedirs(work)
        hub.make(items, files, cache)
        save_dataset(hub.uri, files, target, split, [item.path for item in items], away)
    finally:
        if os.path.isdir(work):
            _remove(work)


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
    """Take away the right to write files, because others share this copy; its owner can still remove it."""
    for base, _, files in os.walk(folder):
        for path in (os.path.join(base, name) for name in files):
            if not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode & 0o555)


def _remove(folder: str) -> None:
    import shutil

    for base, _, _ in os.walk(folder):
        os.chmod(base, 0o700)
    shutil.rmtree(folder)
