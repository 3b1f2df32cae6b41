"""What stands for a `Data` in a payload: where the runner finds it (`runner/data.py` says the forms)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinetic_core._runner.wire import data_prefix, digest
from kinetic_core.configuration import read_settings
from kinetic_core.data.data import Data
from kinetic_core.data.locations import gcs_location
from kinetic_core.errors import InvalidRequest
from kinetic_core.model.job import BucketMount
from kinetic_core.packaging.plain import store_plain
from kinetic_core.packaging.tree import StoredTree, store_data
from kinetic_core.storage.protocol import ObjectStore

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


def check_data(data: Data, project: str) -> None:
    """Refuse `gs://` data that is not there. Raises InvalidRequest, StoreError; asks the bucket once.

    What this account may not see is left to the job, whose account may.
    """
    if not data.is_gcs:
        return
    from kinetic_core.storage.lookup import Sight, look

    bucket, name = gcs_location(data.path)
    sight = look(bucket, name, replace(read_settings(), project=project))
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
        raise InvalidRequest(f"{data!r}: there is no file in it, and a bucket has no empty directories")
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
    }


def _sharding(data: Data) -> dict[str, bool]:
    return {"shard": True} if data.shard else {}
