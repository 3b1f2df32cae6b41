"""What is special about the directory store: other processes, full disks, lost directories."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from kinetic_core.errors import ObjectNotFound, StoreError, StoreFull
from kinetic_core.store.directory import DirectoryObjectStore, translated


def test_only_the_owner_may_look_inside(tmp_path: Path) -> None:
    store = DirectoryObjectStore(tmp_path / "store")
    store.create_if_absent("a", b"")
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    store = DirectoryObjectStore(tmp_path / "store")
    with pytest.raises(StoreError):
        store.create_if_absent("a", tmp_path / "no-such-source")
    assert store.find("a") is None
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


def test_a_full_disk_says_what_to_do() -> None:
    full = translated(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "cannot store x")
    assert isinstance(full, StoreFull)
    assert "Free space" in str(full)


def test_a_deleted_store_is_a_missing_object(tmp_path: Path) -> None:
    store = DirectoryObjectStore(tmp_path / "store")
    store.create_if_absent("a", b"")
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(ObjectNotFound):
        store.read("a")
    store.create_if_absent("a", b"new")
    assert store.read("a") == b"new"


def test_metadata_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    store = DirectoryObjectStore(tmp_path / "store")
    names = [f"index/{number}" for number in range(300)]

    def write() -> None:
        for name in names:
            store.create_if_absent(name, b"", {"long": 4000 * "x"})

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        assert {len(info.metadata.get("long", 4000 * "x")) for info in store.list("index/")} <= {4000}
    writer.join()
    assert {len(info.metadata["long"]) for info in store.list("index/")} == {4000}


def test_an_object_is_nothing_below_its_own_name(tmp_path: Path) -> None:
    store = DirectoryObjectStore(tmp_path / "store")
    store.create_if_absent("a", b"")
    assert store.delete_all("a/") == 0
    assert store.read("a") == b""


def test_a_tree_is_removed_beside_a_writer_and_another_remover(tmp_path: Path) -> None:
    """A job that ends may still write its log while its objects are removed."""
    store, folder = DirectoryObjectStore(tmp_path / "store"), tmp_path / "store/jobs/a"
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            with suppress(FileNotFoundError, FileExistsError):  # it is removed between two steps
                folder.mkdir(parents=True, exist_ok=True)
                (folder / str(number)).touch()
            number += 1

    with ThreadPoolExecutor(3) as pool:
        writing = pool.submit(write)
        removing = [pool.submit(lambda: [store.delete_all("jobs/a/") for _ in range(300)]) for _ in range(2)]
        try:
            assert [len(each.result()) for each in removing] == [300, 300]
        finally:
            over.set()
        writing.result()
    store.delete_all("jobs/a/")
    assert not folder.exists()


def test_a_store_whose_directory_gives_no_answer_says_so(tmp_path: Path) -> None:
    """Its name leads in a circle, as that of a dead mount does."""
    (tmp_path / "store").symlink_to(tmp_path / "store")
    store = DirectoryObjectStore(tmp_path / "store")
    for ask in (
        lambda: store.create_if_absent("a/b", b""),
        lambda: store.delete("a/b"),
        lambda: list(store.list("a/")),
        lambda: list(store.list("")),
        lambda: store.read("a/b"),
    ):
        with pytest.raises(StoreError, match="symbolic links") as raised:
            ask()
        assert raised.value.is_passing
