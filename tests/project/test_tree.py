"""Projects and data in a store, and back out of it."""

import hashlib
import json
import os
import shutil
from dataclasses import replace

import pytest

from kinetic_core.errors import InvalidProject, StoreFull
from kinetic_core.project.root import Project
from kinetic_core.project.tree import store_project
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.project.world import picture


def test_a_project_comes_back_as_it_was(world):
    world.write("pkg/__init__.py", "")
    world.write("pkg/naïve name.py", "x = 1\n" * 3000)
    world.write("run.sh", "#!/bin/sh\n")
    (world.root / "run.sh").chmod(0o755)
    (world.root / "runs/empty").mkdir(parents=True)
    (world.root / "latest").symlink_to("pkg")
    (world.root / "pkg/back").symlink_to("../run.sh")
    stored = world.ship()
    assert picture(world.unpack(stored.sha256)) == picture(world.root)
    assert (stored.files, stored.size, stored.notices) == (3, 18010, ())


def test_an_empty_project_can_be_shipped(world):
    assert list(world.unpack(world.ship().sha256).iterdir()) == []


def test_an_unchanged_project_stores_nothing_new(world):
    world.write("a.py", "a")
    first = world.ship()
    written = world.index_file().stat()
    again = world.ship()
    assert again == replace(first, stored=0)
    assert world.index_file().stat() == written


def test_one_edited_line_stores_little(world):
    for number in range(2000):
        world.write(f"{number % 9}/{number}.py", f"value = {number}\n")
    world.ship()
    world.write("3/30.py", "value = 31\n")
    edited = world.ship()
    assert edited.stored < 40_000
    assert picture(world.unpack(edited.sha256)) == picture(world.root)


