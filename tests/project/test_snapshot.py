"""Which files are listed, which are read, and what their tree is called."""

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kinetic_core._runner.trees import PIECE
from kinetic_core.errors import InvalidProject
from kinetic_core.project.files import FileFacts, Listing, scan
from kinetic_core.project.ignore import Rules
from kinetic_core.project.snapshot import Snapshot, hash_file, take_snapshot
from kinetic_core.project.stat_index import StatIndex, index_path, read_index, recorded, write_index

LONG_AGO = 1_600_000_000_123_456_789


def look(root: Path) -> Listing:
    return scan(str(root), Rules(everything=True))


def snap(root: Path, index: StatIndex | None = None) -> Snapshot:
    return take_snapshot(str(root), look(root), index or StatIndex())


def write(path: Path, text: str, modified: int = LONG_AGO) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(modified, modified))


def test_links_inside_stay_and_links_outside_become_files(tmp_path):
    root = tmp_path / "proj"
    write(root / "v2/data.txt", "inside")
    write(tmp_path / "shared/deep/file.txt", "outside")
    (root / "latest").symlink_to("v2")
    (root / "v2/absolute").symlink_to(root / "v2/data.txt")
    (root / "shared").symlink_to(tmp_path / "shared")
    (root / "one.txt").symlink_to("../shared/deep/file.txt")
    listing = look(root)
    assert sorted(listing.links) == [("latest", "v2"), ("v2/absolute", "data.txt")]
    assert {facts.path for facts in listing.files} == {"v2/data.txt", "shared/deep/file.txt", "one.txt"}
    assert listing.notices == []


def test_what_cannot_be_shipped_is_left_out_with_a_notice(tmp_path):
    write(tmp_path / "a.py", "")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "around").symlink_to("/")
    os.mkfifo(tmp_path / "pipe")
    (Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9"))).write_text("")
    listing = look(tmp_path)
    assert [facts.path for facts in listing.files] == ["a.py"]
    for word in ("'broken'", "'loop'", "'around'", "'pipe'", "UTF-8"):
        assert any(word in notice for notice in listing.notices)


def test_linked_directories_that_hold_each_other_end(tmp_path):
    write(tmp_path / "out/a/a.txt", "")
    (tmp_path / "out/a/back").symlink_to(tmp_path / "out")
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj/out").symlink_to(tmp_path / "out")
    listing = look(tmp_path / "proj")
    assert [facts.path for facts in listing.files] == ["out/a/a.txt"]
    assert len(listing.notices) == 1


@pytest.mark.promise("data: Empty directories, modes and symlinks survive")
def test_empty_directories_and_modes_are_kept(tmp_path):
    write(tmp_path / "run.sh", "")
    (tmp_path / "run.sh").chmod(0o4750)
    (tmp_path / "logs/old").mkdir(parents=True)
    (tmp_path / "logs/old").chmod(0o700)
    listing = look(tmp_path)
    assert listing.empty == [("logs/old", 0o700)]
    assert [(facts.path, facts.mode) for facts in listing.files] == [("run.sh", 0o750)]


def test_paths_of_data_are_left_out(tmp_path):
    write(tmp_path / "proj/data/a", "")
    write(tmp_path / "proj/code.py", "")
    (tmp_path / "alias").symlink_to(tmp_path / "proj")
    for data in (tmp_path / "proj/data", tmp_path / "alias/data"):
        listing = scan(str(tmp_path / "proj"), Rules(), without=[str(data)])
        assert [facts.path for facts in listing.files] == ["code.py"]


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidProject, match="gone"):
        look(tmp_path / "gone")


@pytest.mark.promise("data: Hashed in parallel, with a stat index")
def test_only_what_changed_is_read(tmp_path):
    write(tmp_path / "same.txt", "same")
    write(tmp_path / "edited.txt", "before")
    first = snap(tmp_path)
    index = StatIndex(recorded(first.files, time.time_ns()))
    lie = {path: (fingerprint, "0" * 64) for path, (fingerprint, _) in index.digests.items()}
    write(tmp_path / "edited.txt", "behind")
    digests = {facts.path: digest for facts, digest in snap(tmp_path, StatIndex(lie)).files}
    assert digests["same.txt"] == "0" * 64
    assert digests["edited.txt"] not in ("0" * 64, index.digests["edited.txt"][1])


