"""A volume that pods share: of what lies there nothing is believed, and nothing used where it lies."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kinetic_core._runner.data import DataFolder
from kinetic_core._runner.downloads import Fetch, Item, Sink, download
from kinetic_core._runner.shared_cache import Content, SharedCache
from kinetic_core._runner.store import DirectoryStore
from kinetic_core.project.tree import store_data
from kinetic_core.store.directory import DirectoryObjectStore
from tests.conftest import wait_for

pytestmark = pytest.mark.attack
_BODY = b"good" * 1000
_HONEST = {"a.txt": _BODY, "sub/b.txt": b"also good"}


class Volume:
    """A volume, a store with data in it, and pods that use both."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "volume").mkdir()
        self.contents = home / "volume/contents"
        self.fetched: list[str] = []
        self.objects = DirectoryObjectStore(home / "store")
        for path, body in _HONEST.items():
            (home / "set" / path).parent.mkdir(parents=True, exist_ok=True)
            (home / "set" / path).write_bytes(body)
        self.tree = store_data(home / "set", self.objects, cache=home / "cache").sha256

    def cache(self) -> SharedCache:
        return SharedCache(str(self.home / "volume"))

    def pod(self, name: str) -> dict[str, bytes]:
        """What the local data of a job looks like to a pod of that name."""
        store = _Counting(self.objects.uri, str(self.objects.root))
        folder = DataFolder(str(self.home / name), store, shared=False, cache=self.cache())
        found = Path(folder.unpack(self.tree))
        self.fetched += store.fetched
        return {
            str(path.relative_to(found)): path.read_bytes() for path in found.rglob("*") if path.is_file()
        }

    def bucket(self, name: str) -> dict[str, bytes]:
        """The same of data in a bucket."""
        items = [Item(path, len(body), _md5(body), path) for path, body in _HONEST.items()]
        download("gs://b/", items, str(self.home / name), self._fetch, self.cache())
        return {each.path: (self.home / name / each.path).read_bytes() for each in items}

    def poison(self) -> None:
        """Write over everything on the volume, keeping sizes and names."""
        for path in self.contents.iterdir():
            if not path.name.startswith("."):
                path.write_bytes(b"evil" * (path.stat().st_size // 4) + b"!" * (path.stat().st_size % 4))

    @property
    def _fetch(self) -> Fetch:
        def of(item: Item, offset: int, size: int, sink: Sink) -> None:
            self.fetched.append(item.path)
            sink(offset, _HONEST[item.path][offset : offset + size])

        return of


class _Counting(DirectoryStore):
    def __init__(self, uri: str, root: str) -> None:
        super().__init__(uri, root)
        self.fetched: list[str] = []

    def fetch(self, name: str, most: int) -> str:
        self.fetched.append(name)
        return super().fetch(name, most)


def _md5(body: bytes) -> tuple[str, str]:
    return "md5", hashlib.md5(body).hexdigest()


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path)


@pytest.mark.parametrize("kind", ["pod", "bucket"])
def test_what_one_pod_has_fetched_another_copies(volume: Volume, kind: str) -> None:
    assert getattr(volume, kind)("first") == _HONEST
    fetched = list(volume.fetched)
    assert getattr(volume, kind)("second") == _HONEST
    assert volume.fetched == fetched
    volume.poison()
    copies = [volume.home / pod / path for pod in ("first", "second") for path in _HONEST]
    assert not any(b"evil" in path.read_bytes() for path in copies if path.exists())


@pytest.mark.parametrize("kind", ["pod", "bucket"])
def test_a_poisoned_content_is_fetched_again_and_replaced(
    volume: Volume, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    getattr(volume, kind)("first")
    volume.poison()
    assert getattr(volume, kind)("second") == _HONEST
    assert "is not what its name says: not used, fetched again" in capsys.readouterr().err
    fetched = list(volume.fetched)
    assert getattr(volume, kind)("third") == _HONEST
    assert volume.fetched == fetched


@pytest.mark.parametrize("kind", ["cut", "grown", "link", "pipe", "directory", "folder-link"])
def test_what_is_no_content_is_not_used(volume: Volume, kind: str) -> None:
    volume.bucket("first")
    secret = volume.home / "secret"
    secret.write_bytes(_BODY)
    path = volume.contents / f"md5-{_md5(_BODY)[1]}"
    if kind == "folder-link":
        (volume.home / "volume/contents").rename(volume.home / "volume/moved")
        volume.contents.symlink_to(volume.home / "volume/moved")
    else:
        path.unlink()
    if kind in ("cut", "grown"):
        path.write_bytes(_BODY[:-1] if kind == "cut" else _BODY + b"x")
    elif kind == "link":
        path.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        (path / "x").mkdir(parents=True)
    volume.fetched.clear()
    assert volume.bucket("second") == _HONEST
    assert "a.txt" in volume.fetched
    assert secret.read_bytes() == _BODY


def test_a_volume_that_nobody_may_write_is_done_without(
    volume: Volume, capsys: pytest.CaptureFixture[str]
) -> None:
    (volume.home / "volume").rmdir()
    assert volume.pod("first") == volume.bucket("second") == _HONEST
    assert "going on without it" in capsys.readouterr().err


def test_a_store_that_is_poisoned_does_not_poison_the_volume(volume: Volume) -> None:
    cache, bad = volume.cache(), volume.home / "bad"
    bad.write_bytes(b"evil")
    cache.keep(Content(*_md5(_BODY), len(_BODY)), str(bad))
    assert [path for path in volume.contents.iterdir() if not path.name.startswith(".")] == []


def test_names_that_lead_elsewhere_are_never_opened(volume: Volume) -> None:
    (volume.home / "volume/contents").mkdir()
    (volume.home / "volume/sha256-x").write_bytes(b"x")
    own = str(volume.home / "own")
    assert not volume.cache().take(Content("sha256", "../sha256-x", 1), own)
    assert not Path(own).exists()


def test_who_holds_a_lock_for_ever_delays_nobody_for_ever(
    volume: Volume, capsys: pytest.CaptureFixture[str]
) -> None:
    with volume.cache().lock("data"), SharedCache(str(volume.home / "volume"), patience=0).lock("data"):
        pass
    assert "not waiting any longer" in capsys.readouterr().err


def test_two_pods_fetch_once(volume: Volume) -> None:
    """The second waits for the first, which is another process's lock."""
    pods = [threading.Thread(target=volume.bucket, args=(name,)) for name in ("first", "second")]
    for pod in pods:
        pod.start()
    for pod in pods:
        pod.join()
    assert sorted(volume.fetched) == sorted(_HONEST)


def test_a_process_that_swaps_files_meanwhile_is_never_believed(volume: Volume) -> None:
    """A hostile pod writes good and evil bytes in turn, in place and by renaming, while others read."""
    volume.bucket("first")
    program = (
        "import os, sys; path, size = sys.argv[1], int(sys.argv[2]); good = b'good' * (size // 4)\n"
        "evil = b'evil' * (size // 4); print('ready', flush=True)\n"
        "while True:\n"
        "    for body in (evil, good):\n"
        "        open(path + '.x', 'wb').write(body); os.rename(path + '.x', path)\n"
        "        with open(path, 'r+b') as stream:\n"
        "            stream.write(evil[:2000]); stream.seek(0); stream.write(good)\n"
    )
    path = volume.contents / f"md5-{_md5(_BODY)[1]}"
    command = [sys.executable, "-c", program, str(path), str(len(_BODY))]
    attacker = subprocess.Popen(command, stdout=subprocess.PIPE)
    with attacker:
        try:
            assert attacker.stdout is not None
            assert attacker.stdout.readline() == b"ready\n"
            wait_for(path.exists, 10)
            for number in range(100):
                assert volume.bucket(f"pod-{number}") == _HONEST
        finally:
            attacker.kill()
