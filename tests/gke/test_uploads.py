"""Data on its way to a real bucket: killed, by two at once, as files."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic_core.packaging.packs import PACK
from kinetic_core.packaging.tree import store_data
from kinetic_core.storage.gcs import GcsObjectStore
from tests.conftest import wait_for
from tests.gke.objects import stored

pytestmark = pytest.mark.usefixtures("gke")

PROGRAM = """
import sys
from pathlib import Path
from kinetic_core.packaging.tree import store_data
from kinetic_core.storage.gcs import GcsObjectStore
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


def test_local_data_to_be_mounted_is_stored_file_by_file(tmp_path: Path, location: str) -> None:
    from kinetic_core.packaging.plain import store_plain

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
