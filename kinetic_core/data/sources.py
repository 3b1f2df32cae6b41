"""What stands for a `Data` in a payload: where the runner finds it (`runner/data.py` says the forms)."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinetic_core._runner.gcs import MD5
from kinetic_core._runner.object_names import data_prefix
from kinetic_core._runner.sizes import shown_size
from kinetic_core._runner.trees import PIECE
from kinetic_core._runner.wire import digest
from kinetic_core.connections import Connections
from kinetic_core.data.data import Data
from kinetic_core.data.locations import gcs_location
from kinetic_core.errors import InvalidProject, InvalidRequest
from kinetic_core.job import BucketMount
from kinetic_core.project.files import FileFacts, Listing, data_listing, file_facts
from kinetic_core.project.packs import PACK, ContentChanged
from kinetic_core.project.snapshot import take_snapshot
from kinetic_core.project.stat_index import StatIndex, index_path, read_index, recorded, write_index
from kinetic_core.project.tree import StoredTree, shortened, store_data
from kinetic_core.store.protocol import ObjectStore

_THREADS = 16
_TRIES = 3


def store_plain(
    path: Path, store: ObjectStore, *, cache: Path, progress: Callable[[str], None] = lambda _stage: None
) -> StoredTree:
    """Store a directory, or the one file, below `data/{sha256}/`, and remove everything else there.

    A mount shows whatever is there, and nothing in the pod verifies it: objects that another program has
    changed or added are replaced or removed, and a notice says so.

    Links to files are stored as the files they lead to. A bucket has no empty directories, modes or links
    to directories: a notice names what is left out. Raises InvalidProject for what cannot be read, changes
    while it is stored or has a line break in its name, and StoreError.
    """
    root, look = data_listing(path)
    name = f"data:{os.path.abspath(path)}"
    index_file = index_path(str(cache), f"{name}:plain", store.uri)
    md5_file = index_path(str(cache), f"{name}:md5", store.uri)
    removed: set[str] = set()
    for _ in range(_TRIES):
        started = time.time_ns()
        listing, notices = _read_through(root, look())
        index = read_index(index_file)
        snapshot = take_snapshot(root, listing, index)
        digests = recorded(snapshot.files, started)
        if digests != index.digests:
            write_index(index_file, StatIndex(digests))
        prefix = data_prefix(snapshot.tree)
        there = {info.name.removeprefix(prefix): info for info in store.list(prefix)}
        try:
            md5s = _md5s(root, [facts for facts, _ in snapshot.files if facts.path in there], md5_file)
            genuine = {path for path, md5 in md5s.items() if there[path].md5 == md5}
            foreign = [info for path, info in there.items() if path not in genuine]
            store.delete_seen(foreign)
            removed.update(info.name for info in foreign)
            missing = [(facts, digests) for facts, digests in snapshot.files if facts.path not in genuine]
            stored = _upload(root, missing, store, prefix, progress)
        except ContentChanged as exc:
            changed = exc
            continue
        told = shortened(notices)
        if removed:
            told.append(
                f"removed {len(removed)} objects below {store.uri}/{prefix} that are not of "
                f"{os.fspath(path)!r}: another program has changed or added them"
            )
        tree = StoredTree(snapshot.tree, len(snapshot.files), snapshot.size, stored)
        return replace(tree, notices=tuple(told))
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


def _md5s(root: str, files: Sequence[FileFacts], index_file: str) -> dict[str, str]:
    """Return the MD5 of files by path, from the index where they are certainly unchanged.

    Cloud Storage has no stronger checksum. Nobody can make other bytes of a given MD5, while those of a given
    CRC32C are made at once. Raises ContentChanged for a file that is not as it was listed.
    """
    started = time.time_ns()
    index = read_index(index_file)

    def md5(facts: FileFacts) -> str:
        if known := index.digest(facts):
            return known
        full = os.path.join(root, facts.path)
        try:
            with open(full, "rb") as stream:
                found = hashlib.file_digest(stream, MD5.new).hexdigest()
                after = file_facts(facts.path, os.fstat(stream.fileno()))
        except OSError as exc:
            raise ContentChanged(f"{full!r} went away") from exc
        if after[2:] != facts[2:]:
            raise ContentChanged(f"{full!r} changed")
        return found

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = list(zip(files, pool.map(md5, files), strict=True))
    if (digests := recorded(found, started)) != index.digests:
        write_index(index_file, StatIndex(digests))
    return {facts.path: digest for facts, digest in found}


def _upload(
    root: str,
    missing: Sequence[tuple[FileFacts, str]],
    store: ObjectStore,
    prefix: str,
    progress: Callable[[str], None],
) -> int:
    """Store these files, given with their digests; return their bytes."""
    if not missing:
        return 0
    total, done = sum(facts.size for facts, _ in missing), 0
    progress(f"uploading {len(missing)} files, {shown_size(total)}")

    def send(one: tuple[FileFacts, str]) -> int:
        return _send(root, one[0], one[1], store, prefix)

    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            for size in pool.map(send, missing):
                before, done = done, done + size
                if done // PACK > before // PACK:
                    progress(f"uploading: {shown_size(done)} of {shown_size(total)}")
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
        if not store.create_if_absent(name, content):
            _require_same(full, name, store)
            return facts.size  # by another client, who is storing the same content
        if file_facts(facts.path, os.stat(full))[2:] != facts[2:] and facts.size > PIECE:
            store.delete(name)
            raise ContentChanged(f"{full!r} changed")
    except FileNotFoundError as exc:
        raise ContentChanged(f"{full!r} went away") from exc
    return facts.size


def _require_same(path: str, name: str, store: ObjectStore) -> None:
    """Raise ContentChanged unless the object has the content of the file."""
    info = store.find(name)
    with open(path, "rb") as stream:
        md5 = hashlib.file_digest(stream, MD5.new).hexdigest()
    if info is None or info.md5 != md5:
        raise ContentChanged(f"{store.uri}/{name} changed")


MOUNTS = "/kinetic-mounts"
"""Where buckets are mounted that no volume names."""


@dataclass(frozen=True)
class Shop:
    """Where data is stored, and how: `mounts` says whether jobs there can mount buckets."""

    store: ObjectStore
    cache: Path
    mounts: bool
    project: str = ""
    hub_endpoint: str = ""
    progress: Callable[[str], None] = lambda _stage: None


@dataclass(frozen=True)
class StoredData:
    """Data that jobs can have: the source in the payload, and the mount in the pod, if it needs one.

    `size` are the bytes that a job copies, as far as they are known here.
    """

    source: dict[str, Any]
    mount: BucketMount | None = None
    notices: tuple[str, ...] = ()
    size: int = 0


def check_data(data: Data, connections: Connections) -> None:
    """Refuse `gs://` data that is not there. Raises InvalidRequest, StoreError; asks the bucket once.

    What this account may not see is left to the job, whose account may.
    """
    if not data.is_gcs:
        return
    from kinetic_core.store.gcs import Sight, look

    bucket, name = gcs_location(data.path)
    sight = look(bucket, name, connections)
    if sight is Sight.NO_BUCKET:
        raise InvalidRequest(f"{data!r}: there is no bucket {bucket!r}, or this account may not see it")
    if sight is Sight.DIRECTORY:
        raise InvalidRequest(f"{data!r} is a directory: write it with a slash at its end, '{data.path}/'")
    if sight is Sight.NOTHING and data.is_dir:
        raise InvalidRequest(f"{data!r}: no object's name begins with {name!r} in bucket {bucket!r}")
    if sight is Sight.NOTHING:
        raise InvalidRequest(f"{data!r}: bucket {bucket!r} has no object {name!r}")


def store(data: Data, shop: Shop) -> StoredData:
    """Store what of the data is on this machine. Raises InvalidProject, StoreError."""
    if data.is_gcs:
        bucket, name = gcs_location(data.path)
        if data.fuse and shop.mounts:
            folder, _, last = name.rpartition("/")
            return _mounted(BucketMount(_mount_path(bucket, folder), bucket, folder), last or None, data.path)
        return StoredData({"kind": "gcs", "uri": data.path, **_sharding(data)})
    if data.dataset is not None:
        return StoredData({**_hub(data, shop.hub_endpoint), **_sharding(data)})
    file = None if data.is_dir else Path(data.path).name
    if data.fuse and shop.mounts:
        return _stored_for_mount(data, file, shop)
    tree = store_data(Path(data.path), shop.store, cache=shop.cache, progress=shop.progress)
    source = {"kind": "tree", "tree": tree.sha256, "file": file, **_sharding(data)}
    return StoredData(source, notices=tree.notices, size=tree.size)


def _stored_for_mount(data: Data, file: str | None, shop: Shop) -> StoredData:
    tree: StoredTree = store_plain(Path(data.path), shop.store, cache=shop.cache, progress=shop.progress)
    if not tree.files:
        raise InvalidRequest(f"{data!r} is an empty directory, which a bucket cannot hold: add a file")
    bucket, _, prefix = shop.store.uri.removeprefix("gs://").partition("/")
    folder = f"{prefix}/{data_prefix(tree.sha256)}".strip("/")
    stored = _mounted(
        BucketMount(_mount_path(bucket, folder), bucket, folder), file, f"gs://{bucket}/{folder}"
    )
    return StoredData(stored.source, stored.mount, tree.notices)


def _mounted(mount: BucketMount, file: str | None, uri: str) -> StoredData:
    return StoredData({"kind": "mounted", "path": mount.path, "file": file, "uri": uri}, mount)


def _mount_path(bucket: str, folder: str) -> str:
    return f"{MOUNTS}/{digest(f'{bucket}/{folder}'.encode())[:16]}"


def _hub(data: Data, endpoint: str) -> dict[str, Any]:
    dataset = data.dataset
    assert dataset is not None  # noqa: S101  the caller has looked
    return {
        "kind": "hub",
        "repo": dataset.repo,
        "revision": dataset.revision,
        "config": dataset.config_name,
        "split": dataset.split,
        "code": data.hf_trust_remote_code,
        "endpoint": endpoint,
        "plain": dataset.plain,
    }


def _sharding(data: Data) -> dict[str, bool]:
    return {"shard": True} if data.shard else {}
