"""The runner's own view of the object store: create once, say what is wrong, stay inside."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from kinetic_core._runner.store import MissingObject, ObjectTooLarge, StoreUnavailable, open_store
from kinetic_core.store.directory import DirectoryObjectStore


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryObjectStore:
    store = DirectoryObjectStore(tmp_path / "a store %41")
    store.create_if_absent("a/b", b"content")
    return store


def test_reads_and_writes_what_the_core_stores(directory: DirectoryObjectStore) -> None:
    store = open_store(directory.uri)
    assert store.read("a/b") == b"content"
    assert Path(store.fetch("a/b", most=7)).read_bytes() == b"content"
    assert store.create_if_absent("jobs/x/result", b"one")
    assert not store.create_if_absent("jobs/x/result", b"two")
    assert directory.read("jobs/x/result") == b"one"
    assert 0 <= store.age("jobs/x/result") < 60


@pytest.mark.parametrize("name", ["missing", "../outside", "/etc/passwd", "a/../../outside"])
def test_says_what_is_missing(directory: DirectoryObjectStore, name: str) -> None:
    store = open_store(directory.uri)
    for operation in (store.read, partial(store.fetch, most=7), store.age):
        with pytest.raises(MissingObject, match="not"):
            operation(name)


@pytest.mark.attack
def test_fetches_nothing_larger_than_it_may_be(directory: DirectoryObjectStore) -> None:
    with pytest.raises(ObjectTooLarge, match="larger than 6"):
        open_store(directory.uri).fetch("a/b", most=6)


def test_a_removed_store_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="the store was removed"):
        open_store((tmp_path / "gone").as_uri()).create_if_absent("x", b"")
    assert not (tmp_path / "gone").exists()


def test_refuses_what_it_cannot_read() -> None:
    with pytest.raises(ValueError, match="cannot read the store 's3://bucket'"):
        open_store("s3://bucket")
