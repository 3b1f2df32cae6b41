"""What a pack is made of."""

import hashlib
import io
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kinetic_core._runner.trees import DEFLATED, LARGEST_PACK, MOST_MEMBERS, PIECE, STORED, read_members
from kinetic_core.errors import StoreFull
from kinetic_core.project.packs import PACK, Content, ContentChanged, store_packs
from kinetic_core.testing.memory_store import MemoryObjectStore

_TEXT = b"def work(x):\n    return x + 1\n" * 400
_NOISE = random.Random(7).randbytes(50_000)
_TOKENS = bytes(random.Random(7).choices(b"0123456789abcdef", k=50_000))


def contents(*bodies: bytes | Path) -> list[Content]:
    found = {}
    for body in bodies:
        raw = body.read_bytes() if isinstance(body, Path) else body
        digest = hashlib.sha256(raw).hexdigest()
        found[digest] = Content(digest, str(body) if isinstance(body, Path) else raw, len(raw))
    return [found[digest] for digest in sorted(found)]


def store_pack(listed: list[Content], store: MemoryObjectStore, scratch: Path | None) -> tuple[str, int]:
    stored = store_packs(listed, store, scratch)
    (pack,) = stored.packs
    return pack, stored.stored


def stored_zip(store: MemoryObjectStore, pack: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(store.read(f"packs/{pack}.zip")))


@pytest.mark.promise("data: Few requests, small files packed")
def test_packs_and_their_members_are_named_by_digest(tmp_path):
    store = MemoryObjectStore()
    bodies = (b"", b"a", _TEXT, _NOISE, _TOKENS)
    pack, size = store_pack(contents(*bodies), store, tmp_path)
    raw = store.read(f"packs/{pack}.zip")
    assert (len(raw), hashlib.sha256(raw).hexdigest()) == (size, pack)
    archive = stored_zip(store, pack)
    assert archive.namelist() == sorted(hashlib.sha256(body).hexdigest() for body in bodies)
    assert archive.testzip() is None
    for body in bodies:
        info = archive.getinfo(hashlib.sha256(body).hexdigest())
        assert archive.read(info) == body
        assert info.date_time == (1980, 1, 1, 0, 0, 0)


def test_no_pack_is_larger_than_pods_fetch(tmp_path):
    """The records of tiny files take more than the files, which alone would fit in one pack."""
    bodies = [number.to_bytes(3) for number in range(MOST_MEMBERS + 1)]
    tiny = [Content(hashlib.sha256(body).hexdigest(), body, len(body)) for body in bodies]
    store = MemoryObjectStore("file:///store")
    packs = store_packs(tiny, store, tmp_path).packs
    sizes = [len(store.read(f"packs/{pack}.zip")) for pack in packs]
    assert len(packs) == 2
    assert max(sizes) + PACK < LARGEST_PACK


def test_the_runner_finds_the_same_members(tmp_path):
    store = MemoryObjectStore()
    pack, _ = store_pack(contents(_TEXT, _NOISE), store, None)
    (tmp_path / "pack").write_bytes(store.read(f"packs/{pack}.zip"))
    with (tmp_path / "pack").open("rb") as stream:
        members = read_members(stream)
    methods = {member.size: member.method for member in members.values()}
    assert methods == {len(_TEXT): DEFLATED, len(_NOISE): STORED}


def test_the_same_contents_are_the_same_pack(tmp_path):
    bodies = [os.urandom(2000) + bytes(2000) for _ in range(900)]
    first, _ = store_pack(contents(*bodies), MemoryObjectStore(), tmp_path)
    second, _ = store_pack(contents(*reversed(bodies)), MemoryObjectStore(), None)
    assert first == second


def test_a_piece_of_a_file_is_a_content(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(_NOISE)
    piece = Content(hashlib.sha256(_NOISE[100:900]).hexdigest(), str(file), 800, 100)
    store = MemoryObjectStore()
    pack, _ = store_pack([piece], store, tmp_path)
    assert stored_zip(store, pack).read(piece.sha256) == _NOISE[100:900]


@pytest.mark.parametrize("unit", [b"text, again and again. " * 4, None], ids=["text", "noise"])
def test_a_large_content_is_deflated_if_that_helps(tmp_path, unit):
    size = 3 << 20
    body = random.Random(1).randbytes(size) if unit is None else (unit * size)[:size]
    store = MemoryObjectStore()
    pack, stored = store_pack(contents(body), store, tmp_path)
    assert stored_zip(store, pack).testzip() is None
    assert (stored < size // 50) == (unit is not None)


def several(packs: int) -> list[Content]:
    """Contents that fill so many packs."""
    return [content for number in range(packs) for content in contents(b"%d" % number + bytes(PIECE - 4))]


def test_much_is_several_packs_and_its_upload_resumes(tmp_path):
    listed = several(4)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    made = []

    def interrupted(operation: str, name: str) -> None:
        if operation == "create":
            made.append(name)
            if len(made) == 2:
                raise StoreFull(name)

    store = MemoryObjectStore(fault=interrupted)
    with pytest.raises(StoreFull):
        store_packs(listed, store, scratch)
    assert list(scratch.iterdir()) == []
    kept = [info.name for info in store.list("packs/")]
    assert 1 <= len(kept) < 4
    tried = len(made)
    told: list[tuple[int, int]] = []
    stored = store_packs(listed, store, scratch, lambda *progress: told.append(progress))
    assert sorted(kept + made[tried:]) == sorted(f"packs/{pack}.zip" for pack in stored.packs)
    assert len(stored.packs) == 4
    assert [total for _, total in told] == [sum(content.size for content in listed)] * 4
    assert told[-1][0] == told[-1][1]
    assert list(scratch.iterdir()) == []


def test_a_pack_that_is_stored_already_is_no_error(tmp_path):
    store = MemoryObjectStore()
    first = store_pack(contents(b"a"), store, tmp_path)
    assert store_pack(contents(b"a"), store, tmp_path) == (first[0], 0)


@pytest.mark.parametrize("size", [10, 3 << 20])
def test_a_file_that_changed_since_it_was_hashed_is_noticed(tmp_path, size):
    file = tmp_path / "file"
    file.write_bytes(bytes(size))
    listed = contents(file)
    file.write_bytes(bytes(size - 1) + b"x")
    store = MemoryObjectStore()
    with pytest.raises(ContentChanged, match="file"):
        store_pack(listed, store, tmp_path)
    file.unlink()
    with pytest.raises(ContentChanged, match="file"):
        store_pack(listed, store, tmp_path)
    assert store.requests == []
    assert list(tmp_path.iterdir()) == []


WITHOUT_ISAL = """
import sys
sys.modules["isal"] = None
from tests.project.test_packs import _NOISE, _TEXT, MemoryObjectStore, contents, store_pack, stored_zip
store = MemoryObjectStore()
pack, size = store_pack(contents(_TEXT, _NOISE), store, None)
print(stored_zip(store, pack).testzip(), size < len(_NOISE) + len(_TEXT) // 10)
"""


def test_a_machine_without_isal_deflates_with_zlib():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WITHOUT_ISAL]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["None", "True"]


def test_a_full_store_leaves_nothing_behind(tmp_path):
    def full(operation: str, name: str) -> None:
        raise StoreFull(f"cannot {operation} {name}")

    with pytest.raises(StoreFull):
        store_pack(contents(b"a"), MemoryObjectStore(fault=full), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_scratch_disk_says_so(tmp_path):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    from kinetic_core.project.packs import write_pack

    with pytest.raises(OSError, match="No space"), full.open("wb", buffering=0) as stream:
        write_pack(contents(b"a"), stream)
