"""200,000 hostile inputs end in the one error of what reads them, each within bounded time and memory.

Inputs are made from valid ones by a generator with a seed, which knows the formats: it lies about lengths and
shapes, swaps tags and types, nests, repeats, and signs what it has changed, so that what lies behind the
signature is reached, too.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import os
import random
import resource
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from kinetic_core._runner import codec, wire
from kinetic_core._runner.notes import ForgedNote, decode_note, encode_note
from kinetic_core._runner.outcome import Header

pytestmark = [pytest.mark.attack, pytest.mark.slow]

KEY = bytes(32)
INPUTS = int(os.environ.get("KINETIC_FUZZ_INPUTS", "200000"))
LONGEST_SECONDS = 2.0
MOST_BYTES = 512 << 20
VALUES: list[Any] = [
    None,
    [1, 2.5, "text", True],
    {"a": {"b": [1, (2, 3)]}, 7: {8, 9}},
    {"w": np.arange(12.0).reshape(3, 4), "n": np.float32(1.5)},
    np.zeros(3, "i4,f8"),
    np.array(["2024-01-01"], dtype="M8[s]"),
    [b"bytes", bytearray(b"array")],
    {"large": [b"x" * codec.LARGE, np.ones(codec.LARGE, "u1"), "ü" * codec.LARGE]},
    [
        Decimal("1.5"),
        Fraction(1, 3),
        complex(1, 2),
        uuid.UUID(int=5),
        Path("/a"),
        10**40,
        range(5),
        slice(1, 2),
    ],
    [
        dt.datetime(2024, 1, 2, 3, tzinfo=ZoneInfo("Europe/Berlin")),
        dt.date(2024, 1, 1),
        dt.timedelta(1, 2, 3),
    ],
    frozenset({(1, 2), "x"}),
]
ODD: list[Any] = [
    *(None, True, 0, -1, 2, 1 << 31, 1 << 62, 1 << 64, -(1 << 63), 10**30, 0.1, 1e308, math.nan, math.inf),
    *("", "x", "1e30000000", "-1e999999999", "nan", "NaT", "0x" + "f" * 4000, "9" * 5000, "2024-13-45"),
    *("9999-12-31", "0001-01-01T00:00:00+23:59", "24:00:00", "America", "../../etc/passwd", "Europe/Berlin"),
    *("|O", "<f8", "f8,f8", "|V0", "<M8[ns]", "\ud800", "a\0b", [], {}, [[]], [None], [[[[]]]]),
    *({"t": "int", "v": "0x10"}, {"t": "dict", "v": [[1, 2]]}, {"t": "tuple", "v": []}),
    {"t": "ndarray", "v": [0, "<f8", [1 << 60], False]},
    *({"t": "bytes", "v": place} for place in ([0, 5], [0, 1 << 60], [-1, 5], [1 << 62, 0])),
]
TAGS = [
    "dict",
    "tuple",
    "set",
    "frozenset",
    "bytes",
    "bytearray",
    "ndarray",
    "npscalar",
    "int",
    "float",
    "complex",
]
TAGS += [
    "range",
    "slice",
    "Decimal",
    "Fraction",
    "UUID",
    "PosixPath",
    "timedelta",
    "date",
    "datetime",
    "time",
]
HEADER: dict[str, Any] = {
    "protocol": wire.PROTOCOL,
    "job_id": "job-1",
    "state": "failed",
    "codec": "typed",
    "attempt": 1,
    "retry": True,
    "result_type": "dict",
    "result_repr": None,
    "times": {"started": 1.0, "finished": 2.0},
    "failure": {"failure_class": "user error", "message": "x", "last_lines": ["a"], "exit_code": 1},
}


def changed(value: Any, chance: random.Random, depth: int = 0) -> Any:
    """The same JSON with some of it replaced, left out, repeated or nested."""
    dice = chance.random()
    if dice < 0.04:
        return chance.choice(ODD)
    if dice < 0.05:
        return {"t": chance.choice(TAGS), "v": value}
    if dice < 0.06 and depth < 3:
        for _ in range(chance.choice([1, 5, 150, 450])):
            value = [value] if chance.random() < 0.5 else {"t": "tuple", "v": [value]}
        return value
    if isinstance(value, dict):
        if set(value) == {"t", "v"} and chance.random() < 0.1:
            return {"t": chance.choice(TAGS), "v": changed(value["v"], chance, depth + 1)}
        kept = {
            key: changed(each, chance, depth + 1) for key, each in value.items() if chance.random() > 0.02
        }
        if chance.random() < 0.02:
            kept[str(chance.choice(ODD))] = chance.choice(ODD)
        return kept
    if isinstance(value, list):
        items = [changed(each, chance, depth + 1) for each in value if chance.random() > 0.03]
        return items * chance.choice([2, 100]) if items and depth < 3 and chance.random() < 0.01 else items
    return value


def damaged(content: bytes, chance: random.Random) -> bytes:
    """The same bytes with some flipped, cut, repeated, or the head's length replaced."""
    found = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 8])):
        if not found:
            break
        at = chance.randrange(len(found))
        kind = chance.randrange(6)
        if kind == 0:
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            found[at] = chance.choice(b'\x00\xff[]{}"0-')
        elif kind == 2:
            del found[at:]
        elif kind == 3:
            found[at:at] = found[: chance.randrange(64)] or b"0"
        elif kind == 4:
            del found[at : at + chance.randrange(16)]
        else:
            found[8:12] = struct.pack(">I", chance.choice([0, 1, len(found), 1 << 24, (1 << 32) - 1]))
    return bytes(found)


