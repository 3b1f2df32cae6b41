"""A large result takes about its own size in memory: in the pod, its runner, and whoever collects it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kinetic_core._runner import codec, wire
from kinetic_core._runner.outcome import Outcome as RunnersOutcome
from kinetic_core._runner.results import loaded, succeeded
from kinetic_core._runner.store import DirectoryStore
from kinetic_core.errors import UnverifiedResult
from kinetic_core.jobs.collect import Outcome, read_outcome
from kinetic_core.store.documents import read_start
from kinetic_core.testing.memory_store import MemoryObjectStore

pytestmark = pytest.mark.attack

PROGRAM = Path(__file__).parents[2] / "benchmarks/large_results.py"
NAME = "result"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.slow
def test_a_large_result_takes_its_size_in_memory() -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, "--mib", "64"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok  ") == 15 * 3 + 6 * 2


@pytest.fixture
def stored() -> MemoryObjectStore:
    """The outcome of a value larger than what is read of a frame for its head."""
    store = MemoryObjectStore()
    header = {"protocol": wire.PROTOCOL, "job_id": "a", "state": "succeeded", "codec": "typed"}
    store.create_if_absent(NAME, wire.encode_frame(header, codec.encode(b"x" * 100_000), bytes(32)))
    return store


def read(store: MemoryObjectStore) -> Outcome:
    start = read_start(store, NAME)
    return read_outcome(start, bytes(32), job_id="a", download=lambda make: store.download(NAME, make))


def test_who_passes_a_reference_on_reads_no_body(stored: MemoryObjectStore) -> None:
    stored.requests.clear()
    outcome = read(stored)
    assert (outcome.verified, outcome.succeeded, list(outcome.parts)) == (True, True, ["body", "blob-0"])
    assert outcome.digest == wire.head_digest(stored.read(NAME))
    assert stored.requests[:1] == [("read", NAME)]
    assert len(read_start(stored, NAME)) == wire.HEAD_BYTES


def test_a_body_that_was_exchanged_is_not_loaded(stored: MemoryObjectStore) -> None:
    outcome, frame = read(stored), stored.read(NAME)
    stored.delete(NAME)
    stored.create_if_absent(NAME, frame[:-1] + b"y")
    with pytest.raises(UnverifiedResult, match="not those that its head names"):
        outcome.value_or_raise()


def test_a_frame_that_was_exchanged_is_not_loaded(stored: MemoryObjectStore) -> None:
    outcome = read(stored)
    header = {"protocol": wire.PROTOCOL, "job_id": "a", "state": "succeeded", "codec": "typed"}
    stored.delete(NAME)
    stored.create_if_absent(NAME, wire.encode_frame(header, codec.encode(b"y" * 100_000), bytes(32)))
    with pytest.raises(UnverifiedResult, match="changed since it was referred to"):
        outcome.value_or_raise()


def test_an_outcome_too_large_to_hold_goes_through_a_file(tmp_path: Path) -> None:
    shared = b"z" * (2 << 20)
    value = {
        1: shared,
        2: {"again": [shared, Path("/a")]},
        3: {4: bytearray(b"w" * (2 << 20))},
        5: ValueError(shared),
    }
    file = tmp_path / "outcome"
    with file.open("wb") as stream:
        succeeded(value, ()).write(stream)
    outcome = RunnersOutcome.from_file(str(file))
    assert (outcome.parts, outcome.stored is not None) == ({}, True)
    content = outcome.to_frame({"job_id": "a"}, bytes(32))
    store = DirectoryStore("file:///x", str(tmp_path))
    assert store.create_if_absent(NAME, content)
    assert b"".join(content.pieces()) == store.read(NAME) == content.read(0, len(content))  # type: ignore[union-attr]
    _, parts = wire.decode_frame(store.read(NAME), bytes(32))
    back = loaded(parts["body"], parts=parts)
    assert back[1] is back[2]["again"][0]
    assert (back[1], back[3], type(back[5])) == (value[1], value[3], ValueError)
