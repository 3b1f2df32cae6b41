"""The frame: what goes in comes out, and nothing that was tampered with does."""

from __future__ import annotations

import hmac
import json
import struct

import pytest

from kinetic_core._runner import wire
from kinetic_core._runner.outcome import Header

KEY = b"k" * 32
HEADER = {"protocol": wire.PROTOCOL, "job_id": "job-1", "note": "zażółć"}
PARTS = {"function": b"\x00\x01", "arguments": b""}


def test_round_trip() -> None:
    header, parts = wire.decode_frame(wire.encode_frame(HEADER, PARTS, KEY), KEY)
    assert parts == PARTS
    assert {key: header[key] for key in HEADER} == HEADER


@pytest.mark.attack
@pytest.mark.promise("gke: Verification by HMAC")
def test_every_flipped_byte_is_noticed() -> None:
    frame = wire.encode_frame(HEADER, PARTS, KEY)
    for position in range(len(frame)):
        damaged = frame[:position] + bytes([frame[position] ^ 1]) + frame[position + 1 :]
        with pytest.raises(wire.FrameError):
            wire.decode_frame(damaged, KEY)


def test_another_key_does_not_verify() -> None:
    with pytest.raises(wire.SignatureError, match="without the job's key"):
        wire.decode_frame(wire.encode_frame(HEADER, PARTS, KEY), b"x" * 32)


@pytest.mark.parametrize("cut", [0, 1, 8, 12, 40, -33, -1])
def test_a_truncated_frame_is_refused(cut: int) -> None:
    with pytest.raises(wire.FrameError):
        wire.decode_frame(wire.encode_frame(HEADER, PARTS)[:cut])


@pytest.mark.attack
def test_lengths_that_lie_are_refused() -> None:
    frame = wire.encode_frame(HEADER, {"body": b"12345"})
    for lie in (b'["body",9]', b'["body",1]', b'["body",-5]'[:10]):
        with pytest.raises(wire.FrameError):
            wire.decode_frame(frame.replace(b'["body",5]', lie[:10]))


def test_a_text_is_read_wherever_it_is_cut() -> None:
    text = "aü€😀\ud800\udc00z"
    frame = wire.encode_frame(HEADER, {"text-0": text, "body": b"1"}, KEY)
    for size in range(1, 9):
        reader = wire.FrameReader(KEY)
        for start in range(0, len(frame), size):
            reader.write(memoryview(frame)[start : start + size])
        assert reader.close()[1] == {"text-0": text, "body": b"1"}


@pytest.mark.parametrize("content", [b"\xff", b"abc\xe2\x82", b"\xc0\x80"])
def test_what_is_no_text_is_refused(content: bytes) -> None:
    frame = wire.encode_frame(HEADER, {"text-0": content})
    with pytest.raises(wire.FrameError, match="is not UTF-8"):
        wire.decode_frame(frame)


def test_another_protocol_is_refused() -> None:
    with pytest.raises(wire.FrameError, match="another protocol"):
        wire.decode_frame(wire.encode_frame({**HEADER, "protocol": 99}, {}))


def test_a_failure_survives_json() -> None:
    failure = wire.Failure(wire.FailureClass.DEADLINE, "too slow", exit_code=143, last_lines=("a", "b"))
    assert wire.Failure.from_dict(failure.to_dict()) == failure
    assert "signal" not in failure.to_dict()


def test_a_failure_is_stored_as_text_that_can_be_encoded() -> None:
    """An exception may quote the name of a file that is not UTF-8."""
    strange = "caf\udce9"
    told = wire.Failure("user error", strange, traceback=strange, last_lines=(strange, "é")).to_dict()
    assert (told["message"], told["traceback"]) == (r"caf\udce9", r"caf\udce9")
    assert told["last_lines"] == (r"caf\udce9", "é")


