"""Objects of any size that somebody has put where the runner looks for a few bytes of its own."""

from __future__ import annotations

import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from kinetic_core._runner import object_names, trees, wire
from kinetic_core._runner.attempt import Job
from kinetic_core._runner.batch import was_cancelled, why_not
from kinetic_core._runner.claims import take_number, tell_end
from kinetic_core._runner.data import DataFolder
from kinetic_core._runner.gcs import GcsStore
from kinetic_core._runner.http_pool import HttpPool
from kinetic_core._runner.memory import exhausted
from kinetic_core._runner.notes import LONGEST_NOTE, ForgedNote, encode_note, read_note
from kinetic_core._runner.payload import read_frame
from kinetic_core._runner.store import DirectoryStore, ObjectTooLarge, Store
from kinetic_core.testing.fault_proxy import FaultProxy
from tests.conftest import wait_for
from tests.runner.attempts import JOB, KEY, Attempts, holding
from tests.runner.test_claims import pod
from tests.warm.test_worker import WORKER, give, result
from tests.warm.test_worker import start as start_worker

pytestmark = pytest.mark.attack

ENDLESS = 256 << 20


class Measured(DirectoryStore):
    """A directory that knows the largest piece of an object that was read at once."""

    largest = 0

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        content = super().read_range(name, offset, size)
        self.largest = max(self.largest, len(content))
        return content


def plant(root: Path, name: str, start: bytes = b"") -> None:
    """An object that begins so, and is followed by zeros, which take no room on the disk."""
    place = root / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(start)
    os.truncate(place, ENDLESS)


def _read_note(job: Job, store: Store) -> None:
    with pytest.raises(ForgedNote):
        read_note(job, store, object_names.lock(JOB))


def _take_number(job: Job, store: Store) -> None:
    number, may_run = take_number(job, store)
    assert (number.attempt, may_run) == (1, True), "what is planted takes a number, and nothing else"


READERS: dict[str, tuple[str, Callable[[Job, Store], object]]] = {
    "a note": (object_names.lock(JOB), _read_note),
    "a claim": (object_names.claim(JOB, 0, 0), _take_number),
    "the last claim": (object_names.claim(JOB, 0, 0), tell_end),
    "a mark": (object_names.cancel(JOB), was_cancelled),
    "a mark before the start": (object_names.cancel(JOB), why_not),
    "the memory of an attempt": (object_names.memory(JOB, 0), exhausted),
}


@pytest.mark.parametrize("reader", READERS)
def test_of_an_endless_object_little_is_read(tmp_path: Path, reader: str) -> None:
    name, read = READERS[reader]
    plant(tmp_path, name)
    store = Measured(f"file://{tmp_path}", str(tmp_path))
    read(pod("uid", failed=1), store)
    assert 0 < store.largest <= LONGEST_NOTE


def _load_payload(store: Store, name: str) -> None:
    read_frame(store, name, "0" * 64, 1000)


def _unpack_pack(store: Store, name: str) -> None:
    document = {"version": trees.VERSION, "segments": [], "packs": ["0" * 64]}
    tree = trees.tree_digest([])
    store.create_if_absent(object_names.tree(tree), trees.canonical(document))
    _unpack_tree(store, object_names.tree(tree))


def _unpack_tree(store: Store, name: str) -> None:
    folder = Path(store.uri.removeprefix("file://"), "unpacked")
    DataFolder(str(folder), store, shared=False).unpack(name.rpartition("/")[2].removesuffix(".json"))


@pytest.mark.parametrize(
    ("name", "read"),
    [
        (object_names.payload(JOB, "0" * 64), _load_payload),
        (object_names.tree("0" * 64), _unpack_tree),
        (object_names.pack("0" * 64), _unpack_pack),
    ],
)
def test_what_was_replaced_takes_no_more_memory(
    tmp_path: Path, name: str, read: Callable[[Store, str], None]
) -> None:
    """Objects that are named by their content, and verified when they are in memory."""
    plant(tmp_path, name)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"larger than|not the one this job was submitted with"):
            read(DirectoryStore(f"file://{tmp_path}", str(tmp_path)), name)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * wire.LARGEST_DOCUMENT


def test_an_object_that_is_too_large_takes_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Cloud Storage; a directory is asked for the size."""
    monkeypatch.setenv("KINETIC_WORK_DIR", str(tmp_path))
    with FaultProxy("http://127.0.0.1:1") as bucket:
        bucket.faults.answer("GET .*alt=media", 200, body=bytes(3 << 20), times=None)
        store = GcsStore("gs://bucket", pool=HttpPool(bucket.url))
        with pytest.raises(ObjectTooLarge, match="larger than"):
            store.fetch("pack", (3 << 20) - 1)
        assert bucket.faults.count("GET .*alt=media") == 1, "asking again would not help"
        assert list((tmp_path / "fetched").iterdir()) == []
        assert Path(store.fetch("pack", 3 << 20)).stat().st_size == 3 << 20
        store.close()


def test_of_an_endless_end_of_an_attempt_the_head_is_read(tmp_path: Path) -> None:
    store = Measured(f"file://{tmp_path}", str(tmp_path))
    first, _ = take_number(pod("a"), store)
    header = {"protocol": wire.PROTOCOL, "job_id": JOB, "state": "failed", "codec": "none", "attempt": 0}
    end = object_names.attempt_outcome(JOB, 0, first.host)
    plant(tmp_path, end, wire.encode_frame({**header, "object": end}, {}, b"another key"))
    _, may_run = take_number(pod("b"), store)
    assert not may_run, "nobody has proved that the attempt before is over"
    assert store.largest <= wire.HEAD_BYTES


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_is_not_ended_by_endless_objects(tmp_path: Path) -> None:
    attempts, ran, go = Attempts(tmp_path), tmp_path / "ran", tmp_path / "go"

    attempts.submit(holding(ran, go))
    plant(tmp_path / "store", object_names.call(WORKER, 0))
    plant(tmp_path / "store", object_names.end_call(JOB))
    worker = start_worker(attempts, idle=1)
    give(attempts, 1)
    wait_for(ran.exists)
    wait_for(lambda: f"{object_names.end_call(JOB)} is not what this job has stored" in attempts.log)
    status = Path(f"/proc/{worker.pid}/status").read_text()
    (peak,) = [int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM")]
    go.touch()
    assert worker.wait(timeout=60) == 0
    assert result(attempts) == "value"
    assert peak < ENDLESS


def test_a_note_may_be_as_long_as_the_longest(tmp_path: Path) -> None:
    name = object_names.lock(JOB)
    note = encode_note(KEY, name, {"text": ""})
    note = encode_note(KEY, name, {"text": "x" * (LONGEST_NOTE - len(note))})
    assert len(note) == LONGEST_NOTE
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_bytes(note)
    store = DirectoryStore(f"file://{tmp_path}", str(tmp_path))
    assert read_note(pod("uid"), store, name)["text"].strip("x") == ""