def test_an_edit_that_leaves_size_and_time_is_noticed(world):
    world.write("a.py", "x = 1")
    first = world.ship()
    facts = (world.root / "a.py").stat()
    (world.root / "a.py").write_text("x = 2")
    os.utime(world.root / "a.py", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert world.ship().sha256 != first.sha256


def test_equal_contents_are_stored_once(world):
    text = os.urandom(20_000).hex()
    world.write("a", text)
    world.write("b", text)
    assert world.ship().stored < 50_000


def test_a_known_project_is_not_stored_again_without_an_index(world):
    world.write("a.py", "a")
    first = world.ship()
    shutil.rmtree(world.cache)
    assert world.ship() == replace(first, stored=0)


def plant(world, tree: str, **fields: object) -> None:
    """Put a document in the place of a tree's, with the segments that its digest proves and these fields."""
    pack = hashlib.sha256(b"no pack").hexdigest()
    world.store.create_if_absent(f"packs/{pack}.zip", b"no pack")
    document = json.loads(world.store.read(f"trees/{tree}.json"))
    world.store.delete(f"trees/{tree}.json")
    planted = json.dumps({**document, "packs": [pack], **fields}).encode()
    world.store.create_if_absent(f"trees/{tree}.json", planted)


@pytest.mark.attack
@pytest.mark.parametrize("is_known", [False, True])
def test_a_planted_tree_spoils_no_later_one(world, is_known):
    """Whether this machine has stored other states of the project before, or none."""
    world.write("a.py", "one")
    first = world.ship()
    if is_known:
        world.write("a.py", "other")
        world.ship()
        world.write("a.py", "one")
    else:
        shutil.rmtree(world.cache)
    plant(world, first.sha256)
    assert world.ship() == replace(first, stored=0)
    assert world.ship() == replace(first, stored=0)
    world.write("b.py", "more")
    assert picture(world.unpack(world.ship().sha256)) == picture(world.root)


@pytest.mark.attack
@pytest.mark.parametrize("fields", [{"packs": ["../x"]}, {"packs": [1]}, {"segments": []}, {"version": 9}])
def test_what_is_no_document_of_a_tree_is_replaced(world, fields):
    world.write("a.py", "a")
    first = world.ship()
    shutil.rmtree(world.cache)
    plant(world, first.sha256, **fields)
    assert world.ship().sha256 == first.sha256
    assert picture(world.unpack(first.sha256)) == picture(world.root)


def test_an_edit_after_going_back_stores_what_is_new(world):
    """What this machine stored itself is not stored again for a tree that it found in the bucket."""
    world.write("base.py", os.urandom(20_000).hex())
    world.write("a.py", "one")
    world.ship()
    world.write("a.py", "other")
    world.ship()
    world.write("a.py", "one")
    world.ship()
    world.ship()
    world.write("b.py", "more")
    edited = world.ship()
    assert 0 < edited.stored < 5_000
    assert picture(world.unpack(edited.sha256)) == picture(world.root)


def test_going_back_to_an_earlier_state_stores_nothing(world):
    world.write("a.py", "one")
    first = world.ship()
    world.write("a.py", "other")
    world.ship()
    world.write("a.py", "one")
    assert world.ship() == replace(first, stored=0)
    world.write("b.py", "more")
    assert picture(world.unpack(world.ship().sha256)) == picture(world.root)


def test_many_edits_end_up_in_one_pack_again(world):
    world.write("base.py", "base")
    most = 0
    for number in range(20):
        world.write("a.py", f"x = {number}")
        most = max(most, len(world.packs(world.ship().sha256)))
    assert most == 16
    last = world.ship()
    assert len(world.packs(last.sha256)) < 6
    assert picture(world.unpack(last.sha256)) == picture(world.root)


@pytest.mark.parametrize("what", ["packs", "trees"])
def test_what_was_deleted_from_the_store_is_stored_again(world, what):
    world.write("a.py", "a")
    first = world.ship()
    assert world.store.delete_all(f"{what}/") == 1
    again = world.ship()
    assert again.sha256 == first.sha256
    assert picture(world.unpack(again.sha256)) == picture(world.root)


def test_a_lost_pack_is_noticed_when_the_project_changed_too(world):
    world.write("a.py", "a")
    world.ship()
    world.store.delete_all("packs/")
    world.write("b.py", "b")
    assert picture(world.unpack(world.ship().sha256)) == picture(world.root)


@pytest.mark.attack
@pytest.mark.parametrize("lost", [["packs/"], ["trees/"], ["packs/", "trees/"]])
@pytest.mark.parametrize("edited", [False, True])
def test_what_a_bucket_forgot_is_stored_at_once(world, lost, edited):
    world.write("a.py", "a")
    store = MemoryObjectStore("gs://bucket")
    store_project(Project(world.root), store, cache=world.cache)
    for prefix in lost:
        store.delete_all(prefix)
    if edited:
        world.write("b.py", "b")
    tree = store_project(Project(world.root), store, cache=world.cache).sha256
    packs = json.loads(store.read(f"trees/{tree}.json"))["packs"]
    assert packs
    assert all(store.find(f"packs/{pack}.zip") for pack in packs)


@pytest.mark.attack
def test_an_unchanged_project_costs_one_request(world):
    """Whatever it consists of, and what else the submission wants to know of the store."""
    world.write("a.py", "a")
    store = MemoryObjectStore("gs://bucket")
    for text in ("b", "c"):
        world.write(f"{text}.py", text)
        store_project(Project(world.root), store, cache=world.cache)
    store.create_if_absent("runners/new.zip", b"")
    store.requests.clear()
    beside = ["runners/new.zip", "runners/old.zip"]
    tree = store_project(Project(world.root), store, cache=world.cache, beside=beside)
    assert (len(store.requests), tree.stored, tree.beside) == (1, 0, {"runners/new.zip"})


@pytest.mark.parametrize("is_new", [True, False], ids=["new machine", "another state before"])
def test_a_project_found_in_the_bucket_costs_one_request(world, tmp_path, is_new):
    """From the second submission on: the first one reads which packs it has, and looks for them."""
    world.write("a.py", "a")
    store = MemoryObjectStore("gs://bucket")
    first = store_project(Project(world.root), store, cache=world.cache)
    cache = tmp_path / "other cache"
    if not is_new:
        world.write("a.py", "other")
        store_project(Project(world.root), store, cache=cache)
        world.write("a.py", "a")
    costs = []
    for _ in range(3):
        store.requests.clear()
        assert store_project(Project(world.root), store, cache=cache) == replace(first, stored=0)
        costs.append(len(store.requests))
    assert costs[0] > 1
    assert costs[1:] == [1, 1]


@pytest.mark.attack
@pytest.mark.parametrize("lost", ["packs/", "trees/"])
def test_what_a_found_project_lost_is_stored_again(world, tmp_path, lost):
    world.write("a.py", "a")
    store = MemoryObjectStore("gs://bucket")
    first = store_project(Project(world.root), store, cache=world.cache)
    for _ in range(2):
        store_project(Project(world.root), store, cache=tmp_path / "other cache")
    store.delete_all(lost)
    again = store_project(Project(world.root), store, cache=tmp_path / "other cache")
    assert again.sha256 == first.sha256
    packs = json.loads(store.read(f"trees/{first.sha256}.json"))["packs"]
    assert packs
    assert all(store.find(f"packs/{pack}.zip") for pack in packs)


def test_packs_come_before_the_tree_that_needs_them(world):
    world.write("a.py", "a")
    store = MemoryObjectStore()
    store_project(Project(world.root), store, cache=world.cache)
    created = [name.split("/")[0] for operation, name in store.requests if operation == "create"]
    assert created == ["packs", "trees"]


def test_a_full_store_leaves_no_scratch_file_and_no_index(world):
    world.write("a.py", "a")

    def full(operation: str, name: str) -> None:
        if operation == "create":
            raise StoreFull(name)

    with pytest.raises(StoreFull):
        store_project(Project(world.root), MemoryObjectStore(fault=full), cache=world.cache)
    assert list(world.cache.iterdir()) == []
    store_project(Project(world.root), MemoryObjectStore(), cache=world.cache)


def test_without_a_usable_cache_it_works_every_time_anew(world):
    world.write("a.py", "a")
    world.cache.write_text("a file")
    first = world.ship()
    assert world.ship() == replace(first, stored=0)


@pytest.mark.promise("scale: The project is packed once, and found by its digest, on a new disk too")
def test_a_machine_whose_disk_is_new_packs_nothing(world, tmp_path):
    """As a worker of the same run in another pod, with the files at another place and of another time."""
    for number in range(50):
        world.write(f"pkg/{number}.py", f"value = {number}\n")
    asked, said = [], []
    store = MemoryObjectStore(fault=lambda operation, name: asked.append((operation, name.split("/")[0])))
    first = store_project(Project(world.root), store, cache=world.cache)
    elsewhere = tmp_path / "another machine" / "project"
    shutil.copytree(world.root, elsewhere, copy_function=shutil.copyfile)
    asked.clear()
    again = store_project(Project(elsewhere), store, cache=tmp_path / "new disk", progress=said.append)
    assert again == replace(first, stored=0)
    assert said == []
    assert {name for operation, name in asked if operation == "read"} == {"trees"}
    assert "create" not in {operation for operation, _ in asked}


def test_it_says_how_many_files_are_new(world):
    said: list[str] = []
    for name, content in (("a.py", "1"), ("b.py", "2"), ("c.py", "2")):
        world.write(name, content)
        world.ship(progress=said.append)
    assert said == ["storing 1 of 1 file", "storing 1 of 2 files"]  # the third is the second's copy


def test_an_unreadable_file_is_refused_before_anything_is_stored(world):
    world.write("a.py", "a")
    (world.root / "memory").symlink_to("/proc/self/mem")
    with pytest.raises(InvalidProject, match="memory"):
        world.ship()
    assert not world.store.root.exists()
    world.write(".kineticignore", "memory\n")
    assert world.ship().files == 2


def test_a_file_edited_while_it_is_stored_is_consistent(world):
    world.write("a.py", "before")

    def edit(_stage: str) -> None:
        if (world.root / "a.py").read_text() == "before":
            world.write("a.py", "behind")

    assert picture(world.unpack(world.ship(progress=edit).sha256)) == picture(world.root)


def test_a_file_that_never_rests_is_refused(world):
    world.write("a.py", "0")

    def edit(_stage: str) -> None:
        world.write("a.py", str(world.clock))

    with pytest.raises(InvalidProject, match=r"a\.py.* changed while it was being stored"):
        world.ship(progress=edit)
    assert not world.store.root.exists()


def test_only_the_named_file_of_a_shared_directory_is_shipped(world):
    world.write("scratch.py", "x")
    world.write("private/diary.txt", "x")
    project = Project(world.root, only=("scratch.py",))
    stored = store_project(project, world.store, cache=world.cache)
    assert [path.name for path in world.unpack(stored.sha256).iterdir()] == ["scratch.py"]


def test_secrets_are_one_notice(world):
    world.write(".env", "TOKEN=1")
    world.write("sub/tls.pem", "key")
    (notice,) = world.ship().notices
    assert ".env" in notice
    assert "sub/tls.pem" in notice
    assert world.ship().notices == (notice,)


def test_a_large_project_is_a_notice_with_its_largest_files(world):
    for number in range(8):
        world.write(f"{number}.bin", "x" * (1000 + number))
    (notice,) = world.ship(warn_bytes=5000).notices
    assert notice.index("7.bin") < notice.index("6.bin") < notice.index("3.bin")
    assert "2.bin" not in notice
    assert world.ship(warn_bytes=0).notices == ()


def test_notices_stay_few(world):
    for number in range(50):
        (world.root / f"link{number}").symlink_to("nowhere")
    notices = world.ship().notices
    assert len(notices) == 6
    assert "45 more" in notices[-1]
