"""What every object store promises, checked on each of them."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kinetic_core.errors import InvalidRequest, ObjectNotFound, StoreError
from kinetic_core.store.directory import DirectoryObjectStore
from kinetic_core.store.gcs import GcsObjectStore
from kinetic_core.store.protocol import ObjectStore
from kinetic_core.testing.memory_store import MemoryObjectStore


@pytest.fixture(params=["directory", "memory", pytest.param("gcs", marks=pytest.mark.cluster)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "directory":
        yield DirectoryObjectStore(tmp_path / "store")
    elif request.param == "memory":
        yield MemoryObjectStore()
    else:
        request.getfixturevalue("emulator")
        bucket = GcsObjectStore.at(f"test-bucket/contract-{secrets.token_hex(4)}")
        yield bucket
        for info in list(bucket.list("")):
            bucket.delete(info.name)


@pytest.mark.promise(
    "gke: One protocol, one contract test for directory and bucket",
    "and all of this file: directory, memory, emulator of Cloud Storage",
)
def test_reads_back_what_was_created(store: ObjectStore) -> None:
    store.create_if_absent("a/b", b"content", {"colour": "red"})
    assert store.read("a/b") == b"content"
    with store.open("a/b") as stream:
        assert stream.read(3) == b"con"
    info = store.find("a/b")
    assert info is not None
    assert (info.name, info.size, dict(info.metadata)) == ("a/b", 7, {"colour": "red"})


def test_a_store_tells_the_md5_of_a_content_or_nothing(store: ObjectStore) -> None:
    store.create_if_absent("a/b", b"content")
    info = store.find("a/b")
    assert info is not None
    assert info == next(store.list("a/"))
    told = "" if isinstance(store, DirectoryObjectStore) else hashlib.md5(b"content").hexdigest()
    assert info.md5 == told


def test_creates_from_a_file(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 100_000)
    store.create_if_absent("copy", source)
    assert store.read("copy") == b"x" * 100_000


def test_create_never_overwrites(store: ObjectStore) -> None:
    assert store.create_if_absent("a", b"first", {"by": "first"})
    assert not store.create_if_absent("a", b"second", {"by": "second"})
    assert store.read("a") == b"first"
    info = store.find("a")
    assert info is not None
    assert dict(info.metadata) == {"by": "first"}


@pytest.mark.promise("gke: Create-only writes, generation preconditions")
def test_one_of_many_creators_wins(store: ObjectStore) -> None:
    winners: list[int] = []

    def contend(number: int) -> None:
        if store.create_if_absent("prize", str(number).encode()):
            winners.append(number)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert store.read("prize") == str(winners[0]).encode()


@pytest.mark.promise("gke: Streaming, ranges, listing, parallel transfer")
def test_every_one_of_many_parallel_transfers_arrives_as_it_was(store: ObjectStore, tmp_path: Path) -> None:
    contents = {f"part/{number}": secrets.token_bytes(1 << (number % 12 + 8)) for number in range(48)}

    def transfer(name: str) -> bool:
        source: bytes | Path = contents[name]
        if name.endswith("7"):
            source = tmp_path / name.replace("/", "-")
            source.write_bytes(contents[name])
        store.create_if_absent(name, source)
        return store.read(name) == contents[name]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(transfer, contents))
    assert {info.name: info.size for info in store.list("part/")} == {
        name: len(content) for name, content in contents.items()
    }


@pytest.mark.promise("gke: Streaming, ranges, listing, parallel transfer")
def test_a_large_object_streams_in_parts_and_from_anywhere(store: ObjectStore, tmp_path: Path) -> None:
    content = secrets.token_bytes(1 << 20) * 11
    (tmp_path / "large").write_bytes(content)
    store.create_if_absent("large", tmp_path / "large")
    with store.open("large") as stream:
        digest = hashlib.file_digest(stream, "sha256")
        assert digest.digest() == hashlib.sha256(content).digest()
        assert stream.seek(5 << 20) == 5 << 20
        assert stream.read(1000) == content[5 << 20 :][:1000]
        assert stream.seek(-10, os.SEEK_END) == len(content) - 10
        assert stream.read() == content[-10:]
        assert stream.read(1) == b""


def test_a_stream_never_mixes_two_objects(store: ObjectStore) -> None:
    store.create_if_absent("a", b"first" * 1000)
    with store.open("a") as stream:
        store.delete("a")
        store.create_if_absent("a", b"other" * 1000)
        try:
            found = stream.read()
        except StoreError:
            return  # it cannot be had any more, and says so
    assert found == b"first" * 1000


@pytest.mark.promise("gke: Streaming, ranges, listing, parallel transfer")
def test_a_listing_has_no_end_at_a_thousand(store: ObjectStore) -> None:
    names = [f"many/{number:04d}" for number in range(1203)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: store.create_if_absent(name, b""), names))
    store.create_if_absent("many-others", b"beside it")
    assert [info.name for info in store.list("many/")] == names
    assert store.delete_all("many/") == len(names)
    assert [info.name for info in store.list("")] == ["many-others"]


def test_empty_objects_and_unusual_names(store: ObjectStore) -> None:
    for name in ("empty", "a b/%41/ü+&?#", "x" * 200):
        store.create_if_absent(name, b"")
        assert store.read(name) == b""
        assert [info.name for info in store.list(name)] == [name]
        with store.open(name) as stream:
            assert stream.read() == b""


def test_a_name_is_free_again_after_its_object_was_deleted(store: ObjectStore) -> None:
    store.create_if_absent("a", b"first")
    before = store.find("a")
    assert store.delete("a") is True
    assert store.delete("a") is False
    store.create_if_absent("a", b"second")
    after = store.find("a")
    assert before is not None
    assert after is not None
    assert (store.read("a"), after.created >= before.created) == (b"second", True)


def test_missing_objects(store: ObjectStore) -> None:
    assert store.find("nothing") is None
    assert store.delete("nothing") is False
    assert list(store.list("nothing/")) == []
    with pytest.raises(ObjectNotFound, match="nothing"):
        store.read("nothing")
    with pytest.raises(ObjectNotFound, match="nothing"):
        store.open("nothing")


def test_lists_by_prefix_in_name_order(store: ObjectStore) -> None:
    for name in ("jobs/b/2", "jobs/a/1", "jobs/ab", "other"):
        store.create_if_absent(name, b"")
    assert [info.name for info in store.list("jobs/")] == ["jobs/a/1", "jobs/ab", "jobs/b/2"]
    assert [info.name for info in store.list("jobs/a")] == ["jobs/a/1", "jobs/ab"]
    assert len(list(store.list(""))) == 4
    assert [info.name for info in store.list("jobs/", since="jobs/ab")] == ["jobs/ab", "jobs/b/2"]
    assert [info.name for info in store.list("jobs/", since="jobs/ac")] == ["jobs/b/2"]
    assert list(store.list("jobs/", since="jobs/c")) == []


def test_lists_by_pattern(store: ObjectStore) -> None:
    for name in ("jobs/a/result", "jobs/b/result", "jobs/a/attempts/result", "jobs/a/log", "other/a/result"):
        store.create_if_absent(name, b"", {"state": name})
    found = list(store.list("jobs/", "jobs/*/result"))
    wanted = ["jobs/a/result", "jobs/b/result"]
    assert [(info.name, info.metadata["state"]) for info in found] == [(name, name) for name in wanted]


def test_deletes_one_and_a_whole_prefix(store: ObjectStore) -> None:
    for name in ("jobs/a/1", "jobs/a/2", "jobs/ab"):
        store.create_if_absent(name, b"x", {"m": "1"})
    assert store.delete("jobs/a/1") is True
    assert store.delete_all("jobs/a/") == 1
    assert [info.name for info in store.list("")] == ["jobs/ab"]
    store.create_if_absent("jobs/a/1", b"again")
    info = store.find("jobs/a/1")
    assert info is not None
    assert dict(info.metadata) == {}


def test_a_prefix_without_slash_would_reach_too_far(store: ObjectStore) -> None:
    with pytest.raises(InvalidRequest, match="must end with '/'"):
        store.delete_all("jobs/a")


@pytest.mark.parametrize("name", ["", "/etc/passwd", "a//b", "../up", "a/../../b", "."])
def test_names_cannot_leave_the_store(store: ObjectStore, name: str) -> None:
    with pytest.raises(InvalidRequest, match="must be relative"):
        store.create_if_absent(name, b"")


def test_says_which_of_many_are_there(store: ObjectStore) -> None:
    names = [f"many/{number}" for number in range(120)]
    for name in names[::40]:
        store.create_if_absent(name, b"")
    assert store.present(names) == set(names[::40])
    assert store.present([]) == set()
    assert store.present(names[:1]) == {names[0]}
    assert store.present(names[1:2]) == set()


@pytest.mark.attack
def test_what_was_stored_since_is_not_deleted(store: ObjectStore) -> None:
    for name in ("a", "b"):
        store.create_if_absent(name, b"old")
    seen = [info for name in ("a", "b") if (info := store.find(name))]
    listed = list(store.list(""))
    assert [info.generation for info in seen] == [info.generation for info in listed]
    store.delete("a")
    store.create_if_absent("a", b"new")
    store.delete_seen(seen)
    assert (store.present(["a", "b"]), store.read("a")) == ({"a"}, b"new")
    store.delete_seen([])