def dumped(value: Any) -> bytes:
    """As JSON, with whatever no JSON has."""
    try:
        return json.dumps(value).encode("utf-8", "surrogatepass")
    except RecursionError:
        return b'{"t":"tuple","v":[' * 2000


def hostile_parts(chance: random.Random) -> dict[str, bytes]:
    """Parts for the codec."""
    parts = {name: b"".join(wire.pieces(part)) for name, part in codec.encode(chance.choice(VALUES)).items()}
    if chance.random() < 0.85:
        parts["body"] = dumped(changed(json.loads(parts["body"]), chance))
    name = chance.choice(list(parts))
    if chance.random() < 0.3:
        parts[name] = damaged(parts[name], chance)
    if chance.random() < 0.05:
        del parts[name]
    return parts


def hostile_frame(chance: random.Random) -> bytes:
    """A frame, signed by whoever changed it or not."""
    parts = hostile_parts(chance)
    header = changed(HEADER, chance)
    header = header if isinstance(header, dict) else HEADER
    lengths: Any = [[name, len(part)] for name, part in parts.items()]
    content = b"".join(parts.values())
    told = {**header, "parts": lengths, "sha256": hashlib.sha256(content).hexdigest()}
    if chance.random() < 0.4:
        told = changed(told, chance)
    text = dumped(told)
    head = wire.MAGIC + struct.pack(">I", len(text)) + text
    frame = head + (wire.hmac.digest(KEY, head, "sha256") if chance.random() < 0.9 else bytes(32)) + content
    return damaged(frame, chance) if chance.random() < 0.2 else frame


def hostile_document(chance: random.Random) -> bytes:
    """A small document of the store."""
    content = dumped(changed({"pod_uid": "u", "at": 1.5, "seconds": 3.0, "more": [1, {"a": None}]}, chance))
    return damaged(content, chance) if chance.random() < 0.5 else content


def read_frame(frame: bytes) -> None:
    """A frame in pieces, then what is in it."""
    step = (1 << 20, 100, 17)[len(frame) % 3]
    reader = wire.FrameReader(KEY if len(frame) % 2 else None)
    for start in range(0, len(frame), step):
        reader.write(frame[start : start + step])
    header, parts = reader.close()
    Header.from_dict(header)
    codec.decode(parts)


def hostile_note(chance: random.Random) -> bytes:
    """A signed note of a job, changed."""
    content = encode_note(KEY, "jobs/a/note", {"kind": "failed", "host": 1, "final": False, "stacks": "x"})
    if chance.random() < 0.5:
        content = dumped(changed(json.loads(content), chance))
    return damaged(content, chance) if chance.random() < 0.5 else content


def read_note(content: bytes) -> None:
    """As the job's other attempts read it."""
    try:
        decode_note(KEY, "jobs/a/note", content)
    except ForgedNote as exc:
        raise wire.Malformed from exc


def read_document(content: bytes) -> None:
    """As one with some fields."""
    wire.document(content, pod_uid=str, at=float, seconds=float)


@pytest.mark.parametrize(
    ("made", "read", "share"),
    [
        pytest.param(hostile_parts, codec.decode, 0.5, id="parts"),
        pytest.param(hostile_frame, read_frame, 0.4, id="frames"),
        pytest.param(hostile_document, read_document, 0.05, id="documents"),
        pytest.param(hostile_note, read_note, 0.05, id="notes"),
    ],
)
def test_hostile_inputs_end_in_one_error(
    made: Callable[[random.Random], Any], read: Callable[[Any], object], share: float
) -> None:
    count = int(INPUTS * share)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    accepted, longest = 0, (0.0, 0)
    for seed in range(count):
        content = made(random.Random(seed))
        began = time.process_time()
        try:
            read(content)
            accepted += 1
        except wire.Malformed:
            pass  # the one error
        longest = max(longest, (time.process_time() - began, seed))
    assert longest[0] < LONGEST_SECONDS, f"seed {longest[1]} took {longest[0]:.1f} s"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before < MOST_BYTES
    assert 0.01 * count < accepted < 0.99 * count, (
        "the generator makes nothing but rubbish, or nothing hostile"
    )
    print(f"{made.__name__}: {count} inputs, {accepted} accepted, the longest {longest[0]:.2f} s")


def test_coverage_guided_inputs_end_in_one_error(tmp_path: Path) -> None:
    """A million more, each made from one that reached new code."""
    pytest.importorskip("atheris", reason="the fuzzer is installed for Python 3.11 only")
    (inputs := tmp_path / "inputs").mkdir()
    for number, value in enumerate(VALUES):
        body = bytes(codec.encode(value)["body"])
        (inputs / f"value-{number}").write_bytes(b"\x02" + body)
        (inputs / f"frame-{number}").write_bytes(b"\x01" + dumped(HEADER) + b"\n" + body)
    (inputs / "document").write_bytes(b'\x03{"pod_uid": "u", "at": 1.5}')
    (inputs / "note").write_bytes(b"\x04" + encode_note(KEY, "jobs/a/note", {"kind": "failed"}))
    words = [json.dumps(f'{{"t":"{tag}","v":') for tag in TAGS]
    (tmp_path / "words").write_text("\n".join([*words, r'"\"2024-01-01\""', r'"1e30000000"', r'"[["']))
    options = [
        f"-dict={tmp_path / 'words'}",
        f"-runs={5 * INPUTS}",
        "-seed=1",
        "-max_len=4096",
        "-timeout=10",
        "-rss_limit_mb=1024",
    ]
    program = Path(__file__).with_name("fuzz_target.py")
    done = subprocess.run(
        [sys.executable, program, inputs, f"-artifact_prefix={tmp_path}/", *options],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {5 * INPUTS} runs" in done.stderr
