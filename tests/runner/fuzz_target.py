"""A program for atheris: bytes of its coverage-guided fuzzer, read as what lies in a bucket is read.

    python tests/runner/fuzz_target.py FOLDER_OF_INPUTS -runs=200000 -seed=1

The first byte of an input says what the rest is: a frame, the body of a value, a document or a note. A
frame's head is signed here where the byte says so, so that what lies behind the signature is reached, too.
Anything but `wire.Malformed` ends the program with the input that caused it.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["kinetic_core._runner.codec", "kinetic_core._runner.wire"]):
    from kinetic_core._runner import codec, wire
    from kinetic_core._runner.notes import ForgedNote, decode_note
    from kinetic_core._runner.outcome import Header

KEY = bytes(32)


def read(content: bytes) -> None:
    """Read one input in the way that its first byte names."""
    kind, rest = (content[0] % 5, content[1:]) if content else (0, b"")
    if kind == 0:
        read_frame(rest)
    elif kind == 1:
        read_frame(signed(rest))
    elif kind == 2:
        codec.decode({"body": rest, "small": b"small"})
    elif kind == 3:
        wire.document(rest, pod_uid=str, at=float)
    else:
        decode_note(KEY, "jobs/a/note", rest)


def read_frame(frame: bytes) -> None:
    """Verify a frame, then believe its header and decode its parts."""
    reader = wire.FrameReader(KEY)
    reader.write(frame)
    header, parts = reader.close()
    Header.from_dict(header)
    codec.decode(parts)


def signed(rest: bytes) -> bytes:
    """Make a frame whose signature and digest are right around a head and a body that are the fuzzer's."""
    head, _, body = rest.partition(b"\n")
    try:
        told = json.loads(head)
        told |= {
            "parts": told.get("parts", [["body", len(body)]]),
            "sha256": hashlib.sha256(body).hexdigest(),
        }
        head = json.dumps(told).encode("utf-8", "surrogatepass")
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass  # a head that is no JSON object is signed as it is
    start = wire.MAGIC + struct.pack(">I", len(head)) + head
    return start + wire.hmac.digest(KEY, start, "sha256") + body


def test_one_input(content: bytes) -> None:
    """Let nothing out but the one error."""
    try:
        read(content)
    except (wire.Malformed, ForgedNote):
        pass


if __name__ == "__main__":
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()
