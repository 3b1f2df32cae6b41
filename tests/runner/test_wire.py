"""The frame: what goes in comes out, and nothing that was tampered with does."""

from __future__ import annotations

import pytest

from kinetic_core._runner import wire

KEY = b"k" * 32
HEADER = {"protocol": wire.PROTOCOL, "job_id": "job-1", "note": "zażółć"}
PARTS = {"function": b"\x00\x01", "arguments": b""}


def test_round_trip() -> None:
    header, parts = wire.decode_frame(wire.encode_frame(HEADER, PARTS, KEY), KEY)
    assert parts == PARTS
    assert {key: header[key] for key in HEADER} == HEADER


def test_every_flipped_byte_breaks_the_signature() -> None:
    frame = wire.encode_frame(HEADER, PARTS, KEY)
    for position in range(len(frame)):
        damaged = frame[:position] + bytes([frame[position] ^ 1]) + frame[position + 1 :]
        with pytest.raises(wire.SignatureError):
            wire.decode_frame(damaged, KEY)


def test_another_key_does_not_verify() -> None:
    with pytest.raises(wire.SignatureError, match="without the job's key"):
        wire.decode_frame(wire.encode_frame(HEADER, PARTS, KEY), b"x" * 32)


@pytest.mark.parametrize("cut", [0, 1, 8, 12, 40, -33, -1])
def test_a_truncated_frame_is_refused(cut: int) -> None:
    with pytest.raises(wire.FrameError):
        wire.decode_frame(wire.encode_frame(HEADER, PARTS)[:cut])


def test_lengths_that_lie_are_refused() -> None:
    frame = wire.encode_frame(HEADER, {"body": b"12345"})
    for lie in (b'["body",9]', b'["body",1]', b'["body",-5]'[:10]):
        with pytest.raises(wire.FrameError):
            wire.decode_frame(frame.replace(b'["body",5]', lie[:10]))


def test_another_protocol_is_refused() -> None:
    with pytest.raises(wire.FrameError, match="another protocol"):
        wire.decode_frame(wire.encode_frame({**HEADER, "protocol": 99}, {}))


def test_a_failure_survives_json() -> None:
    failure = wire.Failure(wire.FailureClass.DEADLINE, "too slow", exit_code=143, last_lines=("a", "b"))
    assert wire.Failure.from_dict(failure.to_dict()) == failure
    assert "signal" not in failure.to_dict()