def test_a_head_speaks_for_parts_that_nobody_read() -> None:
    frame = wire.encode_frame(HEADER, PARTS, KEY)
    size = wire.head_size(frame)
    assert wire.decode_head(frame[:size], KEY)["note"] == HEADER["note"]
    other = frame[:size] + b"x" * (len(frame) - size)
    assert wire.decode_head(other, KEY)["job_id"] == "job-1"
    with pytest.raises(wire.FrameError, match="not those that its head names"):
        wire.decode_frame(other, KEY)


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_a_frame_is_read_in_pieces(step: int) -> None:
    parts = {"body": b"x" * 30, "empty": b"", "array-0": b"y" * 20, "end": b""}
    frame = wire.encode_frame(HEADER, parts, KEY)
    reader = wire.FrameReader(KEY)
    for start in range(0, len(frame), step):
        reader.write(frame[start : start + step])
    assert reader.close()[1] == parts


@pytest.mark.attack
@pytest.mark.parametrize(
    "more",
    [
        {"parts": [["body", 1 << 62]]},
        {"parts": [["body", 1], ["body", 1]]},
        {"parts": [["", 1]]},
        {"parts": [[["body"], 1]]},
        {"parts": [["body", True]]},
        {"parts": {"body": 1}},
        {"parts": [["body"]]},
        {"sha256": 7},
        {"sha256": None},
        {"protocol": "1"},
    ],
    ids=str,
)
def test_hostile_frames_are_refused_at_their_head(more: dict[str, object]) -> None:
    text = json.dumps({"protocol": wire.PROTOCOL, "parts": [["body", 2]], "sha256": "", **more}).encode()
    head = wire.MAGIC + struct.pack(">I", len(text)) + text
    with pytest.raises(wire.FrameError):
        wire.decode_frame(head + hmac.digest(KEY, head, "sha256") + b"xx", KEY)


@pytest.mark.attack
@pytest.mark.parametrize(
    "more",
    [
        {"state": "running"},
        {"state": ["succeeded"]},
        {"codec": "marshal"},
        {"attempt": "1"},
        {"attempt": 1 << 80},
        {"times": {"started": "now"}},
        {"times": [1]},
        {"result_type": 7},
        {"retry": "yes"},
        {"failure": []},
        {"failure": {}},
        {"failure": {"failure_class": "x", "message": 7}},
        {"failure": {"failure_class": "x", "message": "y", "last_lines": 5}},
        {"failure": {"failure_class": "x", "message": "y", "last_lines": [1]}},
        {"failure": {"failure_class": "x", "message": "y", "exit_code": "1"}},
        {"failure": {"failure_class": "x", "message": "y", "traceback": {}}},
        {"failure": {"failure_class": "x", "message": "\ud800"}},
        {"failure": {"failure_class": "x", "message": "y", "last_lines": ["\ud800"]}},
        {"result_repr": "\ud800"},
        {"times": {"\ud800": 1}},
    ],
    ids=str,
)
def test_a_malformed_header_is_no_outcome(more: dict[str, object]) -> None:
    with pytest.raises(wire.FrameError, match="not of an outcome"):
        Header.from_dict({"job_id": "job-1", "state": "failed", "codec": "none", **more})


@pytest.mark.attack
@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\xff", b"[]", b"7", b"{", b"[" * 100_000, b"9" * 5000),
        *(b'{"at": NaN}', b'{"at": "1"}', b'{"at": true}', b'{"at": 1e400}', b"{}"),
    ],
)
def test_a_malformed_document_is_one_error(content: bytes) -> None:
    with pytest.raises(wire.Malformed):
        wire.document(content, at=float)


@pytest.mark.attack
@pytest.mark.parametrize("content", [rb'{"by": "\ud800"}', rb'{"by": "\uDFFFx"}'])
def test_a_document_with_half_a_character_is_malformed(content: bytes) -> None:
    with pytest.raises(wire.Malformed, match="'by' cannot be encoded as UTF-8"):
        wire.document(content, by=str)
    assert wire.document(rb'{"by": "\ud83d\ude00"}', by=str) == {"by": "😀"}
