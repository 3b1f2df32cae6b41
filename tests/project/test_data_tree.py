"""Data in a store: all of it, seen as it is each time, stored once."""

import json
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kinetic_core._runner.trees import PIECE
from kinetic_core.data.sources import store_plain
from kinetic_core.errors import InvalidProject, StoreFull
from kinetic_core.project.stat_index import read_index
from kinetic_core.project.tree import StoredTree, store_data
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.project.world import LONG_AGO, picture


def test_data_has_everything_in_it(world):
    world.write(".gitignore", "*")
    world.write(".env", "x")
    world.write("__pycache__/x.pyc", "x")
    stored = store_data(world.root, world.store, cache=world.cache)
    assert picture(world.unpack(stored.sha256)) == picture(world.root)
    assert store_data(world.root, world.store, cache=world.cache).stored == 0


def test_a_file_of_data_is_a_tree_of_its_name(world):
    world.write("v1.csv", "a,b")
    (world.root / "latest.csv").symlink_to("v1.csv")
    for name in ("v1.csv", "latest.csv"):
        stored = store_data(world.root / name, world.store, cache=world.cache)
        unpacked = world.unpack(stored.sha256, f"out-{name}")
        assert {path.name: path.read_text() for path in unpacked.iterdir()} == {name: "a,b"}


def test_data_that_is_not_there_is_refused(world):
    with pytest.raises(InvalidProject, match="gone"):
        store_data(world.root / "gone", world.store, cache=world.cache)


def test_project_and_data_of_one_directory_do_not_share_an_index(world):
    world.write("a.py", "a")
    world.write("__pycache__/a.pyc", "b")
    data = store_data(world.root, world.store, cache=world.cache)
    assert data.sha256 != world.ship().sha256
    assert len(list((world.cache / "trees").iterdir())) == 2


def test_a_large_file_comes_back_and_is_known_again(world):
    body = random.Random(3).randbytes(2 * PIECE + 17)
    (world.root / "big").write_bytes(body)
    (world.root / "big").chmod(0o640)
    stored = store_data(world.root, world.store, cache=world.cache)
    assert picture(world.unpack(stored.sha256)) == {"big": (0o640, body)}
    os.utime(world.root / "big", ns=(LONG_AGO, LONG_AGO))
    store_data(world.root, world.store, cache=world.cache)
    assert len(next(iter(read_index(str(world.index_file())).digests.values()))[1]) == 3 * 64
    with (world.root / "big").open("r+b") as stream:
        stream.write(b"edited")
    edited = store_data(world.root, world.store, cache=world.cache)
    assert PIECE < edited.stored < 1.5 * PIECE
    assert picture(world.unpack(edited.sha256, "again"))["big"] == (0o640, b"edited" + body[6:])


@pytest.mark.promise("data: What a lifecycle rule removed is uploaded again")
def test_data_is_looked_at_in_a_remote_store_every_time(world):
    world.write("a.py", "a")
    store = MemoryObjectStore("gs://bucket")
    tree = store_data(world.root, store, cache=world.cache).sha256
    (pack,) = json.loads(store.read(f"trees/{tree}.json"))["packs"]
    store.delete(f"packs/{pack}.zip")
    again = store_data(world.root, store, cache=world.cache)
    assert again.sha256 == tree
    assert again.stored > 0
    store.requests.clear()
    assert store_data(world.root, store, cache=world.cache).stored == 0
    assert [operation for operation, _ in store.requests] == ["find"]


@pytest.mark.promise("data: A newline is refused, naming the file")
@pytest.mark.parametrize("name", ["a\nb", "sub/a\rb"])
def test_data_with_a_line_break_in_a_name_is_refused_by_name(world, name):
    world.write(name, "x")
    with pytest.raises(InvalidProject, match=r"a\\[nr]b.* line break"):
        store_data(world.root, world.store, cache=world.cache)
    assert not world.store.root.exists()


@pytest.mark.attack
@pytest.mark.parametrize("name", ["airflow.cfg", "deep/airflow.db", "passwords.json"])
def test_data_of_airflows_own_is_refused_by_name(world, name):
    world.write(name, "secret")
    (world.root / "link").symlink_to(world.root / name)
    for path in (world.root, world.root / name, world.root / "link"):
        with pytest.raises(InvalidProject, match="is Airflow's own"):
            store_data(path, world.store, cache=world.cache)


@pytest.mark.attack
def test_data_with_a_link_to_airflows_own_is_refused(world):
    (world.home / "airflow.cfg").write_text("fernet_key = secret")
    world.write("data.csv", "1")
    (world.root / "notes.txt").symlink_to(world.home / "airflow.cfg")
    told = r"notes.txt' leads to '.*airflow.cfg', which is Airflow's own"
    for store in (store_data, store_plain):
        with pytest.raises(InvalidProject, match=told):
            store(world.root, world.store, cache=world.cache)
    assert list(world.store.list("")) == []


