"""What `Data` costs: many small files, nothing changed, a large file, a sparse one, very many tiny ones.

Against Cloud Storage's emulator where STORAGE_EMULATOR_HOST is set (requests are counted there on the wire),
else against a directory (operations are counted).
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from measuring import Verdict, report, seconds
from projects import stat_walk

import kinetic_core
from kinetic_core._runner.store import open_store
from kinetic_core._runner.unpack import materialise_tree
from kinetic_core.project.snapshot import hash_file
from kinetic_core.project.tree import store_data
from kinetic_core.store.directory import DirectoryObjectStore
from kinetic_core.store.gcs import GcsObjectStore
from kinetic_core.store.protocol import ObjectStore

_SMALL = 10_000
_TINY = 100_000


class Requests:
    """Counts what is asked of a store."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, store: ObjectStore) -> Any:
        """The store, counting."""
        return _Counting(store, self)


class _Counting:
    """A store whose operations are counted."""

    def __init__(self, store: ObjectStore, requests: Requests) -> None:
        self._store, self._requests = store, requests

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def counted(*args: object) -> object:
            self._requests.count += 1
            return found(*args)

        return counted


@contextmanager
def open_objects(home: Path) -> Iterator[ObjectStore]:
    """A store of the benchmark's own, emptied afterwards."""
    if not os.environ.get("STORAGE_EMULATOR_HOST"):
        yield DirectoryObjectStore(home / "store")
        return
    store = GcsObjectStore.at(f"test-bucket/bench-{secrets.token_hex(4)}")
    try:
        yield store
    finally:
        for info in list(store.list("")):
            store.delete(info.name)


def make_files(root: Path, count: int, size: int) -> None:
    """Files in folders of a hundred: one half cannot be compressed, as pictures, the other is words."""
    random.seed(11)
    noise = random.randbytes(size * 2 + count)
    vocabulary = [f"{random.choice('abcdefgh')}{random.randrange(1 << 20):x}" for _ in range(4000)]
    words = " ".join(random.choices(vocabulary, k=(size * 2 + count) // 4)).encode()
    for number in range(count):
        folder = root / f"{number // 100:04d}"
        if number % 100 == 0:
            folder.mkdir(parents=True)
        start = number % (size + 1)
        body = (words if number % 2 else noise)[start : start + size - 10]
        (folder / f"{number:06d}").write_bytes(b"%09d\n" % number + body)


def measure() -> list[Verdict]:
    home = Path(tempfile.mkdtemp(prefix="kinetic-bench-"))
    requests = Requests()
    try:
        with open_objects(home) as plain:
            store = requests.watch(plain)
            return [
                *_small_files(home, store, requests),
                *_tiny_files(home, store, requests),
                *_large_file(home, store),
            ]
    finally:
        shutil.rmtree(home)


def _small_files(home: Path, store: ObjectStore, requests: Requests) -> list[Verdict]:
    root = home / "small"
    make_files(root, _SMALL, 10_000)
    tar = home / "small.tar"

    def one_tar() -> None:
        subprocess.run(["tar", "-C", str(root), "-cf", str(tar), "."], check=True)
        store.create_if_absent(f"tar-{secrets.token_hex(4)}", tar)

    packed = min(seconds(one_tar) for _ in range(3))
    firsts = []
    for number in range(3):
        for info in list(store.list("")):
            store.delete(info.name)
        requests.count = 0
        cache = home / f"cache{number}"
        firsts.append(seconds(partial(store_data, root, store, cache=cache)))
        asked = requests.count
    first = min(firsts)
    walk = statistics.median(seconds(lambda: stat_walk(root)) for _ in range(9))
    requests.count = 0
    again = statistics.median(seconds(lambda: store_data(root, store, cache=cache)) for _ in range(9))
    every = requests.count / 9
    tree = store_data(root, store, cache=cache).sha256
    fetched = seconds(lambda: _unpack(store, tree, home / "out"))
    return [
        Verdict("10,000 files of 10 KB: requests", asked, 60, ""),
        Verdict("10,000 files / one tar of them, stored", first / packed, 3, "x", f"{first:.2f} s"),
        Verdict("10,000 files unchanged / stat walk", again / walk, 8, "x", f"{again * 1000:.0f} ms"),
        Verdict("10,000 files unchanged: requests", every, 16, ""),
        Verdict("10,000 files fetched / stored the first time", fetched / first, 3, "x", f"{fetched:.2f} s"),
    ]


def _tiny_files(home: Path, store: ObjectStore, requests: Requests) -> list[Verdict]:
    root = home / "tiny"
    make_files(root, _TINY, 10)
    requests.count = 0
    first = seconds(lambda: store_data(root, store, cache=home / "cache"))
    return [
        Verdict("100,000 files of 10 bytes: requests", requests.count, 60, ""),
        Verdict("100,000 files of 10 bytes: stored", first, 60, "s"),
    ]


def _large_file(home: Path, store: ObjectStore) -> list[Verdict]:
    large = home / "large"
    block = random.Random(1).randbytes(64 << 20)
    with large.open("wb") as stream:
        for number in range(32):
            stream.write(b"%08d" % number + block[8:])
    plain = min(seconds(lambda: _plainly(large)) for _ in range(2))
    pool = _in_threads()
    ours = min(seconds(lambda: hash_file(str(home), "large", together=pool)) for _ in range(2))
    large.unlink()
    sparse = home / "sparse"
    with sparse.open("wb") as stream:
        stream.truncate(5 << 30)
    stored = store_data(sparse, store, cache=home / "cache")
    seen = home / "sparse-out"
    fetched = seconds(lambda: _unpack(store, stored.sha256, seen))
    right = (seen / "sparse").stat().st_size == 5 << 30
    return [
        Verdict("2 GB file hashed: time / hashlib.sha256's", ours / plain, 1 / 0.95, "x", f"{ours:.2f} s"),
        Verdict("5 GB of holes: stored", stored.stored / 1000, 100, "KB"),
        Verdict("5 GB of holes: fetched", fetched if right else 1e9, 30, "s"),
    ]


def _in_threads() -> Callable[..., Any]:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(os.cpu_count() or 1).map


def _plainly(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _unpack(store: ObjectStore, tree: str, target: Path) -> None:
    """As a job would, from the same store."""
    work = target.with_name(target.name + "-work")
    os.environ["KINETIC_WORK_DIR"] = str(work)
    local = open_store(store.uri)
    materialise_tree(
        tree, str(target), read=local.read, fetch=lambda name, most: open_store(store.uri).fetch(name, most)
    )


if __name__ == "__main__":
    print(f"kinetic {kinetic_core.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} cores")
    sys.exit(report(measure()))
