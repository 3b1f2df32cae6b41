"""Data of a bucket while Cloud Storage stumbles, and while somebody changes it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetic_core._runner.bucket_data import GcsData
from kinetic_core._runner.store import MissingObject
from kinetic_core.store.gcs import GcsObjectStore
from kinetic_core.testing.fault_proxy import FaultProxy
from kinetic_core.testing.faulty_server import Faults

pytestmark = pytest.mark.cluster
FILES = {"a.bin": secrets.token_bytes(5000), "sub/ü.bin": secrets.token_bytes(70 << 10), "empty": b""}


@pytest.fixture
def theirs(gcs: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsObjectStore]:
    """A place of a bucket with files in it."""
    monkeypatch.setenv("KINETIC_WORK_DIR", str(tmp_path))
    store = GcsObjectStore("test-bucket", f"theirs-{secrets.token_hex(4)}")
    for name, content in FILES.items():
        store.create_if_absent(name, content)
    yield store
    unmet = gcs.faults.unmet
    gcs.faults.clear()
    for info in list(store.list("")):
        store.delete(info.name)
    assert unmet == ()


FAULTS: dict[str, Callable[[Faults, str], None]] = {
    "429": lambda faults, match: faults.answer(match, 429, headers={"Retry-After": "1"}),
    "503": lambda faults, match: faults.answer(match, 503, times=2),
    "dropped": lambda faults, match: faults.drop(match, times=2),
    "cut": lambda faults, match: faults.cut_reply(match, 100),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_is_noticed(gcs: FaultProxy, theirs: GcsObjectStore, tmp_path: Path, fault: str) -> None:
    FAULTS[fault](gcs.faults, r"GET .*/o\?prefix=")
    for name in ("a.bin", "sub"):
        FAULTS[fault](gcs.faults, f"GET .*{name}.*alt=media")
    data = GcsData(f"{theirs.uri}/")
    data.make(data.items, str(tmp_path / "out"))
    assert {name: (tmp_path / "out" / name).read_bytes() for name in FILES} == FILES


@pytest.mark.promise("data: Object deleted between marker check and download")
@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_what_changes_after_it_was_listed_is_named(
    theirs: GcsObjectStore, tmp_path: Path, replaced: bool
) -> None:
    data = GcsData(f"{theirs.uri}/")
    theirs.delete("a.bin")
    if replaced:
        theirs.create_if_absent("a.bin", secrets.token_bytes(5000))
    with pytest.raises(MissingObject, match=r"a\.bin as it was listed .*went away while it was downloaded"):
        data.make(data.items, str(tmp_path / "out"))