def test_a_file_edited_in_the_moment_it_was_hashed_is_read_again():
    moment = 1_700_000_000_500_000_000
    for modified, trusted in (
        (moment - 1_000_000, False),
        (moment + 5_000_000_000, False),
        (moment - 200_000_000, True),
        (moment // 1_000_000_000 * 1_000_000_000 - 1_000_000_000, False),
        (moment // 1_000_000_000 * 1_000_000_000 - 4_000_000_000, True),
    ):
        facts = FileFacts("a", 0o644, 1, modified, modified, 7)
        known = StatIndex(recorded([(facts, "d" * 64)], moment)).digest(facts)
        assert (known is not None) == trusted


def test_the_mode_is_always_the_present_one(tmp_path):
    write(tmp_path / "run.sh", "x")
    before = snap(tmp_path)
    (tmp_path / "run.sh").chmod(0o755)
    assert snap(tmp_path, StatIndex(recorded(before.files, time.time_ns()))).tree != before.tree


def test_the_same_files_are_the_same_tree_wherever_they_are(tmp_path):
    for place, names in (("a", range(200)), ("b", reversed(range(200)))):
        for number in names:
            write(tmp_path / place / f"{number}.txt", str(number), modified=LONG_AGO + number)
    one, other = snap(tmp_path / "a"), snap(tmp_path / "b")
    assert one.tree == other.tree
    assert one.size == sum(len(str(number)) for number in range(200))


def test_an_edit_changes_one_segment(tmp_path):
    for number in range(900):
        write(tmp_path / f"{number % 7}/{number}.txt", "")
    before = {digest for digest, _ in snap(tmp_path).segments}
    write(tmp_path / "3/10.txt", "edited")
    (tmp_path / "new.txt").write_text("")
    after = {digest for digest, _ in snap(tmp_path).segments}
    assert len(before) > 3
    assert len(after - before) <= 2


def test_only_a_file_that_keeps_changing_is_refused(tmp_path):
    write(tmp_path / "log", "text")

    def reader(changes: int) -> object:
        left = iter(range(changes))

        def read(descriptor: int, into: bytearray, offset: int) -> int:
            count = os.preadv(descriptor, [into], offset)
            if not count and next(left, None) is not None:
                with (tmp_path / "log").open("a") as stream:
                    stream.write("more")
            return count

        return read

    assert hash_file(str(tmp_path), "log", reader(2))[0].size == len("text") + 8
    with pytest.raises(InvalidProject, match=r"log' changes while it is read.*\.kineticignore"):
        hash_file(str(tmp_path), "log", reader(100))


def test_a_file_that_vanished_is_not_in_the_snapshot(tmp_path):
    write(tmp_path / "a", "")
    write(tmp_path / "b", "")
    listing = look(tmp_path)
    (tmp_path / "a").unlink()
    assert [facts.path for facts, _ in take_snapshot(str(tmp_path), listing, StatIndex()).files] == ["b"]


def test_an_unreadable_file_is_refused_by_name(tmp_path):
    (tmp_path / "memory").symlink_to("/proc/self/mem")  # a regular file nobody can read from its beginning
    with pytest.raises(InvalidProject, match=r"memory' cannot be read.*\.kineticignore"):
        snap(tmp_path)


@pytest.fixture
def index(tmp_path: Path) -> tuple[str, StatIndex]:
    write(tmp_path / "proj/a.txt", "a")
    digests = recorded(snap(tmp_path / "proj").files, time.time_ns())
    return (
        index_path(str(tmp_path / "cache"), str(tmp_path / "proj"), "file:///store"),
        StatIndex(digests, "t" * 64, ("s" * 64,), ("p" * 64,)),
    )


def test_an_index_comes_back_as_it_was_written(index):
    path, written = index
    write_index(path, written)
    write_index(path, written)
    assert read_index(path) == written
    assert list(Path(path).parent.iterdir()) == [Path(path)]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"version": 99}', b"\xff\xfe", b'{"version":1,"paths":3}']
)
def test_a_damaged_index_is_empty(index, damage):
    path, written = index
    write_index(path, written)
    Path(path).write_bytes(damage)
    assert read_index(path) == StatIndex()


def test_without_a_writable_cache_there_is_no_index(index, tmp_path):
    (tmp_path / "file").write_text("")
    path = index_path(str(tmp_path / "file"), "root", "store")
    write_index(path, index[1])
    assert read_index(path) == StatIndex()


def test_every_root_and_store_has_its_own_index():
    paths = {index_path("/cache", root, uri) for root in ("/a", "/b") for uri in ("file:///s", "gs://s")}
    assert len(paths) == 4


def test_a_large_file_changed_while_hashed_is_consistent(tmp_path):
    file = tmp_path / "large"
    file.write_bytes(bytes(PIECE + 10))
    edits = iter([b"x"])

    def read(descriptor: int, into: bytearray, offset: int) -> int:
        count = os.preadv(descriptor, [into], offset)
        if offset >= PIECE and (edit := next(edits, None)):
            with file.open("r+b") as stream:
                stream.write(edit)
        return count

    hashed = hash_file(str(tmp_path), "large", read)
    assert hashed is not None
    first = hashlib.sha256(b"x" + bytes(PIECE - 1)).hexdigest()
    assert hashed[1] == first + hashlib.sha256(bytes(10)).hexdigest()


@pytest.mark.promise("data: Hashed in parallel, with a stat index")
def test_pieces_hashed_side_by_side_are_those_hashed_in_turn(tmp_path):
    (tmp_path / "large").write_bytes(os.urandom(2 * PIECE + 5))
    with ThreadPoolExecutor(3) as pool:
        together = hash_file(str(tmp_path), "large", together=pool.map)
    assert together == hash_file(str(tmp_path), "large")
