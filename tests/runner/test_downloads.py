"""Downloading many files: whole, verified, nowhere else."""

import errno
import hashlib
import random

import pytest

from kinetic_core._runner import downloads
from kinetic_core._runner.downloads import DamagedDownload, Item, download
from kinetic_core._runner.store import MissingObject


def item(path: str, body: bytes = b"body", digest: str | None = None) -> Item:
    return Item(path, len(body), ("md5", digest or hashlib.md5(body).hexdigest()), path)


def fetch(bodies: dict[str, bytes]) -> downloads.Fetch:
    def of(item: Item, offset: int, size: int, sink: downloads.Sink) -> None:
        sink(offset, bodies[item.path][offset : offset + size])

    return of


def test_files_large_and_small_and_empty_directories(tmp_path):
    bodies = {"big": random.Random(5).randbytes(70 << 20), "sub/ü b.txt": b"x", "none": b""}
    items = [*(item(path, body) for path, body in bodies.items()), Item("hollow/", 0, None, "hollow/")]
    download("gs://b/", items, str(tmp_path / "out"), fetch(bodies))
    for path, body in bodies.items():
        assert (tmp_path / "out" / path).read_bytes() == body
    assert (tmp_path / "out/hollow").is_dir()


def test_a_piece_that_is_given_twice_is_written_once(tmp_path):
    def again(item: Item, offset: int, size: int, sink: downloads.Sink) -> None:
        sink(offset, b"junk"[:size])
        sink(offset, b"right"[:2])
        sink(offset + 2, b"right"[2:])

    download("gs://b/", [item("a", b"right")], str(tmp_path / "out"), again)
    assert (tmp_path / "out/a").read_bytes() == b"right"


@pytest.mark.parametrize("path", ["../x", "/x", "a/../x", "a//x", "", "."])
def test_paths_that_lead_elsewhere(tmp_path, path):
    with pytest.raises(ValueError, match="cannot be a path below"):
        download("gs://b/", [item(path)], str(tmp_path / "out"), fetch({path: b"body"}))
    assert not (tmp_path / "out").exists()


def test_names_that_a_disk_cannot_hold_together(tmp_path):
    with pytest.raises(ValueError, match="'a' is both a file and a directory"):
        download("gs://b/", [item("a"), item("a/b")], str(tmp_path / "out"), fetch({}))
    with pytest.raises(ValueError, match="'a' is there twice"):
        download("gs://b/", [item("a"), item("a")], str(tmp_path / "out"), fetch({}))


def test_nothing_is_an_error(tmp_path):
    with pytest.raises(MissingObject, match="gs://b/ holds nothing"):
        download("gs://b/", [], str(tmp_path / "out"), fetch({}))


@pytest.mark.promise("data: Free-space check first")
@pytest.mark.promise("data: Disk too small on the pod")
def test_too_small_a_disk_is_noticed_before_the_download(tmp_path):
    huge = Item("huge", 1 << 60, None, "huge")
    with pytest.raises(OSError, match="bytes to unpack") as caught:
        download("gs://b/", [huge], str(tmp_path / "out"), fetch({}))
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.promise("data: Pod: parallel, verified download")
def test_what_is_cut_short_or_changed_is_refused(tmp_path):
    with pytest.raises(DamagedDownload, match="ends after 2 of 4"):
        download("gs://b/", [item("a")], str(tmp_path / "one"), fetch({"a": b"bo"}))
    with pytest.raises(DamagedDownload, match="'a' arrived with another md5"):
        download("gs://b/", [item("a")], str(tmp_path / "two"), fetch({"a": b"b0dy"}))