@pytest.mark.promise("data: Spaces and unicode in names; symlink loops")
def test_data_with_links_that_go_round_and_odd_names(world):
    world.write("with space/naïve ☃.txt", "x")
    (world.root / "round").symlink_to("other")
    (world.root / "other").symlink_to("round")
    (world.root / "with space/up").symlink_to("..")
    stored = store_data(world.root, world.store, cache=world.cache)
    assert len(stored.notices) == 2
    seen = picture(world.unpack(stored.sha256))
    assert seen["with space/naïve ☃.txt"] == (0o644, b"x")
    assert seen["with space/up"] == "-> .."
    assert len(seen) == 3


def test_two_uploads_of_the_same_data_store_it_once(world):
    for number in range(50):
        world.write(f"{number}", f"{number}" * 100)
    store = MemoryObjectStore("gs://bucket")
    meeting = threading.Barrier(2, timeout=90)

    def upload(number: int) -> StoredTree:
        meeting.wait()
        return store_data(world.root, store, cache=world.home / f"cache{number}")

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(upload, range(2))
    assert first.sha256 == second.sha256
    assert sorted(info.name.split("/")[0] for info in store.list("")) == ["packs", "trees"]


def test_an_interrupted_upload_hashes_nothing_again(world):
    with (world.root / "big").open("wb") as stream:
        stream.truncate(72 << 20)
    os.utime(world.root / "big", ns=(LONG_AGO, LONG_AGO))

    def full(operation: str, name: str) -> None:
        if operation == "create":
            raise StoreFull(name)

    store = MemoryObjectStore("gs://bucket", fault=full)
    with pytest.raises(StoreFull):
        store_data(world.root, store, cache=world.cache)
    (cached,) = (world.cache / "trees").iterdir()
    assert list(read_index(str(cached)).digests) == ["big"]
    assert read_index(str(cached)).tree is None


def rewritten(path: Path, seed: int) -> None:
    """As long as it was, with the times it had: nothing but its content, and when that changed, tells."""
    facts = path.stat()
    path.write_bytes(random.Random(seed).randbytes(facts.st_size))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.promise("data: Data changed while hashed is detected")
@pytest.mark.parametrize("size", [1000, 2 * PIECE + 17])
def test_data_rewritten_while_it_is_stored_is_consistent(world, size):
    """It has been hashed, and its packs are not made yet."""
    (world.root / "a.bin").write_bytes(random.Random(1).randbytes(size))
    seeds = iter([2])

    def rewrite(_stage: str) -> None:
        for seed in seeds:
            rewritten(world.root / "a.bin", seed)

    stored = store_data(world.root, world.store, cache=world.cache, progress=rewrite)
    assert picture(world.unpack(stored.sha256)) == picture(world.root)
    assert len(list(world.store.list("trees/"))) == 1
    assert (world.root / "a.bin").read_bytes() == random.Random(2).randbytes(size)


@pytest.mark.parametrize("size", [1000, 2 * PIECE + 17])
def test_data_that_never_rests_is_refused_and_is_not_there(world, size):
    (world.root / "a.bin").write_bytes(random.Random(0).randbytes(size))
    seeds = iter(range(1, 100))
    with pytest.raises(InvalidProject, match=r"a\.bin.* changed while it was being stored.* pass a copy"):
        store_data(
            world.root,
            world.store,
            cache=world.cache,
            progress=lambda _stage: rewritten(world.root / "a.bin", next(seeds)),
        )
    assert list(world.store.list("trees/")) == []


def test_data_that_went_away_while_it_was_stored_is_not_in_it(world):
    world.write("a", "a")
    world.write("b", "b")

    def remove(_stage: str) -> None:
        (world.root / "b").unlink(missing_ok=True)

    stored = store_data(world.root, world.store, cache=world.cache, progress=remove)
    assert picture(world.unpack(stored.sha256)).keys() == {"a"}


@pytest.mark.promise("data: Resumable, with progress")
def test_how_far_an_upload_is_is_told(tmp_path):
    data, said = tmp_path / "large", []
    with data.open("wb") as stream:
        for number in range(20):
            stream.write(random.Random(number).randbytes(8 << 20))
    store_data(data, MemoryObjectStore(), cache=tmp_path / "cache", progress=said.append)
    told = [line for line in said if line.startswith("uploading: ")]
    assert told[-1] == "uploading: 160 MiB of 160 MiB"
    assert len(told) > 2
