"""Where an attempt's data lies, alone and in a directory that others use too."""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kinetic_core._runner.data import DataFolder
from kinetic_core._runner.store import DirectoryStore, MissingObject
from kinetic_core._runner.unpack import IncompleteTree
from kinetic_core.project.tree import store_data
from kinetic_core.store.directory import DirectoryObjectStore


class Counting(DirectoryStore):
    """Counts what is fetched, and waits before it."""

    def __init__(self, uri: str, root: str) -> None:
        super().__init__(uri, root)
        self.fetched: list[str] = []

    def fetch(self, name: str, most: int) -> str:
        self.fetched.append(name)
        time.sleep(0.02)
        return super().fetch(name, most)


class Workspace:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.objects = DirectoryObjectStore(home / "store")
        self.store = Counting(self.objects.uri, str(self.objects.root))
        (home / "set").mkdir()
        for number in range(5):
            (home / f"set/{number}.txt").write_text(str(number))
        (home / "set/run.sh").write_text("#!")
        (home / "set/run.sh").chmod(0o755)
        self.tree = store_data(home / "set", self.objects, cache=home / "cache").sha256

    def source(self, **more):
        return {"kind": "tree", "tree": self.tree, "file": None, **more}

    def folder(self, **options) -> DataFolder:
        return DataFolder(str(self.home / "data"), self.store, **{"shared": False, **options})


@pytest.fixture
def world(tmp_path):
    return Workspace(tmp_path)


def test_data_of_its_own_keeps_its_modes(world):
    root, file = world.folder().find(world.source(file="run.sh"))
    assert file == "run.sh"
    assert (Path(root) / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (Path(root) / "1.txt").stat().st_mode & 0o200


def test_shared_data_is_fetched_once_and_is_read_only(world):
    def find(_number: int) -> str:
        return world.folder(shared=True).find(world.source())[0]

    with ThreadPoolExecutor(4) as pool:
        (root,) = set(pool.map(find, range(4)))
    assert len(world.store.fetched) == 1
    assert {path.stat().st_mode & 0o222 for path in Path(root).iterdir()} == {0}
    assert (Path(root) / "run.sh").stat().st_mode & 0o111


def test_what_a_killed_attempt_left_is_removed(world):
    left = world.home / f"data/{world.tree}.abc.part"
    (left / "half").mkdir(parents=True)
    world.folder(shared=True).find(world.source())
    assert not left.exists()


def test_an_attempt_waits_until_another_is_killed(world):
    (world.home / "data").mkdir()
    program = (
        "import fcntl, sys, time; lock = open(sys.argv[1], 'a'); fcntl.flock(lock, fcntl.LOCK_EX); "
        "print('locked', flush=True); time.sleep(60)"
    )
    lock = str(world.home / f"data/{world.tree}.lock")
    holder = subprocess.Popen([sys.executable, "-c", program, lock], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        found: list[str] = []
        finder = threading.Thread(
            target=lambda: found.append(world.folder(shared=True).find(world.source())[0])
        )
        finder.start()
        finder.join(0.1)
        assert found == []
        holder.kill()
        finder.join(90)
        assert list(Path(found[0]).iterdir())


def test_each_host_gets_its_share(world):
    names = []
    for host in range(2):
        root, _ = world.folder(shard=(host, 2)).find(world.source(shard=True))
        names.append(sorted(path.name for path in Path(root).iterdir()))
    assert names == [["0.txt", "2.txt", "4.txt"], ["1.txt", "3.txt", "run.sh"]]
    whole, _ = world.folder(shard=(0, 2)).find(world.source())
    assert len(list(Path(whole).iterdir())) == 6


@pytest.mark.parametrize("what", ["packs/", "trees/"])
def test_a_part_that_is_gone_is_named_and_nothing_is_left(world, what):
    (name,) = [info.name for info in world.objects.list(what)]
    world.objects.delete(name)
    with pytest.raises(IncompleteTree, match=name):
        world.folder().find(world.source())
    assert list((world.home / "data").iterdir()) == []


@pytest.mark.promise("data: `fuse=True`: validated manifest; a file resolves to that file")
def test_a_mount_that_shows_nothing_is_an_error_that_names_it(world):
    (world.home / "mount/sub").mkdir(parents=True)
    source = {"kind": "mounted", "path": str(world.home / "mount"), "file": None, "uri": "gs://b/x/"}
    folder = world.folder()
    assert folder.find(source) == (str(world.home / "mount"), None)
    with pytest.raises(MissingObject, match="gs://b/x/ is not there, or holds nothing"):
        folder.find({**source, "path": str(world.home / "mount/sub")})
    with pytest.raises(MissingObject, match="gs://b/x/ is not there"):
        folder.find({**source, "file": "weights.h5"})
    (world.home / "mount/weights.h5").touch()
    assert folder.find({**source, "file": "weights.h5"}) == (str(world.home / "mount"), "weights.h5")
    with pytest.raises(MissingObject, match="is not mounted"):
        folder.find({**source, "path": str(world.home / "elsewhere")})


def test_a_source_of_a_newer_version_is_refused(world):
    with pytest.raises(ValueError, match="newer version"):
        world.folder().find(json.loads('{"kind": "teleport"}'))
