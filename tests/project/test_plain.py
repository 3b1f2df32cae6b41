"""Data as the objects a mount shows."""

from pathlib import Path

import pytest

from kinetic_core._runner.trees import PIECE
from kinetic_core.data.data import Data
from kinetic_core.data.sources import Shop, store, store_plain
from kinetic_core.errors import InvalidProject, StoreFull
from kinetic_core.project.tree import StoredTree
from kinetic_core.testing.memory_store import MemoryObjectStore


class World:
    def __init__(self, home: Path) -> None:
        self.root = home / "set"
        self.cache = home / "cache"
        self.store = MemoryObjectStore("gs://bucket")
        (self.root / "sub").mkdir(parents=True)
        (self.root / "sub/a.txt").write_text("A")
        (self.root / "b c.txt").write_text("BC")

    def ship(self, path: Path | None = None, **options) -> StoredTree:
        return store_plain(path or self.root, self.store, cache=self.cache, **options)

    def objects(self) -> dict[str, bytes]:
        return {info.name.split("/", 2)[2]: self.store.read(info.name) for info in self.store.list("data/")}


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_every_file_is_an_object_of_its_path(world):
    (world.root / "link").symlink_to("sub/a.txt")
    tree = world.ship()
    assert world.objects() == {"sub/a.txt": b"A", "b c.txt": b"BC", "link": b"A"}
    assert (tree.files, tree.stored, tree.notices) == (3, 4, ())
    assert {info.name.split("/")[1] for info in world.store.list("data/")} == {tree.sha256}


def test_what_a_bucket_cannot_hold_is_named(world):
    (world.root / "empty").mkdir()
    (world.root / "folder").symlink_to("sub")
    notices = world.ship().notices
    assert sorted(notice.split(":")[0] for notice in notices) == ["left out 'empty'", "left out 'folder'"]


def test_a_single_file_has_no_company(world):
    world.ship(world.root / "b c.txt")
    assert list(world.objects()) == ["b c.txt"]


def test_unchanged_data_costs_a_listing(world):
    first = world.ship()
    world.store.requests.clear()
    assert world.ship() == StoredTree(first.sha256, 2, 3, 0)
    assert [operation for operation, _ in world.store.requests] == ["list"]


def test_what_was_removed_or_cut_short_comes_back(world):
    tree = world.ship()
    world.store.delete(f"data/{tree.sha256}/sub/a.txt")
    assert world.ship().stored == 1
    assert world.objects()["sub/a.txt"] == b"A"


@pytest.mark.attack
@pytest.mark.parametrize("planted", [b"X", b"longer", b""])
def test_planted_bytes_are_replaced_by_the_next_submission(world, planted):
    tree = world.ship()
    name = f"data/{tree.sha256}/sub/a.txt"
    world.store.delete(name)
    world.store.create_if_absent(name, planted)
    world.store.create_if_absent(f"data/{tree.sha256}/sub/more.txt", b"more")
    again = world.ship()
    assert (again.sha256, again.stored) == (tree.sha256, 1)
    assert world.objects() == {"sub/a.txt": b"A", "b c.txt": b"BC"}
    (notice,) = again.notices
    assert notice.startswith(f"removed 2 objects below gs://bucket/data/{tree.sha256}/ that are not of ")


@pytest.mark.attack
def test_bytes_that_are_planted_during_an_upload_are_replaced(world):
    def plant(operation: str, name: str) -> None:
        if operation == "create" and name.endswith("a.txt") and plants:
            plants.pop()
            world.store.create_if_absent(name, b"X")

    plants = [None]
    world.store.fault = plant
    world.ship()
    assert world.objects() == {"sub/a.txt": b"A", "b c.txt": b"BC"}


@pytest.mark.attack
def test_what_is_changed_after_submission_is_what_pods_see(tmp_path):
    """A mount has no digests: the payload names a path, and nothing that a pod could compare."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a.txt").write_text("A")
    shop = Shop(MemoryObjectStore("gs://bucket"), tmp_path / "cache", mounts=True)
    stored = store(Data(str(tmp_path / "set"), fuse=True), shop)
    assert stored.source.keys() == {"kind", "path", "file", "uri"}
    assert stored.mount is not None


@pytest.mark.attack
def test_an_edit_within_the_same_size_is_no_forgery(world):
    """What was compared before is not compared with other bytes later."""
    first = world.ship()
    assert world.ship().notices == ()
    (world.root / "sub/a.txt").write_text("B")
    second = world.ship()
    assert (second.notices, world.store.read(f"data/{second.sha256}/sub/a.txt")) == ((), b"B")
    assert world.store.read(f"data/{first.sha256}/sub/a.txt") == b"A"


def test_an_interrupted_upload_is_gone_on_with(world):
    broken = [True]

    def full(operation: str, name: str) -> None:
        if operation == "create" and name.endswith("a.txt") and broken:
            raise StoreFull(name)

    other = MemoryObjectStore("gs://bucket", fault=full)
    with pytest.raises(StoreFull):
        store_plain(world.root, other, cache=world.cache)
    broken.clear()
    assert store_plain(world.root, other, cache=world.cache).stored in (1, 3)
    assert len(list(other.list("data/"))) == 2


@pytest.mark.parametrize("size", [2, PIECE + 1])
def test_a_file_changed_before_it_is_sent_has_a_new_name(world, size):
    changing = world.root / "b c.txt"
    changing.write_bytes(bytes(size))
    edits = iter(range(100))

    def edit(stage: str) -> None:
        if stage.startswith(("uploading 2 files", "uploading 1 files")):
            changing.write_bytes(bytes(size - 1) + b"%d" % (next(edits) % 10))

    with pytest.raises(InvalidProject, match=r"b c\.txt.* changed while it was being stored"):
        world.ship(progress=edit)
    assert "b c.txt" not in world.objects()


def test_a_name_with_a_line_break_is_refused(world):
    (world.root / "a\nb").touch()
    with pytest.raises(InvalidProject, match=r"a\\nb"):
        world.ship()
    assert world.store.requests == []
