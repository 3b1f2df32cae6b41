"""Data on its way to a real bucket: killed, by two at once, as files."""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core import Data
from kinetic_core._runner.trees import PIECE
from kinetic_core.errors import InvalidProject
from kinetic_core.project.packs import PACK
from kinetic_core.project.tree import store_data
from kinetic_core.store.gcs import GcsObjectStore
from tests.cluster.objects import stored
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("gke")

PROGRAM = """
import sys
from pathlib import Path
from kinetic_core.project.tree import store_data
from kinetic_core.store.gcs import GcsObjectStore
tree = store_data(Path(sys.argv[1]), GcsObjectStore.at(sys.argv[2]), cache=Path(sys.argv[3]))
print(tree.sha256, tree.stored)
"""


def uploader(data: Path, location: str, cache: Path) -> subprocess.Popen[str]:
    """Another process that stores the data there."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(data), location, str(cache)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.promise("data: Resumable, with progress")
@pytest.mark.promise("data: Upload interrupted and resumed")
def test_an_upload_that_is_killed_is_gone_on_with(tmp_path: Path, location: str) -> None:
    with (tmp_path / "large").open("wb") as stream:
        for _ in range(5):
            stream.write(secrets.token_bytes(PACK))
    own = f"{location}/killed"
    with uploader(tmp_path / "large", own, tmp_path / "cache") as uploading:
        wait_for(lambda: stored(own, "packs/"), 60)
        uploading.kill()
    store = GcsObjectStore.at(own)
    made = {info.name: info.created for info in store.list("packs/")}
    assert stored(own, "trees/") == []
    store_data(tmp_path / "large", store, cache=tmp_path / "cache")
    now = {info.name: info.created for info in store.list("packs/")}
    assert 0 < len(made) < len(now)
    assert now == {**now, **made}


@pytest.mark.promise("data: Concurrent uploads of the same tree store it once")
def test_two_who_upload_the_same_at_once_store_it_once(tmp_path: Path, location: str) -> None:
    """Neither waits for the other, nor does either leave anything that the other has not."""
    with (tmp_path / "large").open("wb") as stream:
        for _ in range(3):
            stream.write(secrets.token_bytes(PACK))
    own = f"{location}/twice"
    both = [uploader(tmp_path / "large", own, tmp_path / f"cache{number}") for number in range(2)]
    told = [each.communicate(timeout=120)[0].split() for each in both]
    assert [each.returncode for each in both] == [0, 0]
    assert told[0][0] == told[1][0]
    assert (tmp_path / "large").stat().st_size <= sum(int(stored_bytes) for _, stored_bytes in told)
    store = GcsObjectStore.at(own)
    assert len(stored(own, "trees/")) == 1
    assert sum(info.size for info in store.list("packs/")) < 1.01 * (tmp_path / "large").stat().st_size
    assert store_data(tmp_path / "large", store, cache=tmp_path / "cache3").stored == 0


@kinetic_core.run(accelerator="cpu")
def digest(path: str) -> str:
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def rewrite_last_packed(path: Path) -> None:
    """Change the piece of a file that is packed last, whose digest is the greatest. Size and times stay."""
    facts = path.stat()
    with path.open("r+b") as stream:
        digests = [hashlib.sha256(stream.read(PIECE)).digest() for _ in range(0, facts.st_size, PIECE)]
        stream.seek(digests.index(max(digests)) * PIECE)
        stream.write(secrets.token_bytes(PIECE))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.promise("data: Data changed while hashed is detected")
def test_data_rewritten_during_the_upload_is_consistent(tmp_path: Path, location: str) -> None:
    """Its first packs are in the bucket when the piece that is packed last becomes another."""
    file, store, done = tmp_path / "large", GcsObjectStore.at(location), list[str]()
    file.write_bytes(secrets.token_bytes(2 * PACK))

    def rewrite(stage: str) -> None:
        if stage.startswith("uploading") and not done:
            done.append(stage)
            rewrite_last_packed(file)

    tree = store_data(file, store, cache=tmp_path / "cache", progress=rewrite)
    assert done
    assert store.find(f"trees/{tree.sha256}.json") is not None
    told = digest.run_async(Data(str(file)))
    with file.open("rb") as stream:
        assert told.result(stream_logs=False) == hashlib.file_digest(stream, "sha256").hexdigest()
    assert store_data(file, store, cache=tmp_path / "cache").sha256 == tree.sha256


@pytest.mark.promise("data: Data changed while hashed is detected")
def test_data_that_never_rests_is_no_data(tmp_path: Path, location: str) -> None:
    file, own = tmp_path / "large", f"{location}/restless"
    file.write_bytes(secrets.token_bytes(2 * PIECE))
    with pytest.raises(InvalidProject, match=r"large.* changed while it was being stored"):
        store_data(
            file,
            GcsObjectStore.at(own),
            cache=tmp_path / "cache",
            progress=lambda _stage: rewrite_last_packed(file),
        )
    assert stored(own, "trees/") == []


def test_local_data_to_be_mounted_is_stored_file_by_file(tmp_path: Path, location: str) -> None:
    from kinetic_core.data.sources import store_plain

    (tmp_path / "set/sub").mkdir(parents=True)
    (tmp_path / "set/sub/a.txt").write_text("a")
    (tmp_path / "set/link").symlink_to("sub/a.txt")
    store = GcsObjectStore.at(location)
    tree = store_plain(tmp_path / "set", store, cache=tmp_path / "cache")
    names = [f"data/{tree.sha256}/link", f"data/{tree.sha256}/sub/a.txt"]
    assert stored(location, f"data/{tree.sha256}/") == names
    store.delete(names[1])
    assert store_plain(tmp_path / "set", store, cache=tmp_path / "cache").stored == 1
    assert store_plain(tmp_path / "set", store, cache=tmp_path / "cache").stored == 0
    assert stored(location, f"data/{tree.sha256}/") == names
